//! The backend over the real kernel: the resulting rules are those of the simulated one.

use weft_host::iptables::Variant;
use weft_iptables::{HostKernel, Options, RestoreScope};
use weft_model::{IpFamily, error_text};
use weft_proxy::{AuditReport, Backend as _, ReadBudget};
use weft_ruleset::Table;
use weft_testkit::{
    cluster::RandomCluster,
    lab::{self, Lab},
};

use crate::{
    host::{PROGRAMS, everywhere, kernel, programs, saved, sorted_rules, world},
    world::{OPTIONS, World},
};

const GATE_OFF: Options = Options {
    restore: RestoreScope::Everything,
    ..OPTIONS
};

/// Compares the kernel's text, and the order of rules where it matters.
fn assert_as_fresh(world: &mut World<HostKernel>, when: &str) {
    let (real, fresh) = (saved(world.backend.kernel()), world.fresh().to_string());
    assert_eq!(sorted_rules(&real), sorted_rules(&fresh), "{when}");
    world.assert_as_fresh(when);
}

/// Few enough Services that their rules fit into one message without root.
fn some_services(world: &mut World<HostKernel>, seed: u64) -> RandomCluster {
    let mut cluster = RandomCluster::new(seed);
    while world.desired.len() < 4 {
        for edit in cluster.add_service() {
            world.edit(&edit);
        }
        world.derive();
    }
    world.sync();
    cluster
}

fn edit(world: &mut World<HostKernel>, cluster: &mut RandomCluster) {
    for edit in cluster.edit() {
        world.edit(&edit);
    }
}

fn audit(world: &mut World<HostKernel>) -> Vec<String> {
    match world.backend.audit(ReadBudget::Available).unwrap() {
        AuditReport::Read { repaired, .. } => repaired.iter().map(ToString::to_string).collect(),
        other => panic!("not read: {other:?}"),
    }
}

/// Writes as another process.
fn disturb(family: IpFamily, variant: Variant, input: &str) {
    programs(family, variant).restore(input.as_bytes()).unwrap();
}

#[test]
fn every_partial_sync_on_the_real_kernel_leaves_what_a_fresh_start_would() {
    lab::with_programs(&PROGRAMS, |lab| {
        for (family, variant) in everywhere() {
            for seed in [20, 21] {
                let mut cluster = RandomCluster::new(seed);
                let mut world = world(family, variant, OPTIONS);
                assert!(world.sync().full);
                for round in 0..25 {
                    edit(&mut world, &mut cluster);
                    let report = world.sync();
                    let when = format!("{family} {variant}, seed {seed}, round {round}");
                    assert!(!report.full, "{when}: {report:?}");
                    assert_as_fresh(&mut world, &when);
                }
                let report = world.backend.audit(ReadBudget::Available).unwrap();
                let nobody_else = match (variant, &report) {
                    (Variant::Nft, AuditReport::Unchanged) => true,
                    (Variant::Legacy, AuditReport::Read { repaired, children }) => {
                        repaired.is_empty() && !children.is_zero()
                    }
                    _ => false,
                };
                assert!(nobody_else, "{family} {variant}: {report:?}");
                for table in Table::ALL {
                    flush(lab, family, variant, table);
                }
            }
        }
    });
}

#[test]
fn a_real_flush_of_any_table_is_found_and_repaired() {
    lab::with_programs(&PROGRAMS, |lab| {
        for (family, variant) in everywhere() {
            let mut world = world(family, variant, OPTIONS);
            some_services(&mut world, 30);
            for table in Table::ALL {
                flush(lab, family, variant, table);
                assert!(!audit(&mut world).is_empty(), "{family} {variant} {table}");
                assert_as_fresh(&mut world, &format!("{family} {variant} {table}"));
            }
            for table in Table::ALL {
                flush(lab, family, variant, table);
            }
            assert!(!audit(&mut world).is_empty(), "{family} {variant}");
            assert_as_fresh(&mut world, "after a flush of all");
        }
    });
}

fn flush(lab: &Lab, family: IpFamily, variant: Variant, table: Table) {
    let tables = programs(family, variant);
    let program = tables.programs().command.to_str().unwrap();
    for action in ["-F", "-X"] {
        lab.program(program, &["-w", "-t", table.as_str(), action]);
    }
}

#[test]
fn a_chain_that_is_gone_or_holds_too_much_is_repaired_alone() {
    lab::with_programs(&PROGRAMS, |_| {
        for (family, variant) in everywhere() {
            let mut world = world(family, variant, OPTIONS);
            some_services(&mut world, 31);
            let text = saved(world.backend.kernel());
            let of_service = |line: &&str| line.starts_with(":KUBE-SVC-");
            let chain = text.lines().find(of_service).unwrap();
            let chain = chain[1..].split(' ').next().unwrap();
            let referrers: Vec<&str> = text
                .lines()
                .filter(|line| line.ends_with(&format!("-j {chain}")))
                .collect();
            assert!(!referrers.is_empty());
            // A chain can only go together with the rules that jump to it.
            let deletions = referrers.iter().map(|rule| format!("-D {}", &rule[3..]));
            let deletions = deletions.collect::<Vec<_>>().join("\n");
            let disturbances = [
                format!("*nat\n:{chain} -\n{deletions}\n-X {chain}\nCOMMIT\n"),
                format!("*nat\n-I {chain} -j RETURN\nCOMMIT\n"),
                "*nat\n-A KUBE-SERVICES -j RETURN\nCOMMIT\n".to_owned(),
                "*filter\n-I KUBE-FORWARD -j DROP\nCOMMIT\n".to_owned(),
                "*filter\n-D INPUT -j KUBE-FIREWALL\nCOMMIT\n".to_owned(),
                "*nat\n:KUBE-SEP-LEFTOVER - [0:0]\nCOMMIT\n".to_owned(),
            ];
            for disturbance in &disturbances {
                disturb(family, variant, disturbance);
                let repaired = audit(&mut world);
                let touched = if disturbance.contains("-X") {
                    let mut chains: Vec<_> =
                        referrers.iter().map(|r| r.split(' ').nth(1)).collect();
                    chains.sort_unstable();
                    chains.dedup();
                    chains.len() + 1
                } else {
                    1
                };
                assert_eq!(repaired.len(), touched, "{disturbance}: {repaired:?}");
                assert_as_fresh(&mut world, disturbance);
            }
        }
    });
}

