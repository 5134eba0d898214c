//! Probes whether this kernel supports everything that the table needs.

use std::{collections::BTreeSet, net::IpAddr};

use weft_host::nftables::{Change, Expression, Reason, Refused, TableChange};
use weft_model::IpFamily;
use weft_proxy::{LocalDetector, LoopbackNodePorts, NodePortTail, Settings};

use crate::{
    host_kernel::HostKernel,
    kernel::{Kernel, KernelError},
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
    let mut kernel = HostKernel::new(family, Watch::new());
    probe_by(&mut kernel, family, options)
}

/// The same by this kernel.
pub fn probe_by(
    kernel: &mut dyn Kernel,
    family: IpFamily,
    options: TableOptions,
) -> Result<(), KernelError> {
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
    kernel
        .commit(&changes)
        .map(drop)
        .map_err(|error| name_feature(error, &changes))
}

/// Names what a refused change needs: the kernel reports an expression that it lacks as one that
/// does not exist.
fn name_feature(error: KernelError, changes: &[Change]) -> KernelError {
    let cause = match &error {
        KernelError::Refused { cause, .. } => *cause,
        _ => return error,
    };
    let (Reason::Missing | Reason::Unsupported | Reason::Invalid) = cause.reason else {
        return error;
    };
    let needed = match changes.get(cause.place.change) {
        Some(Change::Within {
            change: TableChange::AddRule(rule),
            ..
        }) => {
            // A kernel that does not say which leaves all of the rule's.
            let refused = cause
                .place
                .element
                .and_then(|place| rule.expressions.get(place..=place));
            let refused = refused.unwrap_or(&rule.expressions);
            let names: BTreeSet<String> = refused.iter().map(Expression::name).collect();
            let names: Vec<String> = names.into_iter().collect();
            format!("rule {} ({})", rule.chain, names.join(", "))
        }
        Some(Change::Within {
            change: TableChange::AddSet(set),
            ..
        }) => format!("set {}", set.name),
        Some(Change::Within {
            change: TableChange::AddChain(chain),
            ..
        }) => format!("chain {}", chain.name),
        _ => return error,
    };
    KernelError::Refused {
        operation: format!("add {needed}"),
        cause: Refused {
            reason: Reason::Unsupported,
            ..cause
        },
    }
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
