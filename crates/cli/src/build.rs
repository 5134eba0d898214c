use std::fmt;

use serde::Serialize;

/// How this program was built, as the build script found out.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BuildInfo {
    version: &'static str,
    /// Absent in a build from a source archive, like the date.
    commit: Option<&'static str>,
    commit_date: Option<&'static str>,
    rustc: Option<&'static str>,
    target: Option<&'static str>,
}

impl BuildInfo {
    pub(crate) fn of_this_program() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            commit: option_env!("WEFT_BUILD_COMMIT"),
            commit_date: option_env!("WEFT_BUILD_DATE"),
            rustc: option_env!("WEFT_BUILD_RUSTC"),
            target: option_env!("WEFT_BUILD_TARGET"),
        }
    }
}

impl fmt::Display for BuildInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_unknown = |value: Option<&'static str>| value.unwrap_or("unknown");
        writeln!(f, "weft {}", self.version)?;
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
