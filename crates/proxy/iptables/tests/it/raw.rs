//! Raw hashes of the real kernel.

use std::{thread, time::Duration};

use weft_host::iptables::{Iptables as Programs, VariantChoice};
use weft_iptables::{
    Fingerprint, HostKernel, Iptables, Kernel, KernelError, Options, OwnWrites, RawHash,
};
use weft_model::IpFamily;
use weft_proxy::{AuditReport, Backend as _, ReadBudget, Scope};
use weft_ruleset::{ChainName, Ruleset, Table};
use weft_testkit::{cluster::RandomCluster, lab};

use crate::world::{OPTIONS, World};

const PROGRAMS: [&str; 2] = ["iptables-nft", "ip6tables-nft"];

/// Without counters, which would have to be made first.
const WITHOUT_COUNTERS: Options = Options {
    nfacct: false,
    ..OPTIONS
};

/// Counts how often all text is read.
struct Counting {
    kernel: HostKernel,
    saves: usize,
}

impl Kernel for Counting {
    fn save(&mut self, line: &mut dyn FnMut(&str)) -> Result<(), KernelError> {
        self.saves += 1;
        self.kernel.save(line)
    }

    fn restore(&mut self, input: &str) -> Result<(), KernelError> {
        self.kernel.restore(input)
    }

    fn fingerprint(&mut self) -> Option<Fingerprint> {
        self.kernel.fingerprint()
    }

    fn chain_rules(&mut self, table: Table, chain: ChainName) -> Result<Vec<String>, KernelError> {
        self.kernel.chain_rules(table, chain)
    }

    fn raw_chains(
        &mut self,
        which: Option<&[(Table, ChainName)]>,
        each: &mut dyn FnMut(Table, ChainName, RawHash),
    ) -> Result<bool, KernelError> {
        self.kernel.raw_chains(which, each)
    }

    fn take_cpu_time(&mut self) -> Duration {
        self.kernel.take_cpu_time()
    }
}

/// A proxy in step with the real kernel, and a second writer to the same kernel.
struct Real {
    world: World,
    cluster: RandomCluster,
    backend: Iptables<Counting>,
    others: Programs,
}

impl Real {
    fn new(family: IpFamily) -> Self {
        let others = Programs::detect(family, VariantChoice::Nft).unwrap();
        let kernel = HostKernel::new(others.clone(), OwnWrites::default());
        let mut real = Self {
            world: World::new(family, WITHOUT_COUNTERS),
            cluster: RandomCluster::new(3),
            backend: Iptables::new(Counting { kernel, saves: 0 }, WITHOUT_COUNTERS),
            others,
        };
        for _ in 0..10 {
            real.add_service();
        }
        real.sync(true);
        real.assert_right("after the first sync");
        real.backend.kernel().saves = 0;
        real
    }

    fn add_service(&mut self) {
        for edit in self.cluster.add_service() {
            self.world.edit(&edit);
        }
    }

    fn sync(&mut self, full: bool) {
        self.world.derive();
        let changed = std::mem::take(&mut self.world.changed);
        let scope = if full {
            Scope::Full
        } else {
            Scope::Changed(&changed)
        };
        let (desired, settings) = (&self.world.desired, &self.world.settings);
        let report = self.backend.sync(desired, settings, scope).unwrap();
        assert!(report.partial_failure.is_none(), "{report:?}");
        assert_eq!(report.full, full);
    }

    fn write(&self, input: &str) {
        self.others.restore(input.as_bytes()).unwrap();
    }

    fn rules(&self) -> Ruleset {
        let mut text = String::new();
        let mut keep = |line: &str| text.extend([line, "\n"]);
        self.others.save_lines(None, &mut keep).unwrap();
        Ruleset::parse(&text, self.others.family()).unwrap()
    }

    /// Fails if the text that the kernel's rules have is not what it should be.
    fn assert_right(&self, when: &str) {
        let mut kernel = HostKernel::new(self.others.clone(), OwnWrites::default());
        let (desired, settings) = (&self.world.desired, &self.world.settings);
        let options = WITHOUT_COUNTERS;
        let (findings, _) =
            weft_iptables::differences(&mut kernel, desired, settings, options).unwrap();
        assert!(findings.is_empty(), "{when}: {findings:?}");
    }

    fn repaired(&mut self) -> Vec<String> {
        match self.backend.audit(ReadBudget::Available).unwrap() {
            AuditReport::Read { repaired, .. } => {
                repaired.iter().map(ToString::to_string).collect()
            }
            other => panic!("not read: {other:?}"),
        }
    }

    fn unchanged(&mut self) {
        assert_eq!(
            self.backend.audit(ReadBudget::Available).unwrap(),
            AuditReport::Unchanged
        );
    }
}

