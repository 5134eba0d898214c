//! Counters of packets to NodePorts on loopback addresses that were rejected.

use weft_host::{NetlinkError, nftables::Nftables};
use weft_model::{IpFamily, Protocol};

use crate::program::{LOOPBACK_REJECT, TABLE};

/// Packets rejected since the table was created, by protocol. Empty if none are rejected.
pub fn loopback_rejections(family: IpFamily) -> Result<Vec<(Protocol, u64)>, NetlinkError> {
    let mut connection = Nftables::open()?;
    let counters = connection.rule_counters(family, TABLE)?;
    let of_chain = counters
        .into_iter()
        .filter(|(rule, _)| rule.chain == LOOPBACK_REJECT);
    let by_protocol = of_chain.filter_map(|(rule, packets)| {
        let mut protocols = Protocol::ALL.into_iter();
        let is_of_rule = |protocol: &Protocol| rule.comment.as_deref() == Some(protocol.as_str());
        Some((protocols.find(is_of_rule)?, packets))
    });
    Ok(by_protocol.collect())
}
