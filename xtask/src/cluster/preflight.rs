//! Checks before anything is built or changed: rights, memory, disk, kernel.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, bail, ensure};

use super::{cgroups::Cgroups, require};
use crate::{images, peers, process};

/// Memory of three nodes with e2e tests, and what is built from scratch.
const MEMORY_MEGABYTES: u64 = 3_000;
/// Programs, roots and images, and the nodes' own copies of the images.
const DISK_MEGABYTES: u64 = 12_000;
/// Without the builds.
const DISK_MEGABYTES_BUILT: u64 = 5_000;

/// Fails with the first thing that is missing.
pub(super) fn check() -> anyhow::Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "cannot start a cluster: it takes root (nodes mount file systems and make namespaces)"
    );
    for program in ["unshare", "nsenter", "setpriv", "ip", "tar", "cc", "strip"] {
        require(program)?;
    }
    if !peers::has_cluster() {
        ensure!(
            process::find("go").is_some(),
            "cannot build the cluster's programs: Go 1.26 or newer is missing"
        );
    }
    Cgroups::named("weft-cluster-check")?;
    let memory = available_memory()?;
    ensure!(
        memory >= MEMORY_MEGABYTES,
        "cannot start a cluster: it takes {MEMORY_MEGABYTES} MB of memory, and {memory} MB are available"
    );
    let wanted = if peers::has_cluster() {
        DISK_MEGABYTES_BUILT
    } else {
        DISK_MEGABYTES
    };
    let cache = images::cache()?;
    let free = free_disk(&cache)?;
    ensure!(
        free >= wanted,
        "cannot start a cluster: it takes {wanted} MB of disk, and {free} MB are free at {}",
        cache.display()
    );
    kernel()
}

fn available_memory() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .context("/proc/meminfo has no MemAvailable")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes / 1024)
}

fn free_disk(directory: &Path) -> anyhow::Result<u64> {
    let state = rustix::fs::statvfs(directory)
        .with_context(|| format!("cannot measure {}", directory.display()))?;
    Ok(state.f_bavail * state.f_frsize / (1 << 20))
}

/// Tries what nodes are made of: namespaces, a bridge, a pair of interfaces, an overlay.
fn kernel() -> anyhow::Result<()> {
    for (feature, script) in [
        (
            "network namespaces with bridge and veth",
            "ip link add name test0 type bridge && ip link add name test1 type veth",
        ),
        (
            "overlay file systems",
            "mount -t tmpfs tmpfs /mnt && cd /mnt && mkdir l u w r && mount -t overlay overlay -o lowerdir=l,upperdir=u,workdir=w r",
        ),
        (
            "nftables or iptables",
            "test -e /proc/net/ip_tables_names || nft list ruleset || modprobe nf_tables",
        ),
    ] {
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--pid", "--fork", "sh", "-c", script]);
        if !process::succeeds(&mut command) {
            bail!("cannot start a cluster: the kernel lacks {feature}");
        }
    }
    Ok(())
}
