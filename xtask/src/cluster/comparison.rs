//! The parts of `make conformance` that run on a cluster: which settings, which tests.

use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};

use super::{
    Finish, Job, Parts,
    e2e::Selection,
    former::Former,
    outcome,
    settings::{Agents, Families, MainPlugin, Network, ProxyMode, Settings},
};
use crate::{debian, images, oci};

/// A kind of cluster that is compared.
pub(super) struct Arm {
    pub(super) name: &'static str,
    network: Network,
    proxy_mode: ProxyMode,
}

const WEFT_NFTABLES: Arm = Arm {
    name: "weft-nftables",
    network: Network::Weft,
    proxy_mode: ProxyMode::Nftables,
};

const KUBE_PROXY: Arm = Arm {
    name: "kube-proxy",
    network: Network::KubeProxy,
    proxy_mode: ProxyMode::Nftables,
};

pub(super) const ARMS: [Arm; 3] = [
    WEFT_NFTABLES,
    Arm {
        name: "weft-iptables",
        network: Network::Weft,
        proxy_mode: ProxyMode::Iptables,
    },
    KUBE_PROXY,
];

const CONFORMANCE: &str = r"\[sig-network\].*\[Conformance\]";
const NETWORK: &str = r"\[sig-network\]";

/// A dozen tests of what Weft does, for CI.
const SLICE: &str = r"\[sig-network\] (Services should (serve a basic endpoint from pods|serve multiport endpoints from pods|be able to create a functioning NodePort service|be able to switch session affinity for service with type clusterIP|allow pods to hairpin back to themselves through services|be rejected when no endpoints exist|preserve source pod IP for traffic thru service cluster IP)|DNS should (provide DNS for the cluster \[Conformance\]|provide DNS for services)|Networking Granular Checks: Pods should function for (intra-pod communication: http|node-pod communication: http)|HostPort validates that there is no conflict)";

/// Parts of names that are left out of the wider set, with the reason.
const LEFT_OUT: &[(&str, &str)] = &[
    ("[Conformance]", "in the conformance set"),
    ("[Feature:Ingress]", "needs an ingress controller"),
    ("[Serial]", "changes the cluster for all tests"),
    (
        "[Disruptive]",
        "restarts parts of the cluster, as faults do",
    ),
    ("SCTP", "the kernel of the machine has no SCTP sockets"),
    ("[Feature:LoadBalancer]", "needs a cloud's load balancers"),
    ("Netpol NetworkPolicy", "Weft has no NetworkPolicy"),
    ("Netpol [LinuxOnly]", "Weft has no NetworkPolicy"),
    ("NFAcct", "counters of kube-proxy's iptables mode"),
    ("[Feature:Networking-Performance]", "measures bandwidth"),
    ("[Feature:Networking-IPv4]", "needs the internet"),
    ("[Feature:Networking-IPv6]", "needs the internet"),
    ("[Feature:Networking-DNS]", "needs the internet"),
];

impl Parts {
    /// The Conformance tests of sig-network on every kind of cluster.
    pub(crate) fn conformance(&self, output: &Path) -> anyhow::Result<()> {
        let mut failed = Vec::new();
        for arm in &ARMS {
            eprintln!("{}", arm.name);
            let tests = self.selection(arm, output, "conformance", CONFORMANCE, &[])?;
            if let Err(error) = self.finish(&arm.settings(), Job::Tests(tests))? {
                eprintln!("{error:#}");
                failed.push(arm.name);
            }
        }
        outcome::write(output)?;
        ensure!(failed.is_empty(), "failed on {}", failed.join(", "));
        Ok(())
    }

    /// The other tests of sig-network that apply.
    pub(crate) fn network(&self, output: &Path) -> anyhow::Result<()> {
        let arm = &WEFT_NFTABLES;
        let tests = self.selection(arm, output, "network", NETWORK, LEFT_OUT)?;
        let outcome = self.finish(&arm.settings(), Job::Tests(tests))?;
        outcome::write(output)?;
        outcome
    }

    /// Faults, each followed by checks.
    pub(crate) fn faults(&self, output: &Path) -> anyhow::Result<()> {
        let job = Job::Faults {
            results: results(output, "faults"),
        };
        let outcome = self.finish(&WEFT_NFTABLES.settings(), job)?;
        outcome::write(output)?;
        outcome
    }

