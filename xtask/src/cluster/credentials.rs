//! Certificates and kubeconfigs of a cluster.

use std::{fs, net::IpAddr, path::Path};

use anyhow::Context as _;
use serde_json::json;

use super::settings::{Settings, node_name};
use crate::authority::{self, Authority, Pair};

const MASTERS: &str = "system:masters";

/// Writes every file that the control plane, nodes and people need into a directory.
pub(super) fn write(settings: &Settings, directory: &Path) -> anyhow::Result<()> {
    let families = settings.families;
    let authority = Authority::generate("weft-cluster")?;
    let front = Authority::generate("weft-cluster-front-proxy")?;
    let files = Files(directory);
    let mut addresses: Vec<IpAddr> = vec!["127.0.0.1".parse()?, "::1".parse()?];
    addresses.extend(families.addresses(1));
    addresses.extend(families.service_addresses());
    let names = [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ];
    files.pair("ca", &authority.pair())?;
    files.pair("front", &front.pair())?;
    let serving = authority.server("kube-apiserver", &names, &addresses)?;
    files.pair("apiserver", &serving)?;
    let client = authority.user("apiserver-kubelet-client", Some(MASTERS))?;
    files.pair("kubelet-client", &client)?;
    files.pair("front-client", &front.user("front-proxy-client", None)?)?;
    let (public, private) = authority::key_pair()?;
    files.text("service-account.pub", &public)?;
    files.text("service-account.key", &private)?;
    let mut users = vec![
        ("admin".to_owned(), "admin".to_owned(), Some(MASTERS)),
        component("kube-controller-manager"),
        component("kube-scheduler"),
        component("kube-proxy"),
    ];
    for node in settings.numbers().map(node_name) {
        let user = format!("system:node:{node}");
        users.push((node, user, Some("system:nodes")));
    }
    for (file, user, group) in users {
        let pair = authority.user(&user, group)?;
        files.kubeconfig(&file, &families.api_url(), &pair)?;
    }
    Ok(())
}

fn component(name: &str) -> (String, String, Option<&'static str>) {
    (name.to_owned(), format!("system:{name}"), None)
}

/// The kubeconfig of the administrator through another address of the API server.
pub(super) fn kubeconfig_for(directory: &Path, url: &str) -> anyhow::Result<String> {
    let path = directory.join("admin.kubeconfig");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut kubeconfig: serde_json::Value = serde_json::from_str(&text)?;
    kubeconfig["clusters"][0]["cluster"]["server"] = json!(url);
    Ok(kubeconfig.to_string())
}

struct Files<'a>(&'a Path);

impl Files<'_> {
    fn text(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.0.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    fn pair(&self, name: &str, pair: &Pair) -> anyhow::Result<()> {
        self.text(&format!("{name}.crt"), &pair.certificate)?;
        self.text(&format!("{name}.key"), &pair.key)
    }

    fn kubeconfig(&self, name: &str, url: &str, pair: &Pair) -> anyhow::Result<()> {
        // Files next to it: a kubeconfig has data in base64 only.
        self.pair(name, pair)?;
        let file = |ending: &str| self.0.join(format!("{name}.{ending}"));
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "weft", "cluster": {
                "server": url, "certificate-authority": self.0.join("ca.crt")}}],
            "users": [{"name": name, "user": {
                "client-certificate": file("crt"), "client-key": file("key")}}],
            "contexts": [{"name": "weft", "context": {"cluster": "weft", "user": name}}],
            "current-context": "weft",
        });
        self.text(&format!("{name}.kubeconfig"), &kubeconfig.to_string())
    }
}
