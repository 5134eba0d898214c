//! What every comparison is told.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Common {
    /// The program under test.
    #[arg(long)]
    pub(crate) weft: PathBuf,
    /// The directory of the pinned peers' programs.
    #[arg(long)]
    pub(crate) peers: PathBuf,
    /// Where the outcome goes.
    #[arg(long)]
    pub(crate) output: PathBuf,
    /// Only show that it runs; nothing is judged.
    #[arg(long)]
    pub(crate) quick: bool,
}