    /// A rolling update from version 0.1.0.
    pub(crate) fn update(&self, profile: &str, output: &Path) -> anyhow::Result<()> {
        let job = Job::Update {
            former: Former::build(profile)?,
            results: results(output, "update"),
        };
        let outcome = self.finish(&WEFT_NFTABLES.settings(), job)?;
        outcome::write(output)?;
        outcome
    }

    /// The alert rules, for an hour in which nothing is wrong.
    pub(crate) fn alerts(&self, output: &Path) -> anyhow::Result<()> {
        let job = Job::Alerts {
            prometheus: debian::PROMETHEUS
                .ensure(&images::cache()?)?
                .join("usr/bin/prometheus"),
            minutes: 60,
            results: results(output, "alerts"),
        };
        let outcome = self.finish(&WEFT_NFTABLES.settings(), job)?;
        outcome::write(output)?;
        outcome
    }

    /// Many pods with Weft and with host-local and kube-proxy, for the ratio of their figures.
    pub(crate) fn pods(&self, output: &Path) -> anyhow::Result<()> {
        for arm in [&WEFT_NFTABLES, &KUBE_PROXY] {
            let results = results(output, &format!("pods-{}", arm.name));
            self.finish(&arm.settings(), Job::Pods { results })??;
        }
        outcome::write(output)
    }

    /// `weft check` on every kind of cluster that differs from the usual one in one setting.
    pub(crate) fn kinds(&self) -> anyhow::Result<()> {
        let usual = WEFT_NFTABLES.settings();
        let mut failed = Vec::new();
        for (name, settings) in [
            (
                "one node",
                Settings {
                    nodes: 1,
                    ..usual.clone()
                },
            ),
            (
                "two nodes",
                Settings {
                    nodes: 2,
                    ..usual.clone()
                },
            ),
            (
                "IPv6 only",
                Settings {
                    families: Families::Ipv6,
                    ..usual.clone()
                },
            ),
            (
                "IPv4 only",
                Settings {
                    families: Families::Ipv4,
                    ..usual.clone()
                },
            ),
            (
                "ptp",
                Settings {
                    cni: MainPlugin::Ptp,
                    ..usual.clone()
                },
            ),
            (
                "weft node",
                Settings {
                    agents: Agents::Node,
                    ..usual.clone()
                },
            ),
            (
                "iptables-legacy",
                Settings {
                    proxy_mode: ProxyMode::IptablesLegacy,
                    ..usual.clone()
                },
            ),
        ] {
            eprintln!("{name}");
            if let Err(error) = self.finish(&settings, Job::Once)? {
                eprintln!("{error:#}");
                failed.push(name);
            }
        }
        ensure!(failed.is_empty(), "failed with {}", failed.join(", "));
        Ok(())
    }

    /// The short run of CI: `weft check`, a dozen tests and one kill.
    pub(crate) fn slice(&self, output: &Path) -> anyhow::Result<()> {
        let arm = &WEFT_NFTABLES;
        let tests = self.selection(arm, output, "slice", SLICE, &[])?;
        let results = results(output, "slice-faults");
        self.finish(&arm.settings(), Job::Slice { tests, results })?
    }

    /// Does a job to its end. The outer error says that a person stopped it: nothing else is to be
    /// tried then.
    fn finish(&self, settings: &Settings, job: Job) -> anyhow::Result<anyhow::Result<()>> {
        Ok(match self.start(settings, job) {
            Ok(Finish::Stopped) => bail!("stopped"),
            Ok(Finish::Done) => Ok(()),
            Err(error) => Err(error),
        })
    }

    fn selection(
        &self,
        arm: &Arm,
        output: &Path,
        set: &str,
        focus: &str,
        left_out: &[(&str, &str)],
    ) -> anyhow::Result<Selection> {
        let owned = |&(part, reason): &(&str, &str)| (part.to_owned(), reason.to_owned());
        Ok(Selection {
            focus: focus.to_owned(),
            left_out: left_out.iter().map(owned).collect(),
            results: results(output, &format!("{set}-{}", arm.name)),
            subject: oci::hash(&self.weft)?.0,
        })
    }
}

impl Arm {
    fn settings(&self) -> Settings {
        Settings {
            nodes: 3,
            network: self.network,
            proxy_mode: self.proxy_mode,
            families: Families::Dual,
            agents: Agents::Separate,
            cni: MainPlugin::Bridge,
        }
    }
}

fn results(output: &Path, name: &str) -> PathBuf {
    output.join("cluster").join(format!("{name}.json"))
}
