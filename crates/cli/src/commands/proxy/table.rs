//! Flags for the table of the nftables mode, which kube-proxy does not have.

use clap::Args;
use weft_host::nftables::Ownership;
use weft_nftables::{Counters, TableOptions};

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct TableFlags {
    /// Count the connections of each endpoint in the nftables mode, for `weft proxy top` and metrics
    #[arg(long)]
    nftables_counters: bool,
    /// Own the nftables table: other programs cannot change or flush it while this one runs. Needs
    /// Linux 6.9
    #[arg(long)]
    nftables_owner: bool,
}

impl From<TableFlags> for TableOptions {
    fn from(flags: TableFlags) -> Self {
        Self {
            counters: if flags.nftables_counters {
                Counters::On
            } else {
                Counters::Off
            },
            ownership: if flags.nftables_owner {
                Ownership::Owned
            } else {
                Ownership::Shared
            },
        }
    }
}
