use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::{
    commands::{
        completions::CompletionsArguments, config::ConfigArguments, version::VersionArguments,
    },
    logging::{LogDirectives, LogFormat},
};

const AFTER_HELP: &str = "\
Configuration:
  A flag wins over its environment variable, that over the file given with --config, and that
  over the default. `weft config` prints the result and where each value came from.

Exit codes:
  0  done
  1  failed
  2  the command line, the environment or the configuration file is wrong";

/// Kubernetes networking that does only the work that changed.
#[derive(Debug, Parser)]
#[command(name = "weft", version, after_help = AFTER_HELP, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) shared: SharedArguments,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every verb understands.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct SharedArguments {
    /// Read settings from this YAML file [env: WEFT_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Write log lines as text or json, to stderr [env: WEFT_LOG_FORMAT] [default: text]
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        hide_possible_values = true
    )]
    pub(crate) log_format: Option<LogFormat>,
    /// Log what passes this filter: a level, or info,weft_runtime=debug
    /// [env: WEFT_LOG_LEVEL] [default: info]
    #[arg(long, global = true, value_name = "FILTER")]
    pub(crate) log_level: Option<LogDirectives>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the effective configuration and where each value came from
    Config(ConfigArguments),
    /// Print a completion script for a shell
    Completions(CompletionsArguments),
    /// Print the version and how this program was built
    Version(VersionArguments),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_definition_is_consistent() {
        Arguments::command().debug_assert();
    }
}