#[test]
fn a_partial_sync_over_a_chain_that_is_gone_ends_right_at_once() {
    lab::with_programs(&PROGRAMS, |lab| {
        for (family, variant) in everywhere() {
            let mut world = world(family, variant, OPTIONS);
            some_services(&mut world, 32);
            flush(lab, family, variant, Table::Nat);
            let served = world.desired.values().find(|service| {
                let mut ports = service.ports.iter();
                ports.any(weft_proxy::ServicePort::has_internal_endpoints)
            });
            let key = served.unwrap().key.clone();
            world.model.remove_service(&key);
            let report = world.sync();
            let failure = report
                .partial_failure
                .expect("its rule could not be deleted");
            // The failure names the line, with the program's message.
            let failure = error_text(&failure);
            assert!(failure.contains("line "), "{failure}");
            let program = programs(family, variant).programs().restore.clone();
            let program = program.to_str().unwrap().to_owned();
            assert!(failure.contains(&program), "{failure}");
            assert_as_fresh(&mut world, &format!("{family} {variant}"));
        }
    });
}

#[test]
fn a_restart_over_the_real_kernels_rules_writes_nothing() {
    lab::with_programs(&PROGRAMS, |_| {
        for (family, variant) in everywhere() {
            let mut world = world(family, variant, OPTIONS);
            let mut cluster = some_services(&mut world, 33);
            for _ in 0..10 {
                edit(&mut world, &mut cluster);
                world.sync();
            }
            let before = saved(world.backend.kernel());
            world.restart(kernel(family, variant), OPTIONS);
            let report = world.full_sync();
            assert_eq!(report.bytes, 0, "{family} {variant}");
            assert_eq!(saved(world.backend.kernel()), before);
        }
    });
}

#[test]
fn the_gate_is_switched_by_a_restart_over_the_real_kernel() {
    lab::with_programs(&PROGRAMS, |_| {
        for (family, variant) in everywhere() {
            let mut world = world(family, variant, GATE_OFF);
            let mut cluster = some_services(&mut world, 34);
            for options in [OPTIONS, GATE_OFF, OPTIONS] {
                world.restart(kernel(family, variant), options);
                let first = world.full_sync();
                assert_eq!(
                    first.bytes == 0,
                    options.restore == RestoreScope::Changes,
                    "{first:?}"
                );
                edit(&mut world, &mut cluster);
                assert_eq!(
                    world.sync().full,
                    options.restore == RestoreScope::Everything
                );
                assert_as_fresh(&mut world, &format!("{family} {variant} {options:?}"));
            }
        }
    });
}

#[test]
fn a_cleanup_leaves_nothing_of_ours_in_the_real_kernel() {
    lab::with_programs(&PROGRAMS, |_| {
        for (family, variant) in everywhere() {
            let mut world = world(family, variant, OPTIONS);
            some_services(&mut world, 35);
            let foreign = "*nat\n:CNI-HOSTPORT -\n-A PREROUTING -j CNI-HOSTPORT\nCOMMIT\n";
            disturb(family, variant, foreign);
            weft_iptables::cleanup(world.backend.kernel(), family).unwrap();
            let text = saved(world.backend.kernel());
            // kubelet has its chain and the jumps to it as well.
            let ours = text.lines().filter(|line| line.contains("KUBE-"));
            let ours: Vec<&str> = ours
                .filter(|line| !line.contains("KUBE-FIREWALL"))
                .collect();
            assert!(ours.is_empty(), "{family} {variant}: {ours:?}");
            assert!(text.contains("-A PREROUTING -j CNI-HOSTPORT\n"), "{text}");
            let again = weft_iptables::cleanup(world.backend.kernel(), family).unwrap();
            assert!(again.is_empty(), "{again}");
        }
    });
}

#[test]
fn support_for_nfacct_is_found_by_trying() {
    lab::with_programs(&PROGRAMS, |_| {
        for (family, variant) in everywhere() {
            assert!(!weft_iptables::supports_nfacct(&mut kernel(
                family, variant
            )));
        }
        crate::host::ensure_counters();
        for (family, variant) in everywhere() {
            let mut kernel = kernel(family, variant);
            assert!(
                weft_iptables::supports_nfacct(&mut kernel),
                "{family} {variant}"
            );
            let text = saved(&mut kernel);
            assert!(!text.contains("WEFT"), "the attempt left something: {text}");
        }
    });
}
