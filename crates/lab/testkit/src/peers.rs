//! Programs of other projects, where `make peers` built them.

use std::{env, path::PathBuf};

/// A peer's program; none is no failure unless `WEFT_MUST_RUN_PEERS` says so.
///
/// # Panics
/// When it must be run and is not there.
pub fn peer(name: &str) -> Option<PathBuf> {
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".cache/weft/peers/v1.36.4/bin"));
    let cache = env::var_os("WEFT_PEERS").map(PathBuf::from).or_else(home)?;
    let found = Some(cache.join(name)).filter(|path| path.is_file());
    assert!(
        found.is_some() || env::var_os("WEFT_MUST_RUN_PEERS").is_none(),
        "{name} is not in {}: run `make peers`",
        cache.display()
    );
    if found.is_none() {
        eprintln!("not run: {name} is not in {}", cache.display());
    }
    found
}
