//! Unchanged Go clients, where `make peers` built them.

mod both;
mod informers;
mod kube_proxy;
mod kubectl;

use weft_apiserver::{ApiServer, RunConfig};
use weft_testkit::peer;

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
