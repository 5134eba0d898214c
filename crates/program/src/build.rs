//! Version, commit and compiler of this build.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Version, commit and compiler of this build, from the build script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildInfo {
    /// `weft` or `weft-lab`.
    #[serde(skip)]
    program: &'static str,
    version: &'static str,
    /// Absent in a build from a source archive, like the date.
    commit: Option<&'static str>,
    commit_date: Option<&'static str>,
    rustc: Option<&'static str>,
    target: Option<&'static str>,
}

impl BuildInfo {
    /// The build that runs now, under the name of a program.
    pub fn of(program: &'static str) -> Self {
        Self {
            program,
            version: env!("CARGO_PKG_VERSION"),
            commit: option_env!("WEFT_BUILD_COMMIT"),
            commit_date: option_env!("WEFT_BUILD_DATE"),
            rustc: option_env!("WEFT_BUILD_RUSTC"),
            target: option_env!("WEFT_BUILD_TARGET"),
        }
    }
}

impl BuildInfo {
    /// Version and commit, which two programs of one build have in common.
    pub fn release(&self) -> Release {
        Release {
            version: self.version.to_owned(),
            commit: self.commit.map(str::to_owned),
        }
    }
}

/// The version and commit of a program, as its `version --output=json` prints them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Release {
    version: String,
    commit: Option<String>,
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let commit = self.commit.as_deref().unwrap_or("unknown");
        write!(f, "version {}, commit {commit}", self.version)
    }
}

impl fmt::Display for BuildInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_unknown = |value: Option<&'static str>| value.unwrap_or("unknown");
        writeln!(f, "{} {}", self.program, self.version)?;
        writeln!(f, "  commit  {}", or_unknown(self.commit))?;
        writeln!(f, "  date    {}", or_unknown(self.commit_date))?;
        writeln!(f, "  rustc   {}", or_unknown(self.rustc))?;
        writeln!(f, "  target  {}", or_unknown(self.target))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_git_says_unknown() {
        let info = BuildInfo {
            program: "weft",
            version: "1.2.3",
            commit: None,
            commit_date: None,
            rustc: Some("1.95.0"),
            target: Some("x86_64-unknown-linux-gnu"),
        };
        let expected = "weft 1.2.3\n  commit  unknown\n  date    unknown\n  rustc   1.95.0\n  \
                        target  x86_64-unknown-linux-gnu\n";
        assert_eq!(info.to_string(), expected);
    }
}
