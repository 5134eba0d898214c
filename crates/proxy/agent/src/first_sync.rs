//! A backend that takes the place of another: what the other wrote goes after our first sync that
//! worked, and not before.

use std::thread;

use weft_nftables::IN_FLIGHT;
use weft_proxy::{
    AuditReport, Backend, Desired, ReadBudget, Scope, Settings, SyncError, SyncReport,
};

/// Does something on a thread of its own when no packet can be between the rules of before and our
/// first ones any more: one that passed by ours before they were there would find none at all.
pub(crate) fn after_packets_in_flight(
    then: impl FnOnce() + Send + 'static,
) -> impl FnOnce() + Send + 'static {
    move || {
        // Ends by itself; if the process ends before, the next start does it.
        thread::spawn(move || {
            thread::sleep(IN_FLIGHT);
            then();
        });
    }
}

/// Runs something after the first sync that worked.
pub(crate) struct FirstSync {
    backend: Box<dyn Backend>,
    then: Option<Box<dyn FnOnce() + Send>>,
}

impl FirstSync {
    pub(crate) fn new(backend: Box<dyn Backend>, then: impl FnOnce() + Send + 'static) -> Self {
        Self {
            backend,
            then: Some(Box::new(then)),
        }
    }
}

impl Backend for FirstSync {
    fn sync(
        &mut self,
        desired: &Desired,
        settings: &Settings,
        scope: Scope<'_>,
    ) -> Result<SyncReport, SyncError> {
        let report = self.backend.sync(desired, settings, scope)?;
        if let Some(then) = self.then.take() {
            then();
        }
        Ok(report)
    }

    fn audit(&mut self, budget: ReadBudget) -> Result<AuditReport, SyncError> {
        self.backend.audit(budget)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use weft_model::IpFamily;
    use weft_proxy::{LoopbackNodePorts, NodePortTail};

    use super::*;

    /// Fails this many times.
    struct Failing(usize);

    impl Backend for Failing {
        fn sync(
            &mut self,
            _: &Desired,
            _: &Settings,
            _: Scope<'_>,
        ) -> Result<SyncReport, SyncError> {
            match self.0.checked_sub(1) {
                Some(left) => {
                    self.0 = left;
                    Err(SyncError::unreadable("not yet"))
                }
                None => Ok(SyncReport::default()),
            }
        }

        fn audit(&mut self, _: ReadBudget) -> Result<AuditReport, SyncError> {
            Ok(AuditReport::Unchanged)
        }
    }

    #[test]
    fn what_follows_the_first_sync_waits_for_one_that_works() {
        let settings = Settings {
            family: IpFamily::V4,
            masquerade_all: false,
            masquerade_bit: 14,
            local_detector: None,
            node_ip: "127.0.0.1".parse().unwrap(),
            node_port_tail: NodePortTail::AnyLocal,
            localhost_node_ports: false,
            external_ips: true,
            loopback: LoopbackNodePorts::Untouched,
            service_networks: Vec::new(),
        };
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        let mut backend = FirstSync::new(Box::new(Failing(2)), move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let desired = Desired::new();
        for expected in [0, 0, 1, 1] {
            let _ = backend.sync(&desired, &settings, Scope::Full);
            assert_eq!(count.load(Ordering::Relaxed), expected);
        }
    }
}
