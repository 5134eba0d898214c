//! Logging to stderr.

use std::{fmt, io, io::IsTerminal as _, str::FromStr};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tracing_subscriber::{EnvFilter, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::config::LogConfig;

mod filter;

pub use filter::LogFilter;

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people; in colour when stderr is a terminal
    Text,
    /// One object for each line, for collectors
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Variables and files are as strict as flags: one spelling.
        <Self as ValueEnum>::from_str(text, false)
            .map_err(|_| format!("`{text}` is neither text nor json"))
    }
}

/// A checked log filter: a level, or directives such as `info,weft_runtime=debug`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LogDirectives(String);

impl LogDirectives {
    fn debug() -> Self {
        Self("debug".to_owned())
    }

    fn filter(&self) -> EnvFilter {
        EnvFilter::try_new(&self.0).expect("directives are checked when they are parsed")
    }
}

impl FromStr for LogDirectives {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match EnvFilter::try_new(text) {
            Ok(_) if !text.trim().is_empty() => Ok(Self(text.to_owned())),
            Ok(_) => Err("an empty log filter".to_owned()),
            Err(error) => Err(format!("`{text}` is not a log filter: {error}")),
        }
    }
}

impl TryFrom<String> for LogDirectives {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<LogDirectives> for String {
    fn from(directives: LogDirectives) -> Self {
        directives.0
    }
}

impl fmt::Display for LogDirectives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Starts logging to stderr, once for each process; the result changes the filter.
pub fn start(config: &LogConfig) -> LogFilter {
    let (layer, filter) = LogFilter::new(config.level.value.clone());
    // When stderr is gone, reporting that to stderr would only add a panic.
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .log_internal_errors(false);
    let registry = tracing_subscriber::registry().with(layer);
    match config.format.value {
        LogFormat::Text => registry
            .with(lines.with_ansi(io::stderr().is_terminal()))
            .init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).init(),
    }
    filter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_checked_before_they_are_used() {
        for good in [
            "debug",
            "info,weft_runtime=trace",
            "off",
            "weft[span]=debug",
        ] {
            assert_eq!(good.parse::<LogDirectives>().unwrap().to_string(), good);
        }
        for bad in ["", " ", "weft=loud", "a=b=c"] {
            bad.parse::<LogDirectives>().unwrap_err();
        }
    }
}
