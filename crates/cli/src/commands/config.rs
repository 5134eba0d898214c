use clap::Args;
use tracing::debug;

use crate::{
    args::SharedArguments,
    config::{Config, Layer},
    logging, output,
};

#[derive(Debug, Args)]
pub(crate) struct ConfigArguments {
    /// How to print it: yaml can be read back with --config
    #[arg(long, short, value_name = "FORMAT", default_value = "yaml")]
    output: Format,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Format {
    Yaml,
    Json,
}

pub(crate) fn run(arguments: &ConfigArguments, shared: SharedArguments) -> anyhow::Result<()> {
    let flags = Layer {
        log: shared.log,
        ..Layer::default()
    };
    let config = Config::load(shared.config, flags)?;
    logging::start(&config.log);
    debug!(file = ?config.file, "configuration resolved");
    let settings = config.settings();
    match arguments.output {
        Format::Yaml => output::text(&settings.to_string()),
        Format::Json => output::json(&settings),
    }
}
