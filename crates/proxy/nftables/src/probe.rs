//! Probes whether this kernel supports everything that the table needs.

use std::net::IpAddr;

use weft_host::nftables::Change;
use weft_model::IpFamily;
use weft_proxy::{LocalDetector, LoopbackNodePorts, NodePortTail, Settings};

use crate::{
    host_kernel::HostKernel,
    kernel::{Kernel as _, KernelError},
    options::TableOptions,
    program::{Program, pick, timeout},
    repair::create,
    transaction::Transaction,
    watch::Watch,
};

/// Exists within one commit only.
const PROBE_TABLE: &str = "weft-probe";

/// Creates a table with everything in it and deletes it in the same commit, so that nothing of it
/// is ever seen. The error names what the kernel does not know.
pub fn probe(family: IpFamily, options: TableOptions) -> Result<(), KernelError> {
    let node_ip = match family {
        IpFamily::V4 => IpAddr::from([127, 0, 0, 1]),
        IpFamily::V6 => std::net::Ipv6Addr::LOCALHOST.into(),
    };
    let settings = Settings {
        family,
        masquerade_all: false,
        masquerade_bit: 14,
        local_detector: Some(LocalDetector::InterfacePrefix("probe".into())),
        node_ip,
        node_port_tail: NodePortTail::AnyLocal,
        localhost_node_ports: false,
        external_ips: true,
        loopback: LoopbackNodePorts::Rejected,
        service_networks: Vec::new(),
    };
    let program = Program::of(&settings, options);
    let mut transaction = Transaction::new(family);
    create(&mut transaction, &program);
    transaction.add_branch(pick(family, 2));
    transaction.add_branch(timeout(family, 1));
    let (changes, _) = transaction.changes();
    let mut changes: Vec<Change> = changes.into_iter().map(renamed).collect();
    changes.push(Change::DeleteTable {
        family,
        table: PROBE_TABLE.to_owned(),
    });
    HostKernel::new(family, Watch::new())
        .commit(&changes)
        .map(drop)
}

fn renamed(change: Change) -> Change {
    let name = PROBE_TABLE.to_owned();
    match change {
        Change::AddTable(table) => Change::AddTable(weft_host::nftables::Table { name, ..table }),
        Change::DeleteTable { family, .. } => Change::DeleteTable {
            family,
            table: name,
        },
        Change::Within { family, change, .. } => Change::Within {
            family,
            table: name,
            change,
        },
    }
}
