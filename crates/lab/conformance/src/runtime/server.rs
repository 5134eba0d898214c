//! Client of the real API server: writes with retries, version and metrics.

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

/// Time limit for the server to close watches.
const SETTLING: Duration = Duration::from_secs(60);

/// Status codes of an overloaded server.
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
            .with_context(|| format!("cannot read {}", kubeconfig.display()))?;
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

    /// Sends a request, and retries while the server is overloaded. Every request may be repeated:
    /// a conflict on a retry means that the first attempt succeeded.
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

    /// Name and version of the server.
    pub(super) async fn version(&self) -> anyhow::Result<String> {
        let version = self.client.apiserver_version().await?;
        Ok(format!("kube-apiserver {}", version.git_version))
    }

    async fn metrics(&self) -> anyhow::Result<String> {
        let request = Request::get("/metrics").body(Vec::new())?;
        Ok(self.client.request_text(request).await?)
    }

    /// Number of open watches of a core resource, of all clients.
    pub(super) async fn open_watches(&self, resource: &str) -> anyhow::Result<f64> {
        let labels = [("verb", "WATCH"), ("resource", resource), ("group", "")];
        let text = self.metrics().await?;
        Ok(exposition::sum(
            &text,
            "apiserver_longrunning_requests",
            &labels,
        ))
    }

    /// Processor time of the server since its start.
    pub(super) async fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let text = self.metrics().await?;
        let seconds = exposition::sum(&text, "process_cpu_seconds_total", &[]);
        ensure!(
            seconds > 0.0,
            "cannot read process_cpu_seconds_total of the server: expected a kube-apiserver"
        );
        Ok(seconds)
    }

    /// Waits until a resource has at most `before` open watches, or for a minute. Returns the number
    /// of open watches.
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
