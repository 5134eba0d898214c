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
    if found.is_none() {
        not_run(&format!(
            "{name} is not in {}: run `make peers`",
            cache.display()
        ));
    }
    found
}

/// Reports that a test without its peer, browser or server passes without having run.
///
/// # Panics
/// If `WEFT_MUST_RUN_PEERS` is set.
pub fn not_run(reason: &str) {
    assert!(
        env::var_os("WEFT_MUST_RUN_PEERS").is_none(),
        "WEFT_MUST_RUN_PEERS forbids skipping this test: {reason}"
    );
    eprintln!("not run: {reason}");
}
