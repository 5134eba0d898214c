//! Debian root file systems: the nodes of a cluster and the lower layer of images.
//!
//! mmdebstrap installs them with this machine's own apt sources, so nothing has to be configured.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};

use crate::process;

/// A root file system, by name, and what is installed in it.
pub(crate) struct Root {
    pub(crate) name: &'static str,
    packages: &'static [&'static str],
}

/// The machine that a node pretends to be; it is also what e2e tests expect of their images: the
/// original agnhost has BusyBox, whose programs are these.
pub(crate) const NODE: Root = Root {
    name: "root-machine",
    packages: &[
        "ca-certificates",
        "conntrack",
        "curl",
        "dnsutils",
        "ethtool",
        "iproute2",
        "ipset",
        "iptables",
        "iputils-ping",
        "kmod",
        "mount",
        "net-tools",
        "netcat-openbsd",
        "nftables",
        "procps",
        "runc",
        "socat",
        "wget",
    ],
};

/// The lower layer of the image weft-node, with the packages that its Dockerfile installs.
pub(crate) const WEFT_NODE: Root = Root {
    name: "root-weft-node",
    packages: &["containernetworking-plugins", "iptables", "kmod"],
};

/// The lower layer of the image weft-controller: a C library and certificates.
pub(crate) const WEFT_CONTROLLER: Root = Root {
    name: "root-weft-controller",
    packages: &["ca-certificates"],
};

/// A Prometheus for the alert rules. It runs with this machine's C library, which is of the same
/// release.
pub(crate) const PROMETHEUS: Root = Root {
    name: "root-prometheus",
    packages: &["prometheus"],
};

impl Root {
    /// Its directory, made unless it is there.
    pub(crate) fn ensure(&self, cache: &Path) -> anyhow::Result<PathBuf> {
        let directory = cache.join(self.name);
        let stamp = cache.join(format!("{}-recipe", self.name));
        let recipe = self.recipe()?;
        if directory.is_dir() && fs::read_to_string(&stamp).is_ok_and(|made| made == recipe) {
            return Ok(directory);
        }
        ensure!(
            rustix::process::geteuid().is_root(),
            "cannot make the root file system {}: it takes root",
            self.name
        );
        let part = cache.join(format!("{}.part", self.name));
        for old in [&directory, &part] {
            if old.exists() {
                fs::remove_dir_all(old)
                    .with_context(|| format!("cannot remove {}", old.display()))?;
            }
        }
        let include = format!("--include={}", self.packages.join(","));
        // What it mounts in the new root ends with it, also when it is killed: the next run removes
        // that root with everything below.
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation=private", "--", "mmdebstrap"])
            .args(["--quiet", "--variant=minbase", &include, &codename()?])
            .arg(&part)
            .args(sources()?);
        process::run(&mut command)?;
        for waste in [
            "var/cache/apt",
            "var/lib/apt/lists",
            "usr/share/doc",
            "usr/share/man",
        ] {
            // They are missing in some variants of Debian.
            let _ = fs::remove_dir_all(part.join(waste));
        }
        fs::rename(&part, &directory)
            .with_context(|| format!("cannot move {} into place", part.display()))?;
        fs::write(&stamp, recipe).context("cannot write the stamp")?;
        Ok(directory)
    }

    /// Changes when the result would.
    fn recipe(&self) -> anyhow::Result<String> {
        Ok(format!("{} {}\n", codename()?, self.packages.join(" ")))
    }
}

/// This machine's release: packages come from its own sources.
fn codename() -> anyhow::Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .map(|name| name.trim_matches('"').to_owned())
        .context("/etc/os-release has no VERSION_CODENAME: Debian or Ubuntu is needed")
}

/// Files in which apt keeps its sources.
fn sources() -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for name in ["debian.sources", "ubuntu.sources"] {
        files.push(Path::new("/etc/apt/sources.list.d").join(name));
    }
    files.push("/etc/apt/sources.list".into());
    files.retain(|file| {
        fs::read_to_string(file).is_ok_and(|text| text.contains("URIs:") || text.contains("deb "))
    });
    ensure!(!files.is_empty(), "cannot find apt's sources in /etc/apt");
    Ok(files)
}
