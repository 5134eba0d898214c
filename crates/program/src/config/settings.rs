//! Settings with the source that each value came from.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

/// The source that a value came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// A flag.
    Flag,
    /// An environment variable.
    Environment,
    /// The configuration file.
    File,
    /// No source: the default.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::File => "file",
            Self::Default => "default",
        })
    }
}

/// An effective value and its origin.
#[derive(Debug, Clone)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Its source.
    pub origin: Origin,
}

/// All settings, ready to be printed.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Settings(Vec<Row>);

#[derive(Debug, Serialize)]
struct Row {
    section: &'static str,
    key: &'static str,
    value: Value,
    origin: Origin,
}

impl Settings {
    /// Adds a setting under its section and key in the file.
    pub fn push<T: Serialize>(
        &mut self,
        section: &'static str,
        key: &'static str,
        setting: &Setting<T>,
    ) {
        let value = serde_json::to_value(&setting.value).expect("settings are plain values");
        self.0.push(Row {
            section,
            key,
            value,
            origin: setting.origin,
        });
    }
}

/// A configuration file that says the same, with the sources as comments.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut section = "";
        for row in &self.0 {
            if row.section != section {
                section = row.section;
                writeln!(f, "{section}:")?;
            }
            // JSON scalars are YAML scalars, and need no second set of quoting rules.
            let entry = format!("  {}: {}", row.key, row.value);
            writeln!(f, "{entry:<40} # {}", row.origin)?;
        }
        Ok(())
    }
}
