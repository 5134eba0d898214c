//! Rules checked on every decision of a daemon.

use weft_ipam::{
    NodeConfig, ScalingMode,
    pool::{Record, Reply, RequestId, Step},
};
use weft_model::IpFamily;

use super::{Agent, pod_of};

impl Agent {
    /// I22: no pod gets an address of a config other than the one known to be this Node's.
    pub(super) fn check_origin(&mut self, step: &Step) {
        let ours = |config: &&NodeConfig| {
            config.owner.as_ref() == Some(&self.settings.node) && !config.deleting
        };
        let seen = self.seen.as_ref().filter(ours);
        let made = |record: &Record| match record {
            Record::Attachment(key, Some(held)) if !key.is_adopted() => {
                seen.is_none_or(|config| config.uid != held.epoch)
            }
            _ => false,
        };
        let reported = |(id, reply): &(RequestId, Reply)| {
            let (pod, sandbox, _) = pod_of(*id);
            let held = self.pool.attachments().get(&self.key(pod));
            let former = |config: &NodeConfig| held.is_some_and(|held| held.epoch != config.uid);
            matches!(reply, Reply::Assigned(_))
                && self.pods[pod].sandbox == sandbox
                && seen.is_some_and(former)
        };
        if step.records.iter().any(made) || step.replies.iter().any(reported) {
            self.flaw = Some(format!(
                "I22: {} honours what is of a former node",
                self.node
            ));
        }
    }

    /// I13: an offer leaves addresses for existing pods and their buffer.
    pub(super) fn check_buffer(&mut self, family: IpFamily, config: &NodeConfig, exhausted: bool) {
        let scaler = config.status.scaler.unwrap_or_default();
        let (batch, percent) = if exhausted {
            (1, 100)
        } else {
            (
                scaler.batch_size.unwrap_or_default(),
                scaler.request_threshold_percent.unwrap_or_default(),
            )
        };
        let most = scaler.max_ip_count.unwrap_or_default();
        let address_counts = self.pool.address_counts(family);
        // The reactive rule does not know pods, and rounds.
        let (demand, slack) = match self.monitoring.mode {
            ScalingMode::Pods => (address_counts.assigned.max(self.demand()), 0),
            ScalingMode::Requests => (address_counts.assigned, 50),
        };
        let least = (i64::from(demand) * 100 + percent * batch).min(most * 100);
        let kept = i64::from(address_counts.kept());
        if kept < i64::from(address_counts.assigned) || kept * 100 + slack < least {
            self.flaw = Some(format!(
                "I13: {} keeps {address_counts:?} of {demand}",
                self.node
            ));
        }
    }
}
