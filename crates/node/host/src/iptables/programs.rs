//! Paths and environment of the iptables programs.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use weft_model::IpFamily;

use crate::iptables::{DetectError, Variant};

/// Directories that Debian leaves out of `PATH` for users other than root.
const ADMINISTRATORS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Directories to search for programs, in order.
///
/// A directory put in front can replace single programs, for example by one that fails.
#[derive(Clone, Debug)]
pub struct SearchPath {
    directories: Vec<PathBuf>,
}

impl SearchPath {
    /// `PATH`, followed by the sbin directories.
    pub fn from_environment() -> Self {
        let path = env::var_os("PATH").unwrap_or_default();
        let directories = env::split_paths(&path)
            .chain(ADMINISTRATORS.map(PathBuf::from))
            .collect();
        Self { directories }
    }

    /// Only these directories.
    pub fn of(directories: &[&Path]) -> Self {
        let directories = directories.iter().map(|path| path.to_path_buf()).collect();
        Self { directories }
    }

    /// The same with another directory in front.
    #[must_use]
    pub fn with_first(mut self, directory: &Path) -> Self {
        self.directories.insert(0, directory.to_owned());
        self
    }

    pub(super) fn find(&self, program: &str) -> Option<PathBuf> {
        self.directories
            .iter()
            .map(|directory| directory.join(program))
            .find(|path| path.is_file())
    }
}

/// Paths of the three programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// Path of `iptables`.
    pub command: PathBuf,
    /// Path of `iptables-save`.
    pub save: PathBuf,
    /// Path of `iptables-restore`.
    pub restore: PathBuf,
}

impl Programs {
    /// Finds `<stem>`, `<stem>-save` and `<stem>-restore`.
    pub(super) fn find(search: &SearchPath, stem: &str) -> Result<Self, DetectError> {
        let find = |name: String| search.find(&name).ok_or(DetectError::Missing(name));
        Ok(Self {
            command: find(stem.to_owned())?,
            save: find(format!("{stem}-save"))?,
            restore: find(format!("{stem}-restore"))?,
        })
    }
}

/// `iptables` or `ip6tables`.
pub(super) fn plain_name(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "iptables",
        IpFamily::V6 => "ip6tables",
    }
}

/// `ip6tables-nft` and the like.
pub(super) fn explicit_name(family: IpFamily, variant: Variant) -> String {
    format!("{}-{variant}", plain_name(family))
}

/// The whole environment of the programs: the C locale, since their messages are parsed, and the
/// variables by which an administrator moves iptables' plug-ins or its lock.
pub(super) fn environment() -> Vec<(OsString, OsString)> {
    let directories = SearchPath::from_environment().directories;
    let path = env::join_paths(directories).unwrap_or_default();
    let mut variables = vec![("PATH".into(), path), ("LC_ALL".into(), "C".into())];
    for name in ["XTABLES_LIBDIR", "XTABLES_LOCKFILE"] {
        if let Some(value) = env::var_os(name) {
            variables.push((name.into(), value));
        }
    }
    variables
}
