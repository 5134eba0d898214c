//! The real API server: requests, and what it says about itself.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use http::Request;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::Value;
use tokio::time;

use super::exposition;

/// Watches are closed in the server's own time.
const SETTLING: Duration = Duration::from_secs(60);

/// A server with more to do than it can says one of these.
const TRANSIENT: [u16; 4] = [429, 500, 503, 504];
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(super) struct Server {
    client: Client,
}

impl Server {
    pub(super) async fn connect(kubeconfig: &Path) -> anyhow::Result<Self> {
        let read = Kubeconfig::read_from(kubeconfig)
            .with_context(|| format!("read {}", kubeconfig.display()))?;
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
        let client = weft_runtime::connect(&config, None)?;
        Ok(Self { client })
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<()> {
        self.send("POST", path, "application/json", body).await
    }

    pub(super) async fn merge(&self, path: &str, body: &Value) -> anyhow::Result<()> {
        let kind = "application/merge-patch+json";
        self.send("PATCH", path, kind, body).await
    }

    pub(super) async fn delete(&self, path: &str, body: &Value) -> anyhow::Result<()> {
        self.send("DELETE", path, "application/json", body).await
    }

    /// Sends, and once more when the server could not do it in time. Everything sent here may be
    /// repeated: what is there already is as good as created.
    async fn send(&self, method: &str, path: &str, kind: &str, body: &Value) -> anyhow::Result<()> {
        let body = body.to_string().into_bytes();
        let mut attempt = 1;
        loop {
            let request = Request::builder()
                .method(method)
                .uri(path)
                .header("content-type", kind)
                .body(body.clone())?;
            match self.client.request::<Value>(request).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if attempt > 1 && status.code == 409 => {
                    return Ok(());
                }
                Err(kube::Error::Api(status))
                    if attempt < ATTEMPTS && TRANSIENT.contains(&status.code) =>
                {
                    attempt += 1;
                    time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error).with_context(|| format!("{method} {path}")),
            }
        }
    }

    /// What the server calls itself.
    pub(super) async fn version(&self) -> anyhow::Result<String> {
        let version = self.client.apiserver_version().await?;
        Ok(format!("kube-apiserver {}", version.git_version))
    }

    async fn metrics(&self) -> anyhow::Result<String> {
        let request = Request::get("/metrics").body(Vec::new())?;
        Ok(self.client.request_text(request).await?)
    }

    /// Open watches of a resource of the core group, whoever holds them.
    pub(super) async fn open_watches(&self, resource: &str) -> anyhow::Result<f64> {
        let labels = [("verb", "WATCH"), ("resource", resource), ("group", "")];
        let text = self.metrics().await?;
        Ok(exposition::sum(
            &text,
            "apiserver_longrunning_requests",
            &labels,
        ))
    }

    /// Processor time of the server so far.
    pub(super) async fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let text = self.metrics().await?;
        let seconds = exposition::sum(&text, "process_cpu_seconds_total", &[]);
        ensure!(
            seconds > 0.0,
            "the server does not tell its processor time: is this a kube-apiserver?"
        );
        Ok(seconds)
    }

    /// Waits until a resource has no more open watches than before; the number left.
    pub(super) async fn settle(&self, resource: &str, before: f64) -> anyhow::Result<f64> {
        let deadline = time::Instant::now() + SETTLING;
        loop {
            let open = self.open_watches(resource).await?;
            if open <= before || time::Instant::now() > deadline {
                return Ok(open);
            }
            time::sleep(Duration::from_millis(200)).await;
        }
    }
}
