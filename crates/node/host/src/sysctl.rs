//! The kernel's settings under `/proc/sys`, and parameters of its modules under `/sys/module`.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use thiserror::Error;

/// The name of one setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Setting<'a> {
    /// Below `/proc/sys`, with slashes: `net/ipv4/ip_forward`. Dots would be ambiguous, since they
    /// may stand in the name of an interface.
    Sysctl(&'a str),
    /// Below `/sys/module`.
    ModuleParameter {
        /// `nf_conntrack`.
        module: &'a str,
        /// `hashsize`.
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

/// Why a setting was not read or written.
#[derive(Debug, Error)]
pub enum SettingError {
    /// This kernel does not have it, or its module is not loaded.
    #[error("{setting} does not exist")]
    Missing {
        /// Which one.
        setting: String,
    },
    /// It can be read only: by a read-only mount, for lack of rights, or because it belongs to the
    /// initial network namespace.
    #[error("{setting} cannot be written here")]
    ReadOnly {
        /// Which one.
        setting: String,
        /// What the system said.
        source: io::Error,
    },
    /// It holds something else than the number we expected.
    #[error("{setting} is {value:?}, which is no number")]
    NotANumber {
        /// Which one.
        setting: String,
        /// What it holds.
        value: String,
    },
    /// Anything else, such as a value that the kernel refuses.
    #[error("{setting} cannot be {verb}")]
    Other {
        /// Which one.
        setting: String,
        /// `read`, or `set to` a value.
        verb: String,
        /// What the system said.
        source: io::Error,
    },
}

impl SettingError {
    /// Whether the setting exists and may not be changed by us.
    pub fn is_read_only(&self) -> bool {
        matches!(self, Self::ReadOnly { .. })
    }
}

/// Reads and writes settings, those of the network in the calling thread's namespace.
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
    /// Settings whose `proc/sys` and `sys/module` are below another directory: the host's, mounted
    /// into a container, or a test's.
    pub fn under(root: &Path) -> Self {
        let root = root.to_owned();
        Self { root }
    }

    /// The value as text, without white space around it.
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

    /// Writes a value, whatever it was before.
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
                verb: format!("set to {value:?}"),
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
