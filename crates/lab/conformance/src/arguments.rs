//! Arguments that all comparisons share.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Common {
    /// Path of the weft program to compare.
    #[arg(long)]
    pub(crate) weft: PathBuf,
    /// Directory of the peers' programs, built by `make peers`.
    #[arg(long)]
    pub(crate) peers: PathBuf,
    /// Directory for the outcome.
    #[arg(long)]
    pub(crate) output: PathBuf,
    /// Run a small load that shows that the comparison works; no target is judged.
    #[arg(long)]
    pub(crate) quick: bool,
}
