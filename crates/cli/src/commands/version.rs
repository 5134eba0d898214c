use clap::Args;

use crate::{build::BuildInfo, output};

#[derive(Debug, Args)]
pub(crate) struct VersionArguments {
    /// How to print it
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    output: Format,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Format {
    Text,
    Json,
}

pub(crate) fn run(arguments: &VersionArguments) -> anyhow::Result<()> {
    let info = BuildInfo::of_this_program();
    match arguments.output {
        Format::Text => output::text(&info.to_string()),
        Format::Json => output::json(&info),
    }
}
