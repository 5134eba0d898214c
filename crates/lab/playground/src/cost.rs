//! Cost of a change, from the proxies' sync records and a watch of the demo's EndpointSlice.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use tokio_util::sync::{CancellationToken, DropGuard};
use weft_runtime::{Cluster, ObjectKey, WatchSpec};

use crate::{
    kernel::{self, Sync},
    program::blocking,
    report::Written,
};

/// Records when the watch last showed a change of an EndpointSlice.
pub(crate) struct Observer {
    last_change: Arc<Mutex<Option<Timestamp>>>,
    _watching: DropGuard,
}

impl Observer {
    /// Starts watching a slice.
    pub(crate) fn new(cluster: &Cluster, slice: ObjectKey) -> Self {
        let last_change: Arc<Mutex<Option<Timestamp>>> = Arc::default();
        let stop = CancellationToken::new();
        let (stopped, told) = (stop.clone(), last_change.clone());
        let informer = cluster.cache().informer::<EndpointSlice>(&WatchSpec::all());
        tokio::spawn(async move {
            let mut changes = informer.subscribe();
            loop {
                tokio::select! {
                    () = stopped.cancelled() => return,
                    change = changes.next() => match change {
                        None => return,
                        Some(change) if change.key().as_ref() == Some(&slice) => {
                            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(Timestamp::now());
                        }
                        Some(_) => {}
                    }
                }
            }
        });
        Self {
            last_change,
            _watching: stop.drop_guard(),
        }
    }

    fn last_change(&self) -> Option<Timestamp> {
        *self
            .last_change
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Sum of what the proxies of nodes wrote since a time.
    pub(crate) async fn cost(&self, nodes: &[String], since: Timestamp) -> Written {
        let mut all = Vec::new();
        for node in nodes {
            let name = node.clone();
            let (syncs, rules) =
                blocking(move || (kernel::syncs(&name), kernel::rules(&name))).await;
            // A proxy that is restarting has no records.
            let syncs = syncs.unwrap_or_default();
            all.push((syncs, rules.unwrap_or_default().len() as u64));
        }
        tally(&all, since, self.last_change())
    }
}

/// Number of rules of a node: the sum over both families after their last syncs.
fn rules_now(syncs: &[Sync]) -> u64 {
    let last = |family: &str| syncs.iter().rev().find(|sync| sync.family == family);
    let both = [last("IPv4"), last("IPv6")].into_iter().flatten();
    both.map(|sync| sync.rules).sum()
}

/// Sums up the syncs of nodes, each with the current size of all its rules in bytes.
fn tally(nodes: &[(Vec<Sync>, u64)], since: Timestamp, changed: Option<Timestamp>) -> Written {
    let mut written = Written::default();
    let mut last = None;
    for (syncs, everything) in nodes {
        let today = rules_now(syncs).max(1);
        for sync in syncs
            .iter()
            .filter(|sync| sync.at >= since && sync.bytes > 0)
        {
            written.syncs += 1;
            written.chains += sync.chains_written;
            written.chains_removed += sync.chains_removed;
            written.rules += sync.written;
            written.bytes += sync.bytes;
            // Current size per rule, times the number of rules at that sync.
            written.bytes_of_everything += everything * sync.rules / today;
            last = last.max(Some(sync.at));
        }
    }
    written.milliseconds = match (last, changed) {
        (Some(last), Some(changed)) if last >= changed => {
            Some(last.duration_since(changed).as_secs_f64() * 1000.0)
        }
        _ => None,
    };
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sync(at: i64, bytes: u64) -> Sync {
        Sync {
            number: 1,
            at: Timestamp::from_millisecond(at).unwrap(),
            family: "IPv4".to_owned(),
            full: false,
            bytes,
            chains_written: 3,
            chains_removed: 1,
            written: 2,
            rules: 100,
            milliseconds: 3.0,
        }
    }

    #[test]
    fn only_later_writes_count_and_the_slowest_node_decides() {
        let nodes = [
            (vec![sync(900, 70), sync(1_030, 50), sync(1_040, 0)], 4_000),
            (vec![sync(1_055, 60)], 6_000),
        ];
        let moment = |at| Timestamp::from_millisecond(at).unwrap();
        let written = tally(&nodes, moment(1_000), Some(moment(1_020)));
        assert_eq!(
            written,
            Written {
                syncs: 2,
                chains: 6,
                chains_removed: 2,
                rules: 4,
                bytes: 110,
                bytes_of_everything: 10_000,
                milliseconds: Some(35.0),
            }
        );
    }
}
