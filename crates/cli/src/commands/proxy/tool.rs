//! Tools for people. They look and do not act, all but `cleanup`.

use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;
use weft_model::IpFamily;
use weft_proxy::config::Mode;
use weft_proxy_agent::HostAddresses as _;
use weft_proxy_agent::{
    host::HostDevices,
    offline::{FamilyState, Snapshot},
    process,
};

use super::{ProxyArguments, resolve::Resolved};
use weft_program::output;

mod cleanup;
mod diff;
mod kernel_rules;
mod status;
mod top;
mod trace;

#[derive(Debug, Subcommand)]
pub(super) enum Tool {
    /// Print the input for iptables-restore or nft, without writing to the kernel
    Render(RenderArguments),
    /// Follow a packet rule by rule, with the probability of each destination
    Trace(trace::TraceArguments),
    /// Compare the kernel's rules with those for the cluster's objects
    Diff(diff::DiffArguments),
    /// List the rules of service proxies in the kernel, and which of them no process maintains
    Status(status::StatusArguments),
    /// Show the connections of Services and endpoints in the nftables mode, live
    Top(top::TopArguments),
    /// Remove all rules of a service proxy from the kernel
    Cleanup(cleanup::CleanupArguments),
}

#[derive(Debug, Args)]
pub(super) struct RenderArguments {
    #[command(flatten)]
    objects: ObjectFiles,
    /// Only this family
    #[arg(long, value_name = "FAMILY")]
    family: Option<FamilyChoice>,
}

/// Objects out of files, as `kubectl get -o yaml` prints them.
#[derive(Debug, Args)]
pub(super) struct ObjectFiles {
    /// Read Services, EndpointSlices and Nodes from this file, YAML or JSON; - is stdin
    #[arg(long, value_name = "FILE")]
    objects: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum FamilyChoice {
    /// IPv4
    Ipv4,
    /// IPv6
    Ipv6,
}

impl From<FamilyChoice> for IpFamily {
    fn from(choice: FamilyChoice) -> Self {
        match choice {
            FamilyChoice::Ipv4 => Self::V4,
            FamilyChoice::Ipv6 => Self::V6,
        }
    }
}

impl Tool {
    pub(super) fn run(
        &self,
        resolved: &Resolved,
        arguments: &ProxyArguments,
    ) -> anyhow::Result<()> {
        let variant = arguments.iptables_variant.into();
        match self {
            Self::Render(render) => render.run(resolved),
            Self::Trace(trace) => trace.run(resolved, variant),
            Self::Diff(diff) => diff.run(resolved, variant, arguments.master.as_deref()),
            Self::Status(_) => status::StatusArguments::run(resolved),
            Self::Top(top) => top.run(),
            Self::Cleanup(cleanup) => cleanup.run(variant),
        }
    }
}

impl RenderArguments {
    fn run(&self, resolved: &Resolved) -> anyhow::Result<()> {
        if self.objects.is_empty() {
            bail!("--objects says what to render");
        }
        let snapshot = self.objects.read()?;
        let chosen = self.family.map(IpFamily::from);
        for family in IpFamily::ALL {
            if chosen.is_some_and(|chosen| chosen != family) {
                continue;
            }
            let state = family_state(&snapshot, resolved, family)?;
            let plan = match resolved.config.mode {
                Mode::Iptables => {
                    weft_iptables::render(&state.desired, &state.settings, ABLE).to_string()
                }
                Mode::Nftables => weft_nftables::render(&state.desired, &state.settings)?,
            };
            output::text(&format!("# {family}\n{plan}"))?;
        }
        Ok(())
    }
}

/// The features of a current kernel and iptables.
const ABLE: weft_iptables::Options = weft_iptables::Options {
    random_fully: true,
    drop_invalid: true,
    nfacct: true,
    restore: weft_iptables::RestoreScope::Changes,
};

/// The rules that the proxy of the configured node derives from the objects.
fn family_state(
    snapshot: &Snapshot,
    resolved: &Resolved,
    family: IpFamily,
) -> anyhow::Result<FamilyState> {
    let node = process::node_name(&resolved.config).context("cannot find this node's name")?;
    let state = snapshot.family_state(
        &resolved.config,
        family,
        &node,
        HostDevices.addresses().unwrap_or_default(),
    );
    for problem in &state.problems {
        tracing::warn!(%family, "{problem}; {}", problem.effect);
    }
    Ok(state)
}

impl ObjectFiles {
    fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    fn read(&self) -> anyhow::Result<Snapshot> {
        let mut snapshot = Snapshot::default();
        for file in &self.objects {
            let text = read(file).with_context(|| format!("cannot read {}", file.display()))?;
            let documents = documents(&text)
                .with_context(|| format!("{} is neither YAML nor JSON", file.display()))?;
            for document in &documents {
                snapshot
                    .add(document)
                    .with_context(|| format!("cannot read {}", file.display()))?;
            }
        }
        Ok(snapshot)
    }
}

/// The documents of a text. JSON is tried first: it is read many times faster than as YAML.
fn documents(text: &str) -> Result<Vec<Value>, Box<serde_saphyr::Error>> {
    if let Ok(document) = serde_json::from_str(text) {
        return Ok(vec![document]);
    }
    // The reader's default limits are meant for untrusted text and suffice for 2,000 Services.
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: usize::MAX,
            max_events: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
            max_documents: usize::MAX,
        },
    };
    serde_saphyr::from_multiple_with_options(text, options).map_err(Box::new)
}

fn read(file: &Path) -> io::Result<String> {
    if file.as_os_str() != "-" {
        return fs::read_to_string(file);
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list with this many Services.
    fn list(count: usize) -> Value {
        let service = |number| {
            serde_json::json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"namespace": "shop", "name": format!("s{number}")},
                "spec": {"ports": [{"name": "web", "port": 80, "protocol": "TCP"}]}})
        };
        let items: Vec<Value> = (0..count).map(service).collect();
        serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items})
    }

    #[test]
    fn lists_of_large_clusters_are_read_as_json_and_as_yaml() {
        let list = list(15_000);
        let json = list.to_string();
        assert_eq!(documents(&json).unwrap(), std::slice::from_ref(&list));
        let yaml = format!("# not JSON\n{list}");
        assert_eq!(documents(&yaml).unwrap(), [list]);
    }

    #[test]
    fn several_documents_are_read_one_by_one() {
        let read = documents("kind: A\n---\nkind: B\n").unwrap();
        let kinds: Vec<&Value> = read.iter().map(|document| &document["kind"]).collect();
        assert_eq!(kinds, ["A", "B"]);
    }
}
