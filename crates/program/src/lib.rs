//! The command-line shell of the programs `weft` and `weft-lab`: configuration, logging, signals,
//! output, exit codes, and the commands that both have.
//!
//! [`config`] has the one precedence order of settings: flag, environment, file, default.

pub mod build;
pub mod commands;
pub mod config;
mod exit;
pub mod logging;
pub mod output;
pub mod signals;

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use crate::config::LogLayer;

/// The end of the help of both programs.
pub const AFTER_HELP: &str = "\
Configuration:
  A flag takes precedence over its environment variable, the variable over the file given with
  --config, and the file over the default. The command `config` prints the result and the source
  of each value.

Exit codes:
  0  done, or stopped cleanly by SIGINT or SIGTERM
  1  failed
  2  the command line, the environment or the configuration file is wrong
  3  ended at once by a second SIGINT or SIGTERM

Signals of long-running commands:
  SIGINT, SIGTERM  stop cleanly
  SIGUSR1          set the log level to debug
  SIGUSR2          set the log level back to the configured one";

/// The flags that every command has.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct SharedArguments {
    /// YAML file with settings [env: WEFT_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Flags of logging.
    #[command(flatten)]
    pub log: LogLayer,
}

/// Prepares the process, runs a command and reports its outcome as exit code.
pub fn run(command: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    // Once for the process: with two providers to choose from, rustls would choose none.
    let provider = rustls::crypto::ring::default_provider();
    provider
        .install_default()
        .expect("no other code of this process installs a provider");
    // Listeners, watches and health checks of Services need more than the default of 1,024. Without
    // the right to raise it, each listener takes its share of what there is.
    let _ = weft_listener::raise_descriptor_limit();
    exit::report(command())
}
