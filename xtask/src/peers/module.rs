//! The generated Go module: text in, text out.

use std::{fmt::Write as _, fs};

use anyhow::Context as _;
use serde::Deserialize;

/// The Kubernetes release that we compare ourselves with.
pub(crate) const KUBERNETES: &str = "v1.36.4";
/// The newest minor version: its kube-proxy stands beside ours as well.
pub(super) const NEWEST: &str = "v1.37.1";
/// The staging modules of the release that we compare ourselves with.
const STAGING: &str = "v0.36.4";
/// The etcd that this Kubernetes release itself is tested with: an older one makes the API server
/// refuse streaming lists.
pub(super) const ETCD: &str = "v3.6.8";

/// Enough of a module to ask questions in.
pub(super) const BARE: &str = "module weft-peers\n\ngo 1.26.0\n";

/// etcd publishes its server as a library; its main function is one call.
pub(super) const ETCD_MAIN: &str = r#"package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
"#;

/// The controller-runtime that is made for this Kubernetes release.
const CONTROLLER_RUNTIME: &str = "v0.24.1";

/// The module of the controller that the tests of the embedded API server run.
pub(super) fn informers_go_mod() -> String {
    on_controller_runtime("informers")
}

/// The module of the cache that is compared with the runtime's.
pub(super) fn cache_go_mod() -> String {
    on_controller_runtime("cache")
}

fn on_controller_runtime(name: &str) -> String {
    format!(
        "module weft-{name}\n\ngo 1.26.0\n\nrequire (\n\tk8s.io/api {STAGING}\n\
         \tk8s.io/apimachinery {STAGING}\n\tk8s.io/client-go {STAGING}\n\
         \tsigs.k8s.io/controller-runtime {CONTROLLER_RUNTIME}\n)\n"
    )
}

/// The client of Hetzner's API that hcloud-cloud-controller-manager uses.
const HCLOUD: &str = "v2.47.0";

/// The module of the cloud-controller-manager whose route controller is compared.
pub(super) fn ccm_go_mod() -> String {
    format!(
        "module weft-ccm\n\ngo 1.26.0\n\nrequire (\n\
         \tgithub.com/hetznercloud/hcloud-go/v2 {HCLOUD}\n\tk8s.io/api {STAGING}\n\
         \tk8s.io/apimachinery {STAGING}\n\tk8s.io/client-go {STAGING}\n\
         \tk8s.io/cloud-provider {STAGING}\n\tk8s.io/component-base {STAGING}\n\
         \tk8s.io/klog/v2 v2.140.0\n)\n"
    )
}

/// The CNI project's own plugins; since this minor version they speak CNI 1.1.
pub(super) const PLUGINS: &str = "v1.6.2";

/// The module of the CNI plugins.
pub(super) fn plugins_go_mod() -> String {
    format!(
        "module weft-plugins\n\ngo 1.26.0\n\nrequire github.com/containernetworking/plugins {PLUGINS}\n"
    )
}

/// The container runtime of the cluster's nodes.
pub(super) const CONTAINERD: &str = "v2.3.7";

/// The module of containerd.
pub(super) fn containerd_go_mod() -> String {
    format!(
        "module weft-containerd\n\ngo 1.26.0\n\nrequire github.com/containerd/containerd/v2 {CONTAINERD}\n"
    )
}

/// The DNS server of the cluster.
const COREDNS: &str = "v1.14.1";

/// The module of CoreDNS.
pub(super) fn coredns_go_mod() -> String {
    format!("module weft-coredns\n\ngo 1.26.0\n\nrequire github.com/coredns/coredns {COREDNS}\n")
}

/// A module as the proxy published it.
pub(super) struct Published {
    /// The text of its `go.mod`.
    pub(super) go_mod: String,
    /// The release date, stamped as build date so that builds are reproducible.
    pub(super) time: String,
}

impl Published {
    /// Follows the answer of `go mod download -json`.
    pub(super) fn read(answer: &str) -> anyhow::Result<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Files {
            info: String,
            go_mod: String,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Info {
            time: String,
        }
        let files: Files = serde_json::from_str(answer)?;
        let read = |path: &str| fs::read_to_string(path).with_context(|| format!("read {path}"));
        let info: Info = serde_json::from_str(&read(&files.info)?)?;
        Ok(Self {
            go_mod: read(&files.go_mod)?,
            time: info.time,
        })
    }
}