#[test]
fn a_flush_of_any_table_is_found_without_reading_text() {
    lab::with_programs(&PROGRAMS, |_| {
        for family in IpFamily::ALL {
            let mut real = Real::new(family);
            for table in Table::ALL {
                for remove in [false, true] {
                    let rules = real.rules();
                    let mut input = format!("*{table}\n");
                    for (chain, _) in rules.chains(table) {
                        input.extend(["-F ", chain.as_str(), "\n"]);
                    }
                    let chains = rules.user_chains(table).filter(|_| remove);
                    for (chain, _) in chains {
                        input.extend(["-X ", chain.as_str(), "\n"]);
                    }
                    real.write(&(input + "COMMIT\n"));
                    // Of mangle we have one empty chain, which a flush leaves as it is.
                    let is_hurt = remove || table != Table::Mangle;
                    assert_eq!(!real.repaired().is_empty(), is_hurt, "{family} {table}");
                    real.unchanged();
                    real.assert_right("after the flush");
                }
            }
            assert_eq!(real.backend.kernel().saves, 0);
        }
    });
}

#[test]
fn a_rule_edited_by_others_is_found_without_reading_text() {
    lab::with_programs(&PROGRAMS, |_| {
        for family in IpFamily::ALL {
            let mut real = Real::new(family);
            // One rule of each chain is replaced by one that does nothing.
            let rules = real.rules();
            for table in [Table::Filter, Table::Nat] {
                for (chain, _) in rules.user_chains(table) {
                    let Some(rule) = rules.rules(table, chain).first() else {
                        continue;
                    };
                    let comment = "-m comment --comment other -j RETURN";
                    real.write(&format!(
                        "*{table}\n-D {chain} {rule}\n-I {chain} {comment}\nCOMMIT\n"
                    ));
                    assert_eq!(real.repaired(), [format!("{table} {chain} differs")]);
                    real.unchanged();
                }
            }
            real.assert_right("after all edits");
            assert_eq!(real.backend.kernel().saves, 0);
        }
    });
}

#[test]
fn our_own_writes_are_distinguished_from_foreign_ones_without_reading_text() {
    lab::with_programs(&PROGRAMS, |_| {
        for family in IpFamily::ALL {
            let mut real = Real::new(family);
            for round in 0..6 {
                real.add_service();
                real.sync(false);
                if round % 2 == 0 {
                    real.unchanged();
                }
                // Next to our rules, and then among those that we have just written.
                real.write("*filter\n-I FORWARD -p udp -j RETURN\nCOMMIT\n");
                assert_eq!(real.repaired(), [""; 0]);
                real.add_service();
                real.sync(false);
                real.write("*nat\n-I KUBE-SERVICES -p udp -j RETURN\nCOMMIT\n");
                assert_eq!(real.repaired(), ["nat KUBE-SERVICES differs"]);
                real.sync(true);
                real.unchanged();
                real.assert_right(&format!("{family} {round}"));
            }
            assert_eq!(real.backend.kernel().saves, 0);
        }
    });
}

#[test]
fn a_fingerprint_shows_the_writes_of_others_and_none_of_ours() {
    lab::with_programs(&PROGRAMS, |_| {
        let own_writes = OwnWrites::default();
        let [mut kernel, mut sibling] = IpFamily::ALL.map(|family| {
            let programs = Programs::detect(family, VariantChoice::Nft).unwrap();
            HostKernel::new(programs, own_writes.clone())
        });
        let others = Programs::detect(IpFamily::V4, VariantChoice::Nft).unwrap();
        let write = "*nat\n:KUBE-TEST - [0:0]\n-A KUBE-TEST -j RETURN\nCOMMIT\n";
        kernel.restore(write).unwrap();
        let before = kernel.fingerprint().unwrap();
        assert!(before.exact);

        // The sibling writes while we look.
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for _ in 0..40 {
                    sibling.restore(write).unwrap();
                }
            });
            // Not known, or as before: never a number that counts the half of a write.
            while !writer.is_finished() {
                assert!(kernel.fingerprint().is_none_or(|now| now == before));
            }
        });

        // Emptying an empty chain changes nothing, and the kernel does not count it.
        let nothing = "*mangle\n:KUBE-EMPTY - [0:0]\nCOMMIT\n";
        for _ in 0..3 {
            kernel.restore(nothing).unwrap();
            assert_eq!(kernel.fingerprint().as_ref(), Some(&before));
        }
        others.restore(write.as_bytes()).unwrap();
        assert_ne!(kernel.fingerprint().as_ref(), Some(&before));
    });
}
