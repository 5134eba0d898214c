//! Record of the routes that are ours, kept in a ConfigMap for the next process.
//!
//! Routes of Hetzner carry no mark. Without the record a restarted process could not tell a route
//! of ours, whose node left meanwhile, from a foreign one.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use weft_routes::{LedgerEntry, NextHop};

/// The ConfigMap with the record.
#[derive(Clone)]
pub(crate) struct RecordStore {
    maps: Api<ConfigMap>,
    name: String,
    namespace: String,
}

/// Key in the ConfigMap's data.
const KEY: &str = "routes";

impl RecordStore {
    /// One record for each provider and cluster: two clusters may share a cloud project.
    pub(crate) fn new(client: &Client, namespace: &str, provider: &str, cluster: &str) -> Self {
        Self {
            maps: Api::namespaced(client.clone(), namespace),
            name: object_name(&format!("weft-routes-{provider}-{cluster}")),
            namespace: namespace.to_owned(),
        }
    }

    /// Reads the record; lines that cannot be parsed are skipped.
    pub(crate) async fn load(&self) -> kube::Result<BTreeSet<LedgerEntry>> {
        let found = self.maps.get_opt(&self.name).await?;
        let text = found.and_then(|map| map.data?.remove(KEY));
        Ok(text.as_deref().map(parse).unwrap_or_default())
    }

    pub(crate) async fn save(&self, entries: &BTreeSet<LedgerEntry>) -> kube::Result<()> {
        let data = BTreeMap::from([(KEY.to_owned(), render(entries))]);
        let patch = serde_json::json!({ "data": data });
        let parameters = PatchParams::default();
        let patched = self
            .maps
            .patch(&self.name, &parameters, &Patch::Merge(&patch))
            .await;
        match patched {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let map = ConfigMap {
                    metadata: ObjectMeta {
                        name: Some(self.name.clone()),
                        namespace: Some(self.namespace.clone()),
                        ..ObjectMeta::default()
                    },
                    data: Some(data),
                    ..ConfigMap::default()
                };
                self.maps.create(&PostParams::default(), &map).await?;
                Ok(())
            }
            other => other.map(drop),
        }
    }
}

/// Turns a text into a valid object name; the cluster's name is free text.
fn object_name(text: &str) -> String {
    let keep = |c: char| {
        let c = c.to_ascii_lowercase();
        if c.is_ascii_alphanumeric() || c == '-' || c == '.' {
            c
        } else {
            '-'
        }
    };
    let name: String = text.chars().map(keep).take(253).collect();
    name.trim_end_matches(['-', '.']).to_owned()
}

fn render(entries: &BTreeSet<LedgerEntry>) -> String {
    let line = |(net, hop): &LedgerEntry| match hop {
        NextHop::Address(ip) => format!("{net} via {ip}\n"),
        NextHop::Instance(id) => format!("{net} instance {id}\n"),
    };
    entries.iter().map(line).collect()
}

fn parse(text: &str) -> BTreeSet<LedgerEntry> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let net: IpNet = words.next()?.parse().ok()?;
        let hop = match (words.next()?, words.next()?) {
            ("via", ip) => NextHop::Address(ip.parse().ok()?),
            ("instance", id) => NextHop::Instance(id.into()),
            _ => return None,
        };
        words.next().is_none().then_some((net, hop))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_nonsense_is_skipped() {
        let entries = BTreeSet::from([
            (
                "10.1.0.0/24".parse().unwrap(),
                NextHop::Address("10.0.0.1".parse().unwrap()),
            ),
            (
                "fd00:1::/64".parse().unwrap(),
                NextHop::Instance("i-1".into()),
            ),
        ]);
        let text = format!("{}10.9.0.0/24 via\nnonsense\n", render(&entries));
        assert_eq!(parse(&text), entries);
    }

    #[test]
    fn a_clusters_name_becomes_a_name_of_an_object() {
        assert_eq!(
            object_name("weft-routes-aws-My Cluster!"),
            "weft-routes-aws-my-cluster"
        );
    }
}