/// The module that requires Kubernetes and etcd.
pub(super) fn go_mod(kubernetes: &str) -> String {
    let required =
        format!("\tgo.etcd.io/etcd/server/v3 {ETCD}\n\tk8s.io/kubernetes {KUBERNETES}\n");
    module(&required, kubernetes, STAGING)
}

/// The module that requires the newest Kubernetes.
pub(super) fn newest_go_mod(kubernetes: &str) -> String {
    // Staging modules carry Kubernetes' minor and patch version under major version 0.
    let staging = NEWEST.replacen("v1.", "v0.", 1);
    module(
        &format!("\tk8s.io/kubernetes {NEWEST}\n"),
        kubernetes,
        &staging,
    )
}

/// Kubernetes replaces its staging modules by directories of its own repository. A dependent
/// module has to replace each of them by the version published beside the release.
fn module(required: &str, kubernetes: &str, staging: &str) -> String {
    let mut text = format!("{BARE}\nrequire (\n{required})\n\nreplace (\n");
    for module in staging_modules(kubernetes) {
        writeln!(text, "\t{module} => {module} {staging}").expect("a string takes any text");
    }
    text.push_str(")\n");
    text
}

fn staging_modules(go_mod: &str) -> impl Iterator<Item = &str> {
    go_mod.lines().filter_map(|line| {
        let (module, path) = line
            .trim()
            .trim_start_matches("replace ")
            .split_once(" => ")?;
        path.starts_with("./staging/").then_some(module)
    })
}

/// Linker flags that drop debug tables and stamp the version as a release build does.
pub(super) fn link_flags(release: &str, build_date: &str) -> String {
    let version: Vec<&str> = release.trim_start_matches('v').split('.').collect();
    let values = [
        ("gitVersion", release),
        ("gitMajor", version[0]),
        ("gitMinor", version[1]),
        ("gitCommit", ""),
        ("gitTreeState", "clean"),
        ("buildDate", build_date),
    ];
    let mut flags = "-s -w".to_owned();
    for package in [
        "k8s.io/component-base/version",
        "k8s.io/client-go/pkg/version",
    ] {
        for (name, value) in values {
            write!(flags, " -X '{package}.{name}={value}'").expect("a string takes any text");
        }
    }
    flags
}

/// `go1.26.8` as (1, 26); also `go1.27rc1` and what distributions append.
pub(super) fn parse_go_version(text: &str) -> Option<(u32, u32)> {
    let (major, rest) = text.strip_prefix("go")?.split_once('.')?;
    let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_staging_module_is_replaced_by_its_published_version() {
        let upstream = "module k8s.io/kubernetes\n\nrequire (\n\tk8s.io/api v0.0.0\n)\n\nreplace (\n\
                        \tk8s.io/api => ./staging/src/k8s.io/api\n\
                        \tk8s.io/client-go => ./staging/src/k8s.io/client-go\n\
                        \texample.org/fork => example.org/other v1.0.0\n)\n\
                        replace k8s.io/kms => ./staging/src/k8s.io/kms\n";
        let text = go_mod(upstream);
        let replaced: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("=>"))
            .map(str::trim)
            .collect();
        assert_eq!(
            replaced,
            [
                "k8s.io/api => k8s.io/api v0.36.4",
                "k8s.io/client-go => k8s.io/client-go v0.36.4",
                "k8s.io/kms => k8s.io/kms v0.36.4",
            ]
        );
    }

    #[test]
    fn go_versions_compare_as_numbers() {
        assert_eq!(parse_go_version("go1.26.8"), Some((1, 26)));
        assert_eq!(parse_go_version("go1.27rc1"), Some((1, 27)));
        assert_eq!(parse_go_version("go1.26-custom"), Some((1, 26)));
        assert!(parse_go_version("go1.9.2").unwrap() < (1, 26));
        assert_eq!(parse_go_version("devel"), None);
    }
}
