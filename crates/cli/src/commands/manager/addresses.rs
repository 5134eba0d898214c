//! The controllers of addresses as the flags have them.

use ipnet::IpNet;
use weft_ipam::{
    allocator::{AllocatorSettings, ClusterCidr},
    objects::{AZURE_GROUP, GROUP},
};

use super::{Selection, flags::AddressFlags, wrong};
use weft_program::config::ConfigError;

/// Upstream's sizes.
const MASK_V4: u8 = 24;
const MASK_V6: u8 = 64;
/// Upstream's limit, which keeps a bitmap small; ours keeps the number of shards sensible.
const WIDEST: u8 = 16;

impl AddressFlags {
    /// The allocator, if it runs here.
    pub(super) fn allocator(
        &self,
        selection: &Selection,
    ) -> Result<Option<AllocatorSettings>, ConfigError> {
        if !selection.includes("ipam") {
            return Ok(None);
        }
        match self.nnc_group.as_str() {
            GROUP => Ok(Some(AllocatorSettings {
                node_grace: self.node_address_grace.0,
            })),
            AZURE_GROUP => Err(wrong(
                "nnc-group",
                "Azure allocates the addresses of acn.azure.com; leave ipam out of --controllers",
            )),
            _ => Err(wrong(
                "nnc-group",
                format!("must be {GROUP} or {AZURE_GROUP}"),
            )),
        }
    }

    /// The ranges of pod CIDRs, with --allocate-node-cidrs.
    pub(super) fn pod_cidrs(
        &self,
        selection: &Selection,
        ranges: &[IpNet],
    ) -> Result<Vec<ClusterCidr>, ConfigError> {
        if !selection.includes("pod-cidr") || !self.allocate_node_cidrs {
            return Ok(Vec::new());
        }
        let of_v4 = ranges.iter().filter(|range| range.addr().is_ipv4()).count();
        match (ranges.len(), of_v4) {
            (1, _) | (2, 1) => {}
            _ => {
                let reason = "say which range nodes get their pod CIDRs from, one of each family";
                return Err(wrong("cluster-cidr", reason));
            }
        }
        if ranges.len() == 2 && self.node_cidr_mask_size.is_some() {
            let reason = "only in a cluster of one family; use -ipv4 and -ipv6";
            return Err(wrong("node-cidr-mask-size", reason));
        }
        ranges
            .iter()
            .map(|range| self.cluster_cidr(*range))
            .collect()
    }

    fn cluster_cidr(&self, range: IpNet) -> Result<ClusterCidr, ConfigError> {
        let (flag, given, usual) = if range.addr().is_ipv4() {
            (
                "node-cidr-mask-size-ipv4",
                self.node_cidr_mask_size_ipv4,
                MASK_V4,
            )
        } else {
            (
                "node-cidr-mask-size-ipv6",
                self.node_cidr_mask_size_ipv6,
                MASK_V6,
            )
        };
        let node_prefix = given.or(self.node_cidr_mask_size).unwrap_or(usual);
        let least = range.prefix_len();
        let most = least.saturating_add(WIDEST).min(range.max_prefix_len());
        if (least..=most).contains(&node_prefix) {
            Ok(ClusterCidr {
                range: range.trunc(),
                node_prefix,
            })
        } else {
            let reason =
                format!("{node_prefix} is not between {least} and {most} as {range} has it");
            Err(wrong(flag, reason))
        }
    }
}
