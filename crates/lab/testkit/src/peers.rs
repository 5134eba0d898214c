//! Paths of other projects' programs that `make peers` built.

use std::{env, path::PathBuf};

/// The path of a peer's program, or None if it was not built.
///
/// # Panics
/// If it was not built and `WEFT_MUST_RUN_PEERS` is set.
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
