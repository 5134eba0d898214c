//! `cargo xtask clean`.

use crate::{
    cluster, kubernetes, peers,
    process::{self, cargo},
};

/// Stops what was started and removes what was built, but not the peers: they take long to build.
pub(crate) fn run() -> anyhow::Result<()> {
    cluster::clean()?;
    kubernetes::down()?;
    process::run(cargo().arg("clean"))?;
    let peers = peers::directory()?;
    if peers.exists() {
        eprintln!("kept the peers in {}", peers.display());
    }
    Ok(())
}
