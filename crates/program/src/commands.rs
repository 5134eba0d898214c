//! The commands that both programs have.

use std::io::{self, Write as _};

use anyhow::Context as _;
use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::Shell;

use crate::{build::BuildInfo, config::Settings, output};

/// The format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// Lines for people
    Text,
    /// JSON for programs
    Json,
}

/// Arguments of `version`.
#[derive(Debug, Args)]
pub struct VersionArguments {
    /// Format of the output
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    output: ReportFormat,
}

impl VersionArguments {
    /// Prints the version and how the program was built.
    pub fn run(&self, build: &BuildInfo) -> anyhow::Result<()> {
        match self.output {
            ReportFormat::Text => output::text(&build.to_string()),
            ReportFormat::Json => output::json(build),
        }
    }
}

/// Arguments of `config`.
#[derive(Debug, Args)]
pub struct ConfigArguments {
    /// Format of the output; yaml can be read back with --config
    #[arg(long, short, value_name = "FORMAT", default_value = "yaml")]
    output: SettingsFormat,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SettingsFormat {
    Yaml,
    Json,
}

impl ConfigArguments {
    /// Prints the settings and the source of each.
    pub fn run(&self, settings: &Settings) -> anyhow::Result<()> {
        match self.output {
            SettingsFormat::Yaml => output::text(&settings.to_string()),
            SettingsFormat::Json => output::json(settings),
        }
    }
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// The shell that will read the script
    shell: Shell,
}

impl CompletionsArguments {
    /// Prints the completion script of a program.
    pub fn run<C: CommandFactory>(&self) -> anyhow::Result<()> {
        let mut command = C::command();
        let name = command.get_name().to_owned();
        // Collected first: the generator panics when it cannot write.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        io::stdout()
            .write_all(&script)
            .context("cannot write the completion script")
    }
}
