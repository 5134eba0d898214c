//! Removes everything that a service proxy programmed.

use weft_model::IpFamily;
use weft_ruleset::Table;

use crate::{
    expected::Expected,
    fixed,
    kernel::{Kernel, KernelError},
    names::is_private,
    observed::{Observed, Reader},
    plan::Plan,
};

/// Removes all jumps and chains of a service proxy, ours or kube-proxy's. Returns the plan that was
/// written.
///
/// kubelet's chain and the jumps to it stay: kubelet needs them.
pub fn cleanup(kernel: &mut impl Kernel, family: IpFamily) -> Result<Plan, KernelError> {
    let nothing = Expected::default();
    let mut reader = Reader::new(&nothing, family);
    kernel.save(&mut |line| reader.line(line))?;
    let plan = removal(&reader.finish());
    if !plan.is_empty() {
        kernel.restore(&plan.to_string())?;
    }
    Ok(plan)
}

fn removal(observed: &Observed) -> Plan {
    let mut plan = Plan::default();
    for jump in fixed::jumps().into_iter().filter(|jump| !jump.kubelets) {
        let there = (jump.table, jump.from, jump.rule.to_string());
        if observed.jumps.contains(&there) {
            plan.delete(jump.table, jump.from, &jump.rule);
        }
    }
    for chain in observed.shared.keys() {
        plan.remove(chain.table(), chain.name());
    }
    for (table, chain) in observed.chains.keys() {
        let ours = match table {
            Table::Mangle => *chain == fixed::CANARY,
            Table::Filter => [fixed::CANARY, fixed::FORWARD].contains(chain),
            Table::Nat => {
                is_private(chain.as_str())
                    || [fixed::CANARY, fixed::POSTROUTING, fixed::MARK_MASQ].contains(chain)
            }
        };
        if ours {
            plan.remove(*table, *chain);
        }
    }
    plan
}
