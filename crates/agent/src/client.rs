//! How agents reach the API server.

use std::{error::Error, path::PathBuf};

use kube::config::{KubeConfigOptions, Kubeconfig};

/// How to reach the API server: by a kubeconfig, or as this machine is set up.
pub async fn config(
    kubeconfig: Option<PathBuf>,
    master: Option<&str>,
) -> Result<kube::Config, Box<dyn Error + Send + Sync>> {
    let url = master.map(str::parse::<axum::http::Uri>).transpose()?;
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

/// Reads a page of a running agent. Its certificate is made up as a rule, so it is believed on
/// loopback without a look; elsewhere it has to be one that this machine trusts.
pub async fn page(
    server: &str,
    path: &str,
    token: Option<String>,
) -> Result<String, Box<dyn Error + Send + Sync>> {
    let url: axum::http::Uri = server.parse()?;
    let host = url.host().unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    let local = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
    let mut config = kube::Config::new(url);
    config.accept_invalid_certs = local;
    config.auth_info.token = token.map(Into::into);
    let client = kube::Client::try_from(config)?;
    let request = axum::http::Request::get(path).body(Vec::new())?;
    Ok(client.request_text(request).await?)
}
