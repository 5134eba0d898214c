//! A minimal API server: objects, versions, conditional writes.

use std::collections::BTreeMap;

use weft_ipam::{
    NodeConfig, NodeSpec, NodeStatus, ResourceVersion, SpecWrite, Uid,
    allocator::{IpPool, Node, View, Write},
};
use weft_model::SharedStr;

#[derive(Clone, Debug)]
pub(crate) struct Api {
    pub(crate) revision: u64,
    pub(crate) view: View,
}

/// The precondition of a write failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict;

impl Api {
    pub(crate) fn new(pools: impl IntoIterator<Item = IpPool>) -> Self {
        let view = View {
            pools: pools
                .into_iter()
                .map(|pool| (pool.name.clone(), pool))
                .collect(),
            complete: true,
            ..View::default()
        };
        Self { revision: 1, view }
    }

    fn next(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }

    pub(crate) fn add_node(&mut self, name: &str, labels: &[(&str, &str)], cidrs: &[&str]) -> Uid {
        let revision = self.next();
        let uid = Uid::from(format!("uid-{name}-{revision}"));
        let labels = labels
            .iter()
            .map(|(key, value)| (SharedStr::new(key), SharedStr::new(value)));
        let node = Node {
            name: name.into(),
            uid: uid.clone(),
            version: revision.into(),
            labels: labels.collect::<BTreeMap<_, _>>(),
            pod_cidrs: cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
        };
        self.view.nodes.insert(name.into(), node);
        uid
    }

    /// A config is deleted by hand; it stays while it has a finalizer, unless that is removed, too.
    pub(crate) fn delete_config(&mut self, name: &str, entirely: bool) {
        self.next();
        if entirely {
            self.view.configs.remove(&name.into());
        } else if let Some(config) = self.view.configs.get_mut(&name.into()) {
            config.deleting = true;
            config.version = after(&config.version);
        }
    }

    /// Sets a label of a node, or removes it.
    pub(crate) fn relabel(&mut self, name: &str, key: &str, there: bool) {
        self.next();
        if let Some(node) = self.view.nodes.get_mut(&name.into()) {
            if there {
                node.labels
                    .insert(SharedStr::new(key), SharedStr::new("yes"));
            } else {
                node.labels.remove(key);
            }
            node.version = after(&node.version);
        }
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        self.next();
        self.view.nodes.remove(&name.into());
    }

    pub(crate) fn config(&self, name: &str) -> &NodeConfig {
        &self.view.configs[&name.into()]
    }

    /// Changes a spec by hand.
    pub(crate) fn edit(&mut self, name: &str, change: impl FnOnce(&mut NodeSpec)) {
        let revision = self.next();
        let config = self.view.configs.get_mut(&name.into()).unwrap();
        change(&mut config.spec);
        config.version = revision.into();
    }

    /// A node's write, which always changes its object.
    pub(crate) fn write_spec(&mut self, write: &SpecWrite) -> Result<NodeConfig, Conflict> {
        let config = self.view.configs.get_mut(&write.name).ok_or(Conflict)?;
        if config.precondition() != write.precondition {
            return Err(Conflict);
        }
        config.spec = write.spec.clone();
        config.version = after(&config.version);
        self.revision += 1;
        Ok(config.clone())
    }

    pub(crate) fn write(&mut self, write: &Write) -> Result<(), Conflict> {
        let revision = self.revision + 1;
        match write {
            Write::CreateConfig {
                node,
                owner,
                requested,
            } => {
                if self.view.configs.contains_key(node) {
                    return Err(Conflict);
                }
                let config = NodeConfig {
                    name: node.clone(),
                    uid: format!("{revision:08x}-config-{node}").into(),
                    owner: Some(owner.clone()),
                    version: revision.into(),
                    deleting: false,
                    finalized: true,
                    spec: NodeSpec {
                        requested: *requested,
                        ..NodeSpec::default()
                    },
                    status: NodeStatus::default(),
                };
                self.view.configs.insert(node.clone(), config);
            }
            Write::Status {
                name,
                precondition,
                status,
            } => {
                let config = self.view.configs.get_mut(name).ok_or(Conflict)?;
                if config.precondition() != *precondition {
                    return Err(Conflict);
                }
                config.status = status.clone();
                config.version = after(&config.version);
            }
            Write::Shard {
                shard,
                gone,
                unchanged,
                present,
                ..
            } => {
                let key = (shard.pool.clone(), shard.range);
                let stored = self
                    .view
                    .shards
                    .get(&key)
                    .and_then(|stored| stored.version.clone());
                let alive = |uid: &Uid| self.view.configs.values().any(|config| config.uid == *uid);
                let is_node = |uid: &Uid| self.view.nodes.values().any(|node| node.uid == *uid);
                let there = gone
                    .iter()
                    .any(|holder| alive(&holder.config) || is_node(&holder.config));
                let changed = unchanged.iter().any(|(name, precondition)| {
                    let config = self.view.configs.get(name);
                    config.is_none_or(|config| config.precondition() != *precondition)
                });
                let absent = present.iter().any(|(name, uid)| {
                    let node = self.view.nodes.get(name);
                    node.is_none_or(|node| node.uid != *uid)
                });
                if stored != shard.version || there || changed || absent {
                    return Err(Conflict);
                }
                let mut shard = shard.clone();
                shard.version = Some(stored.map_or(1.into(), |stored| after(&stored)));
                self.view.shards.insert(key, shard);
            }
            Write::SetConfigOwner {
                name,
                precondition,
                owner,
            } => {
                let config = self.view.configs.get_mut(name).ok_or(Conflict)?;
                if config.precondition() != *precondition {
                    return Err(Conflict);
                }
                config.owner = Some(owner.clone());
                config.version = after(&config.version);
            }
            Write::DeleteConfig { name, precondition } => {
                let config = self.view.configs.get_mut(name).ok_or(Conflict)?;
                if config.uid != precondition.uid {
                    return Err(Conflict);
                }
                config.deleting = true;
                config.version = after(&config.version);
            }
            Write::RemoveConfigFinalizer { name, precondition } => {
                let config = self.view.configs.get(name).ok_or(Conflict)?;
                if config.precondition() != *precondition {
                    return Err(Conflict);
                }
                self.view.configs.remove(name);
            }
            Write::AddPoolFinalizer(pool) => {
                let pool = self.view.pools.get_mut(pool).ok_or(Conflict)?;
                pool.finalized = true;
            }
            Write::RemovePoolFinalizer(pool) => {
                let pool = self.view.pools.remove(pool).ok_or(Conflict)?;
                assert!(pool.deleting);
            }
            Write::SubnetState { pool, exhausted } => {
                if *exhausted {
                    self.view.exhausted.insert(pool.clone());
                } else {
                    self.view.exhausted.remove(pool);
                }
            }
            Write::PodCidrs {
                name,
                precondition,
                cidrs,
            } => {
                let node = self.view.nodes.get_mut(name).ok_or(Conflict)?;
                if node.uid != precondition.uid || !node.pod_cidrs.is_empty() {
                    return Err(Conflict);
                }
                node.pod_cidrs.clone_from(cidrs);
                node.version = after(&node.version);
            }
        }
        self.revision = revision;
        Ok(())
    }
}

/// The next version. Versions count the writes of one object, so that the order of writes to
/// different objects leaves no trace.
fn after(version: &ResourceVersion) -> ResourceVersion {
    let number: u64 = version.as_str().parse().unwrap();
    (number + 1).into()
}
