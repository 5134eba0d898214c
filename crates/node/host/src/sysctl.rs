//! Sysctls under `/proc/sys`, and module parameters under `/sys/module`.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use thiserror::Error;

/// Name of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Setting<'a> {
    /// Path under `/proc/sys`, with slashes: `net/ipv4/ip_forward`. Dots would be ambiguous, since
    /// they may occur in the name of an interface.
    Sysctl(&'a str),
    /// Path under `/sys/module`.
    ModuleParameter {
        /// Module name, such as `nf_conntrack`.
        module: &'a str,
        /// Parameter name, such as `hashsize`.
        parameter: &'a str,
    },
}

impl fmt::Display for Setting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sysctl(name) => write!(f, "/proc/sys/{name}"),
            Self::ModuleParameter { module, parameter } => {
                write!(f, "/sys/module/{module}/parameters/{parameter}")
            }
        }
    }
}

/// Failure to read or write a setting.
#[derive(Debug, Error)]
pub enum SettingError {
    /// The kernel does not have it, or its module is not loaded.
    #[error("{setting} does not exist")]
    Missing {
        /// Path of the setting.
        setting: String,
    },
    /// It is read-only: by a read-only mount, by lack of rights, or because it belongs to the
    /// initial network namespace.
    #[error("cannot write {setting}: read-only here")]
    ReadOnly {
        /// Path of the setting.
        setting: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The value is not a number.
    #[error("{setting} is {value:?}: expected a number")]
    NotANumber {
        /// Path of the setting.
        setting: String,
        /// Its value.
        value: String,
    },
    /// Any other failure, such as a value that the kernel refuses.
    #[error("cannot {verb} {setting}")]
    Other {
        /// Path of the setting.
        setting: String,
        /// `read`, or `write` with the value.
        verb: String,
        /// Error of the system.
        source: io::Error,
    },
}

impl SettingError {
    /// Returns whether the setting exists but is read-only here.
    pub fn is_read_only(&self) -> bool {
        matches!(self, Self::ReadOnly { .. })
    }
}

/// Reads and writes settings; those of the network belong to the calling thread's namespace.
#[derive(Clone, Debug)]
pub struct Settings {
    root: PathBuf,
}

impl Default for Settings {
    fn default() -> Self {
        Self::under(Path::new("/"))
    }
}

impl Settings {
    /// Settings whose `proc/sys` and `sys/module` are under another directory: the host's, mounted
    /// into a container, or a test's.
    pub fn under(root: &Path) -> Self {
        let root = root.to_owned();
        Self { root }
    }

    /// The value as text, trimmed.
    pub fn read(&self, setting: Setting<'_>) -> Result<String, SettingError> {
        match fs::read_to_string(self.path(setting)) {
            Ok(text) => Ok(text.trim().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing(setting)),
            Err(source) => Err(SettingError::Other {
                setting: setting.to_string(),
                verb: "read".to_owned(),
                source,
            }),
        }
    }

    /// The value as a number.
    pub fn read_number(&self, setting: Setting<'_>) -> Result<u64, SettingError> {
        let value = self.read(setting)?;
        value.parse().map_err(|_| SettingError::NotANumber {
            setting: setting.to_string(),
            value,
        })
    }

    /// Writes a value unconditionally.
    pub fn write(&self, setting: Setting<'_>, value: &str) -> Result<(), SettingError> {
        let outcome = fs::OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(self.path(setting))
            .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()));
        let Err(source) = outcome else { return Ok(()) };
        Err(match source.kind() {
            io::ErrorKind::NotFound => missing(setting),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                SettingError::ReadOnly {
                    setting: setting.to_string(),
                    source,
                }
            }
            _ => SettingError::Other {
                setting: setting.to_string(),
                verb: format!("write {value:?} to"),
                source,
            },
        })
    }

    fn path(&self, setting: Setting<'_>) -> PathBuf {
        let absolute = setting.to_string();
        self.root.join(absolute.trim_start_matches('/'))
    }
}

fn missing(setting: Setting<'_>) -> SettingError {
    SettingError::Missing {
        setting: setting.to_string(),
    }
}
