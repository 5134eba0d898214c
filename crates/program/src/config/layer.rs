//! One source of settings, and the errors of reading it.

use std::{
    error::Error,
    ffi::OsString,
    fmt::Display,
    fs, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::Args;
use serde::{Deserialize, de::DeserializeOwned};
use thiserror::Error;

use crate::logging::{LogDirectives, LogFormat};

/// The settings of a program as one source gives them. The fields are the sections of the
/// configuration file; clap fills sections from flags.
pub trait Layer: Default + DeserializeOwned {
    /// The section of logging.
    fn log(&self) -> &LogLayer;

    /// A layer with flags of logging and nothing else.
    fn of_log(log: LogLayer) -> Self;

    /// Reads the environment variables of the program.
    fn from_environment(environment: &Environment) -> Result<Self, ConfigError>;
}

/// Settings of logging.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct LogLayer {
    /// Format of log lines on stderr: text or json [env: WEFT_LOG_FORMAT] [default: text]
    #[arg(
        long = "log-format",
        global = true,
        value_name = "FORMAT",
        hide_possible_values = true
    )]
    pub format: Option<LogFormat>,
    /// Log filter: a level, or directives such as info,weft_runtime=debug
    /// [env: WEFT_LOG_LEVEL] [default: info]
    #[arg(long = "log-level", global = true, value_name = "FILTER")]
    pub level: Option<LogDirectives>,
}

impl LogLayer {
    /// Reads the environment variables of logging.
    pub fn from_environment(environment: &Environment) -> Result<Self, ConfigError> {
        Ok(Self {
            format: environment.parse("WEFT_LOG_FORMAT")?,
            level: environment.parse("WEFT_LOG_LEVEL")?,
        })
    }
}

/// A setting that the user has to correct. The program exits with 2.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file is not valid YAML, or has an unknown key or a wrong value.
    #[error("cannot decode the configuration file {}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The error of the decoder.
        source: Box<serde_saphyr::Error>,
    },
    /// A flag has a wrong value.
    #[error("{0}")]
    Flag(String),
    /// Several settings together are wrong, or a setting of another format is.
    #[error("{message}")]
    Invalid {
        /// The part of the configuration, as an error message.
        message: String,
        /// The reason.
        source: Box<dyn Error + Send + Sync>,
    },
    /// An environment variable has a wrong value.
    #[error("environment variable {name}: {reason}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// The reason.
        reason: String,
    },
}

impl ConfigError {
    /// A configuration that is wrong for a reason.
    pub fn invalid(
        message: impl Into<String>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::Invalid {
            message: message.into(),
            source: source.into(),
        }
    }
}

/// Reads a configuration file.
pub(super) fn from_file<L: Layer>(path: &Path) -> Result<L, ConfigError> {
    let text = fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    from_yaml(&text).map_err(|source| ConfigError::Parse {
        path: path.to_owned(),
        source: Box::new(source),
    })
}

fn from_yaml<L: Layer>(text: &str) -> Result<L, serde_saphyr::Error> {
    // The excerpt that the parser could add repeats the message it illustrates.
    let options = serde_saphyr::options! { with_snippet: false };
    // A file of comments only is a YAML document without value: everything stays default.
    let layer: Option<L> = serde_saphyr::from_str_with_options(text, options)?;
    Ok(layer.unwrap_or_default())
}

/// Environment variables; a function, so that tests need not change the process's own.
pub struct Environment<'a>(Box<Read<'a>>);

type Read<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

impl<'a> Environment<'a> {
    /// Reads variables by this function.
    pub fn new(read: impl Fn(&str) -> Option<OsString> + 'a) -> Self {
        Self(Box::new(read))
    }

    /// A variable that is a path. Empty counts as unset, as everywhere.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.read(name).map(PathBuf::from)
    }

    /// A variable that is parsed. Empty counts as unset.
    pub fn parse<T: FromStr<Err: Display>>(
        &self,
        name: &'static str,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.read(name) else {
            return Ok(None);
        };
        let error = |reason| ConfigError::Variable { name, reason };
        let text = value
            .to_str()
            .ok_or_else(|| error("is not UTF-8".to_owned()))?;
        text.parse()
            .map(Some)
            .map_err(|reason: T::Err| error(reason.to_string()))
    }

    fn read(&self, name: &str) -> Option<OsString> {
        (self.0)(name).filter(|value| !value.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

    use super::*;
    use crate::config::LogOnly;

    fn variables<'a>(given: &'a [(&'a str, &'a [u8])]) -> Environment<'a> {
        Environment::new(|name| {
            let value = given.iter().find(|(known, _)| *known == name)?.1;
            Some(OsStr::from_bytes(value).to_owned())
        })
    }

    #[test]
    fn a_wrong_variable_is_named() {
        for wrong in [b"xml".as_slice(), b"\xff"] {
            let given = [("WEFT_LOG_FORMAT", wrong)];
            let error = LogOnly::from_environment(&variables(&given)).unwrap_err();
            assert!(
                error.to_string().contains("variable WEFT_LOG_FORMAT"),
                "{error}"
            );
        }
    }

    #[test]
    fn an_empty_variable_counts_as_unset() {
        let given: [(&str, &[u8]); 1] = [("WEFT_LOG_LEVEL", b"")];
        let layer = LogOnly::from_environment(&variables(&given)).unwrap();
        assert_eq!(layer.log.level, None);
    }

    #[test]
    fn unknown_keys_of_a_file_are_errors_that_name_the_key() {
        for (text, key) in [("log:\n  levle: debug\n", "levle"), ("lgo: {}\n", "lgo")] {
            let error = from_yaml::<LogOnly>(text).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }

    #[test]
    fn a_file_may_be_empty_or_hold_comments_only() {
        for text in ["", "# nothing yet\n", "log:\n"] {
            let layer = from_yaml::<LogOnly>(text).unwrap();
            assert_eq!(
                (layer.log.format, layer.log.level),
                (None, None),
                "{text:?}"
            );
        }
    }
}
