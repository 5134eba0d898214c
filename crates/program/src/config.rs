//! The precedence order of settings: flag, environment, file, default.
//!
//! Each source is read into the same [`Layer`], in which everything is optional; [`Layers`] takes
//! each value from the first source that has it and keeps which one that was. A program has its
//! defaults in one place, where it asks [`Layers::strongest`] for its settings.
//!
//! Unknown keys of the file are errors. Unknown variables are not: a Kubernetes Service that is
//! called `weft` puts `WEFT_SERVICE_HOST` and `WEFT_PORT` into every container of its namespace.

use std::{collections::BTreeSet, env, path::PathBuf};

use serde::Deserialize;

use crate::{
    SharedArguments,
    logging::{self, LogDirectives, LogFilter, LogFormat},
};

mod layer;
mod settings;

pub use layer::{ConfigError, Environment, Layer, LogLayer};
pub use settings::{Origin, Setting, Settings};

/// The settings of a program that has none but those of logging.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct LogOnly {
    log: LogLayer,
}

impl Layer for LogOnly {
    fn log(&self) -> &LogLayer {
        &self.log
    }

    fn of_log(log: LogLayer) -> Self {
        Self { log }
    }

    fn from_environment(environment: &Environment) -> Result<Self, ConfigError> {
        let log = LogLayer::from_environment(environment)?;
        Ok(Self { log })
    }
}

/// Effective settings of logging.
#[derive(Debug)]
pub struct LogConfig {
    /// The format of lines.
    pub format: Setting<LogFormat>,
    /// The lines that are written.
    pub level: Setting<LogDirectives>,
}

impl LogConfig {
    /// Adds these settings to those that are printed.
    pub fn push(&self, settings: &mut Settings) {
        settings.push("log", "format", &self.format);
        settings.push("log", "level", &self.level);
    }
}

/// All sources of settings of a program.
#[derive(Debug, Default)]
pub struct Layers<L> {
    flags: L,
    environment: L,
    file: L,
    path: Option<PathBuf>,
}

impl<L: Layer> Layers<L> {
    /// Reads the environment and the file, which the environment may name too.
    pub fn load(file: Option<PathBuf>, flags: L) -> Result<Self, ConfigError> {
        let environment = Environment::new(|name| env::var_os(name));
        let path = file.or_else(|| environment.path("WEFT_CONFIG"));
        let file = path.as_deref().map(layer::from_file).transpose()?;
        Ok(Self {
            flags,
            environment: L::from_environment(&environment)?,
            file: file.unwrap_or_default(),
            path,
        })
    }

    /// The file that was read, if any.
    pub fn file(&self) -> Option<&PathBuf> {
        self.path.as_ref()
    }

    /// The effective settings of logging.
    pub fn log(&self) -> LogConfig {
        LogConfig {
            format: self.strongest(|layer| layer.log().format, LogFormat::Text),
            level: self.strongest(
                |layer| layer.log().level.clone(),
                "info".parse().expect("the default filter is valid"),
            ),
        }
    }

    /// The value of the first source that has one.
    pub fn strongest<T>(&self, field: impl Fn(&L) -> Option<T>, default: T) -> Setting<T> {
        let ordered = [
            (Origin::Flag, &self.flags),
            (Origin::Environment, &self.environment),
            (Origin::File, &self.file),
        ];
        ordered
            .into_iter()
            .find_map(|(origin, layer)| {
                Some(Setting {
                    value: field(layer)?,
                    origin,
                })
            })
            .unwrap_or(Setting {
                value: default,
                origin: Origin::Default,
            })
    }
}

/// The environment variables that the help of a command line names, for tests that compare them with
/// those that are read.
pub fn variables_in_help(command: &clap::Command) -> BTreeSet<String> {
    let helps = command
        .get_arguments()
        .filter_map(|argument| argument.get_help());
    let named = helps.filter_map(|help| {
        let help = help.to_string();
        let (_, rest) = help.split_once("[env: ")?;
        Some(rest.split_once(']')?.0.to_owned())
    });
    named
        .chain(command.get_subcommands().flat_map(variables_in_help))
        .collect()
}

impl SharedArguments {
    /// Reads the settings of a command that has no flags of its own in them.
    pub fn load<L: Layer>(self) -> Result<Layers<L>, ConfigError> {
        Layers::load(self.config, L::of_log(self.log))
    }

    /// Starts logging as flags, environment and file say.
    pub fn start_logging<L: Layer>(self) -> Result<LogFilter, ConfigError> {
        Ok(logging::start(&self.load::<L>()?.log()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(level: Option<&str>) -> LogOnly {
        let mut layer = LogOnly::default();
        layer.log.level = level.map(|text| text.parse().unwrap());
        layer
    }

    #[test]
    fn the_strongest_source_wins_in_every_combination() {
        for given in 0..8 {
            let [flag, variable, file] = [4, 2, 1].map(|bit| given & bit != 0);
            let layers = Layers {
                flags: layer(flag.then_some("error")),
                environment: layer(variable.then_some("warn")),
                file: layer(file.then_some("debug")),
                path: None,
            };
            let expected = match (flag, variable, file) {
                (true, _, _) => ("error", Origin::Flag),
                (_, true, _) => ("warn", Origin::Environment),
                (_, _, true) => ("debug", Origin::File),
                _ => ("info", Origin::Default),
            };
            let Setting { value, origin } = layers.log().level;
            assert_eq!((value.to_string().as_str(), origin), expected);
        }
    }

    #[test]
    fn sources_are_chosen_for_each_setting_alone() {
        let mut layers = Layers {
            flags: layer(Some("trace")),
            ..Layers::default()
        };
        layers.file.log.format = Some(LogFormat::Json);
        let LogConfig { format, level } = layers.log();
        assert_eq!(
            (format.value, format.origin),
            (LogFormat::Json, Origin::File)
        );
        assert_eq!(level.origin, Origin::Flag);
    }
}
