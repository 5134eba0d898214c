//! Unchanged Go clients, where `make peers` built them.

mod informers;
mod kube_proxy;
mod kubectl;

use std::path::PathBuf;

use weft_apiserver::{ApiServer, RunConfig};

/// A peer's binary; none is no failure unless `WEFT_MUST_RUN_PEERS` says so.
fn peer(name: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("WEFT_PEERS")
        .map(PathBuf::from)
        .or_else(|| {
            Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/weft/peers/v1.36.4/bin"))
        })?;
    let found = Some(cache.join(name)).filter(|path| path.is_file());
    assert!(
        found.is_some() || std::env::var_os("WEFT_MUST_RUN_PEERS").is_none(),
        "{name} is not in {}: run `make peers`",
        cache.display()
    );
    if found.is_none() {
        eprintln!("not run: {name} is not in {}", cache.display());
    }
    found
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A server with its kubeconfig in a directory.
async fn serve() -> (ApiServer, tempfile::TempDir) {
    let home = tempfile::tempdir().unwrap();
    let mut config = RunConfig::new("127.0.0.1:0".parse().unwrap());
    config.kubeconfig = Some(home.path().join("kubeconfig"));
    (weft_apiserver::start(config).await.unwrap(), home)
}
