//! Configuration of the API client, and reading of a diagnostics page of a running agent.

use std::{error::Error, path::PathBuf};

use kube::config::{KubeConfigOptions, Kubeconfig};

/// The client configuration from a kubeconfig, or without one from the pod's ServiceAccount or
/// `~/.kube/config`. `master` replaces the URL of the API server, as `--master` of kube-proxy does.
pub async fn config(
    kubeconfig: Option<PathBuf>,
    master: Option<&str>,
) -> Result<kube::Config, Box<dyn Error + Send + Sync>> {
    let url = master.map(str::parse::<http::Uri>).transpose()?;
    let mut config = match (kubeconfig, &url) {
        (Some(path), _) => {
            let kubeconfig = Kubeconfig::read_from(path)?;
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?
        }
        (None, Some(url)) => kube::Config::new(url.clone()),
        (None, None) => match kube::Config::incluster() {
            Ok(config) => config,
            Err(_) => kube::Config::infer().await?,
        },
    };
    if let Some(url) = url {
        config.cluster_url = url;
    }
    Ok(config)
}

/// Reads a page of a running agent. Most agents serve a self-signed certificate, so on loopback the
/// certificate is not verified; elsewhere this machine has to trust it.
pub async fn page(
    server: &str,
    path: &str,
    token: Option<String>,
) -> Result<String, Box<dyn Error + Send + Sync>> {
    let url: http::Uri = server.parse()?;
    let host = url.host().unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    let local = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
    let mut config = kube::Config::new(url);
    config.accept_invalid_certs = local;
    config.auth_info.token = token.map(Into::into);
    let client = kube::Client::try_from(config)?;
    let request = http::Request::get(path).body(Vec::new())?;
    Ok(client.request_text(request).await?)
}
