//! Unmodified Go clients, where `make peers` built them.

mod informers;
mod kube_proxy;
mod kubectl;
mod kubectl_comparison;

use weft_apiserver::{ApiServer, RunConfig};
use weft_testkit::{not_run, peer};

const MANIFEST: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: 'i:1', env: [{name: A, value: '1'}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Starts a server and writes its kubeconfig to a directory.
async fn serve() -> (ApiServer, tempfile::TempDir) {
    let home = tempfile::tempdir().unwrap();
    let mut config = RunConfig::new("127.0.0.1:0".parse().unwrap());
    config.kubeconfig = Some(home.path().join("kubeconfig"));
    (weft_apiserver::start(config).await.unwrap(), home)
}
