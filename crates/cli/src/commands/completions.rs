use std::io::{self, Write as _};

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::args;

#[derive(Debug, Args)]
pub(crate) struct CompletionsArguments {
    /// The shell that will read the script
    shell: Shell,
}

pub(crate) fn run(arguments: &CompletionsArguments) -> anyhow::Result<()> {
    // Collected first: the generator panics when it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(
        arguments.shell,
        &mut args::Arguments::command(),
        "weft",
        &mut script,
    );
    io::stdout()
        .write_all(&script)
        .context("write the completion script")
}
