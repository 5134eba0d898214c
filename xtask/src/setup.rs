//! The Debian packages that kernel tests need: found, installed, or asked for.

use std::{fmt, path::Path, process::Command};

use crate::process;

/// The exit code of a task that stopped because packages are missing.
pub(crate) const EXIT_CODE: u8 = 3;

struct Package {
    name: &'static str,
    /// Any of these shows that it is there, however it was installed.
    evidence: &'static [&'static str],
}

const PACKAGES: [Package; 5] = [
    Package {
        name: "iptables",
        evidence: &["iptables-restore"],
    },
    Package {
        name: "nftables",
        evidence: &["nft"],
    },
    Package {
        name: "iproute2",
        evidence: &["ip"],
    },
    Package {
        name: "conntrack",
        evidence: &["conntrack"],
    },
    Package {
        name: "containernetworking-plugins",
        evidence: &[
            "/usr/lib/cni/bridge",
            "/opt/cni/bin/bridge",
            "/usr/libexec/cni/bridge",
        ],
    },
];

/// The browser that `make conformance` opens the live page with.
const BROWSER: [Package; 1] = [Package {
    name: "chromium",
    evidence: &["chromium"],
}];

/// The program by which `make cluster` makes root file systems.
const CLUSTER: [Package; 1] = [Package {
    name: "mmdebstrap",
    evidence: &["mmdebstrap"],
}];

/// Packages that are missing and could not be installed.
#[derive(Debug)]
pub(crate) struct Missing {
    packages: Vec<&'static str>,
    obstacle: &'static str,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packages, obstacle } = self;
        let packages = packages.join(" ");
        write!(
            f,
            "missing packages: {packages} ({obstacle})\n\
             Install them with this line and run the command again:\n\n    \
             sudo apt-get update && sudo apt-get install --yes {packages}\n"
        )
    }
}

impl std::error::Error for Missing {}

/// Packages that kernel tests need.
pub(crate) fn run() -> anyhow::Result<()> {
    install(&PACKAGES)
}

/// Packages that a cluster needs.
pub(crate) fn cluster() -> anyhow::Result<()> {
    install(&CLUSTER)
}

/// A browser.
pub(crate) fn browser() -> anyhow::Result<()> {
    install(&BROWSER)
}

/// Installs what is missing when this user may, and otherwise says how.
fn install(wanted: &[Package]) -> anyhow::Result<()> {
    let packages = missing(wanted);
    if packages.is_empty() {
        return Ok(());
    }
    if process::find("apt-get").is_none() {
        return Err(Missing {
            packages,
            obstacle: "there is no apt-get here",
        }
        .into());
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Missing {
            packages,
            obstacle: "installing them takes root",
        }
        .into());
    }
    eprintln!("installing {}", packages.join(" "));
    // An outdated or unreachable index is not yet a failure: the installation decides.
    process::succeeds(apt_get().args(["-qq", "update"]));
    let install = ["-qq", "install", "--yes", "--no-install-recommends"];
    let installed = process::run(apt_get().args(install).args(&packages));
    let packages = missing(wanted);
    match installed {
        Ok(()) if packages.is_empty() => Ok(()),
        _ => Err(Missing {
            packages,
            obstacle: "apt-get did not install them",
        }
        .into()),
    }
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

fn missing(wanted: &[Package]) -> Vec<&'static str> {
    let absent = |package: &&Package| {
        !package.evidence.iter().any(|evidence| {
            Path::new(evidence).is_absolute() && Path::new(evidence).exists()
                || process::find(evidence).is_some()
        })
    };
    wanted
        .iter()
        .filter(absent)
        .map(|package| package.name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_holds_the_exact_line_to_run() {
        let missing = Missing {
            packages: vec!["iptables", "conntrack"],
            obstacle: "no root",
        };
        let line = "\n    sudo apt-get update && sudo apt-get install --yes iptables conntrack\n";
        assert!(missing.to_string().contains(line), "{missing}");
    }
}
