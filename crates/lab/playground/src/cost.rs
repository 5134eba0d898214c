//! Cost of a change, from the proxies' sync records and a watch of the demo's EndpointSlice.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use parking_lot::Mutex;
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
        let (stopped, shared) = (stop.clone(), last_change.clone());
        let informer = cluster.cache().informer::<EndpointSlice>(&WatchSpec::all());
        tokio::spawn(async move {
            let mut changes = informer.subscribe();
            loop {
                tokio::select! {
                    () = stopped.cancelled() => return,
                    change = changes.next() => match change {
                        None => return,
                        Some(change) if change.key().as_ref() == Some(&slice) => {
                            *shared.lock() = Some(Timestamp::now());
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
        *self.last_change.lock()
    }

    /// Sum of what the proxies of nodes wrote since a time.
    pub(crate) async fn cost(&self, nodes: &[String], since: Timestamp) -> Written {
        let mut all = Vec::new();
        for node in nodes {
            let name = node.clone();
            let syncs = blocking(move || kernel::syncs(&name)).await;
            // A proxy that is restarting has no records.
            all.push(syncs.unwrap_or_default());
        }
        tally(&all, since, self.last_change())
    }
}

/// Sums up the syncs of nodes.
fn tally(nodes: &[Vec<Sync>], since: Timestamp, changed: Option<Timestamp>) -> Written {
    let mut written = Written::default();
    let mut last = None;
    for syncs in nodes {
        let size = kernel::element_size(syncs);
        for sync in syncs
            .iter()
            .filter(|sync| sync.at >= since && sync.bytes > 0)
        {
            written.syncs += 1;
            written.elements += sync.written;
            written.bytes += sync.bytes;
            written.bytes_of_everything += size * sync.elements;
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
            written: 2,
            elements: 100,
            milliseconds: 3.0,
        }
    }

    #[test]
    fn only_later_writes_count_and_the_slowest_node_decides() {
        let nodes = [
            vec![sync(900, 70), sync(1_030, 50), sync(1_040, 0)],
            vec![sync(1_055, 60)],
        ];
        let moment = |at| Timestamp::from_millisecond(at).unwrap();
        let written = tally(&nodes, moment(1_000), Some(moment(1_020)));
        assert_eq!(
            written,
            Written {
                syncs: 2,
                elements: 4,
                bytes: 110,
                // 20 and 30 bytes for each of 100 elements.
                bytes_of_everything: 5_000,
                milliseconds: Some(35.0),
            }
        );
    }
}
