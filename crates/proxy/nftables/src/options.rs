//! Options of the table that do not change the treatment of packets.

use weft_host::nftables::Ownership;

use crate::{
    collection::{Collection, FrontMap},
    front::FrontKind,
    kernel::Structure,
};

/// Options of the table. A table with others is deleted and created again in one commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableOptions {
    /// Counting of connections for each endpoint.
    pub counters: Counters,
    /// The sockets that may change the table.
    pub ownership: Ownership,
}

/// Counters of connections in the elements of endpoint maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counters {
    /// There are none.
    #[default]
    Off,
    /// Each element has one.
    On,
}

impl TableOptions {
    /// The options that a table was created with.
    pub(crate) fn of(structure: &Structure) -> Self {
        let endpoints = Collection::of(FrontKind::Address, FrontMap::Endpoints).name();
        let counts = |set: &weft_host::nftables::Set| set.name == endpoints && set.traits.counts;
        let counters = if structure.sets.iter().any(counts) {
            Counters::On
        } else {
            Counters::Off
        };
        Self {
            counters,
            ownership: structure.ownership,
        }
    }
}
