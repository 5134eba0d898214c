//! Well-known labels that several crates read.

/// Label of a Node: the zone it is in.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
