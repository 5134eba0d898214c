//! The simulated kernel compared with the real one, with both variants of iptables.

use std::{
    cell::Cell,
    fmt::Write as _,
    io::Write as _,
    process::{Output, Stdio},
};

use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    strategy::ValueTree,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use weft_model::IpFamily;
use weft_ruleset::{ChainName, Ruleset, Table};
use weft_testkit::lab::{self, Namespace};

use crate::arbitrary::{self, Kind};

const VARIANTS: [&str; 2] = ["nft", "legacy"];
const PROGRAMS: [&str; 4] = [
    "iptables-nft",
    "iptables-legacy",
    "ip6tables-nft",
    "ip6tables-legacy",
];

/// Creates all tables and empties them.
const RESET: &str = "\
*mangle\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n\
*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n\
*nat\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n";

/// One variant's tables of one family in a namespace.
struct Kernel<'a> {
    node: &'a Namespace,
    family: IpFamily,
    variant: &'static str,
}

impl Kernel<'_> {
    fn reset(&self) {
        let output = self.run("restore", &[], RESET);
        assert!(output.status.success(), "{output:?}");
    }

    fn restore(&self, input: &str) -> Output {
        self.run("restore", &["-w", "5", "--noflush"], input)
    }

    fn save(&self) -> Ruleset {
        let output = self.run("save", &[], "");
        let text = String::from_utf8(output.stdout).unwrap();
        Ruleset::parse(&text, self.family).unwrap()
    }

    fn run(&self, program: &str, arguments: &[&str], input: &str) -> Output {
        let family = match self.family {
            IpFamily::V4 => "ip",
            IpFamily::V6 => "ip6",
        };
        let program = format!("{family}tables-{}-{program}", self.variant);
        let mut child = self
            .node
            .command(&program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // A program that refuses its input may close it first; its exit status decides.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        child.wait_with_output().unwrap()
    }
}

fn kernels(node: &Namespace, family: IpFamily) -> [Kernel<'_>; 2] {
    VARIANTS.map(|variant| Kernel {
        node,
        family,
        variant,
    })
}

fn fresh(family: IpFamily) -> Ruleset {
    let mut ruleset = Ruleset::new(family);
    ruleset.restore(RESET).unwrap();
    ruleset
}

/// Restores an input in both kernels and the simulated one: all accept it or all refuse it, and all
/// have the same rules afterwards. Returns whether they accepted it.
fn agree(kernels: &[Kernel<'_>], simulated: &mut Ruleset, input: &str) -> bool {
    let expected = simulated.restore(input);
    for kernel in kernels {
        let output = kernel.restore(input);
        let said = String::from_utf8_lossy(&output.stderr);
        let about = format!(
            "{}: {said}\nsimulated: {expected:?}\n{input}",
            kernel.variant
        );
        assert_eq!(output.status.success(), expected.is_ok(), "{about}");
        if let (Err(error), "legacy") = (&expected, kernel.variant) {
            assert_eq!(failing_line(&said), Some(error.line), "{about}");
        }
        let (real, ours) = (kernel.save().to_string(), simulated.to_string());
        assert_eq!(real, ours, "{about}");
    }
    expected.is_ok()
}

/// The first number after the word "line".
fn failing_line(said: &str) -> Option<usize> {
    let (_, behind) = said.split_once("line")?;
    let digits = behind.trim_start_matches([':', ' ']);
    let end = digits.find(|c: char| !c.is_ascii_digit());
    digits[..end.unwrap_or(digits.len())].parse().ok()
}

/// Conditions and verdicts that fit every table, as the kernel prints them and as kube-proxy writes
/// them. Each verdict has a condition: legacy ignores rules after an unconditional one.
const VERDICTS: [&str; 8] = [
    "-s 10.0.0.1/32 -j ACCEPT",
    "-s 10.0.0.1 -j ACCEPT",
    "-d 10.0.0.0/8 -p tcp -m comment --comment \"a/b:c\" -m tcp --dport 80 -j RETURN",
    "-m comment --comment a/b:c -m tcp -p tcp -d 10.0.0.0/8 --dport 80 -j RETURN",
    "-m mark ! --mark 0x4000/0x4000 -j RETURN",
    "! -s 10.1.0.0/16 ! -i veth+ -p udp -m udp --dport 53 -j MARK --set-xmark 0x4000/0x4000",
    "-m statistic --mode random --probability 0.33333333349 -j RETURN",
    "-m comment --comment \"only words\"",
];

fn own_targets(table: Table) -> &'static [&'static str] {
    match table {
        Table::Mangle => &[],
        Table::Filter => &[
            "-p tcp -m tcp --dport 81 -j REJECT",
            "-p tcp -m tcp --dport 81 -j REJECT --reject-with icmp-port-unreachable",
            "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
        ],
        Table::Nat => &[
            "-p tcp -m comment --comment x -m tcp -j DNAT --to-destination 10.0.0.9:80",
            "-m comment --comment \"snat it\" -j MASQUERADE --random-fully",
            "-s 10.0.0.2/32 -j DROP",
            "-m addrtype --dst-type LOCAL -m tcp -p tcp --dport 30000 -j RETURN",
        ],
    }
}

const CHAINS: [&str; 5] = ["A", "B", "KUBE-C", "KUBE-D", "KUBE-E"];

fn chain(table: Table) -> impl Strategy<Value = String> {
    let built_in = table.built_in_chains().iter().map(ToString::to_string);
    let built_in: Vec<_> = built_in.collect();
    prop_oneof![
        4 => select(&CHAINS[..]).prop_map(str::to_owned),
        1 => select(built_in),
    ]
}

fn rule(table: Table) -> BoxedStrategy<String> {
    let jump = select(&CHAINS[..]).prop_map(|chain| format!("-j {chain}"));
    let verdict = select(&VERDICTS[..]).prop_map(str::to_owned);
    match own_targets(table) {
        [] => prop_oneof![2 => jump, 3 => verdict].boxed(),
        own => {
            let own = select(own).prop_map(str::to_owned);
            prop_oneof![4 => jump, 6 => verdict, 1 => own].boxed()
        }
    }
}

fn command(table: Table) -> impl Strategy<Value = String> {
    let policy = select(&["ACCEPT", "DROP", "-"][..]);
    let built_in = select(table.built_in_chains());
    let user = || select(&CHAINS[..]);
    let at = select(&["", "1 "][..]);
    prop_oneof![
        6 => user().prop_map(|chain| format!(":{chain} - [0:0]")),
        1 => (built_in, policy).prop_map(|(chain, policy)| format!(":{chain} {policy} [0:0]")),
        9 => (chain(table), rule(table)).prop_map(|(chain, rule)| format!("-A {chain} {rule}")),
        3 => (chain(table), at, rule(table))
            .prop_map(|(chain, at, rule)| format!("-I {chain} {at}{rule}")),
        2 => (chain(table), rule(table)).prop_map(|(chain, rule)| format!("-D {chain} {rule}")),
        2 => user().prop_map(|chain| format!("-X {chain}")),
        1 => user().prop_map(|chain| format!("-N {chain}")),
        1 => chain(table).prop_map(|chain| format!("-F {chain}")),
    ]
}

/// Most inputs begin with the chains that they use; otherwise few would be accepted.
fn section() -> impl Strategy<Value = String> {
    let table = select(&Table::ALL[..]);
    let section = |table| (Just(table), any::<[bool; 5]>(), vec(command(table), 0..8));
    table
        .prop_flat_map(section)
        .prop_map(|(table, declared, commands)| {
            let mut text = format!("*{table}\n");
            for (chain, declared) in CHAINS.iter().zip(declared) {
                if declared {
                    writeln!(text, ":{chain} - [0:0]").unwrap();
                }
            }
            for command in commands {
                writeln!(text, "{command}").unwrap();
            }
            text + "COMMIT\n"
        })
}

fn input() -> impl Strategy<Value = String> {
    vec(section(), 1..3).prop_map(|sections| sections.concat())
}

#[test]
fn random_inputs_leave_the_real_and_the_simulated_kernel_alike() {
    lab::with_programs(&PROGRAMS, |lab| {
        let node = lab.namespace("node");
        let kernels = kernels(&node, IpFamily::V4);
        // The same inputs in every run, so that a difference is reproducible.
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let config = Config {
            cases: 60,
            failure_persistence: None,
            ..Config::default()
        };
        let (taken, refused) = (Cell::new(0), Cell::new(0));
        TestRunner::new_with_rng(config, rng)
            .run(&vec(input(), 1..4), |inputs| {
                kernels.iter().for_each(Kernel::reset);
                let mut simulated = fresh(IpFamily::V4);
                for input in &inputs {
                    let fate = if agree(&kernels, &mut simulated, input) {
                        &taken
                    } else {
                        &refused
                    };
                    fate.set(fate.get() + 1);
                }
                Ok(())
            })
            .unwrap();
        // A set of inputs that are always or never refused would show nothing.
        let (taken, refused) = (taken.get(), refused.get());
        assert!(
            taken > 20 && refused > 20,
            "{taken} taken, {refused} refused"
        );
    });
}

/// Rules that a probe chain may contain, the same in every run.
fn rules(kind: Kind, count: usize) -> Vec<weft_ruleset::Rule> {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = vec(arbitrary::rule(kind), count);
    strategy.new_tree(&mut runner).unwrap().current()
}

#[test]
fn rules_print_exactly_as_both_variants_save_them() {
    lab::with_programs(&PROGRAMS, |lab| {
        let node = lab.namespace("node");
        for family in IpFamily::ALL {
            let mut ours = fresh(family);
            for table in Table::ALL {
                for name in ["KUBE-A", "KUBE-SVC-B", "c_1.d:e/f"] {
                    ours.chain_mut(table, ChainName::parse(name).unwrap());
                }
                let counters = false;
                let kind = Kind {
                    family,
                    table,
                    counters,
                };
                for rule in rules(kind, 150) {
                    ours.append(table, ChainName::fixed("PRINTED"), rule);
                }
            }
            for kernel in kernels(&node, family) {
                kernel.reset();
                let output = kernel.restore(&ours.to_string());
                assert!(output.status.success(), "{output:?}");
                let saved = kernel.run("save", &[], "").stdout;
                let saved = String::from_utf8(saved).unwrap();
                for line in ours.to_string().lines().filter(|l| l.starts_with("-A")) {
                    assert!(
                        saved.lines().any(|l| l == line),
                        "{}: {line}",
                        kernel.variant
                    );
                }
                assert_eq!(kernel.save(), ours, "{} {family}", kernel.variant);
            }
        }
    });
}

#[test]
fn rules_are_found_and_deleted_by_the_text_that_we_print() {
    lab::with_programs(&PROGRAMS, |lab| {
        let node = lab.namespace("node");
        let (table, family) = (Table::Filter, IpFamily::V4);
        for kernel in kernels(&node, family) {
            kernel.reset();
            let mut simulated = fresh(family);
            let kind = Kind {
                family,
                table,
                counters: false,
            };
            let (mut appends, mut deletes) = (String::new(), String::new());
            for rule in rules(kind, 60) {
                writeln!(appends, "-A A {rule}").unwrap();
                writeln!(deletes, "-D A {rule}").unwrap();
            }
            let chains = ":A -\n:KUBE-A -\n:KUBE-SVC-B -\n:c_1.d:e/f -\n";
            let kernels = [kernel];
            assert!(agree(
                &kernels,
                &mut simulated,
                &format!("*filter\n{chains}{appends}COMMIT\n")
            ));
            assert!(agree(
                &kernels,
                &mut simulated,
                &format!("*filter\n{deletes}COMMIT\n")
            ));
            assert!(simulated.rules(table, ChainName::fixed("A")).is_empty());
        }
    });
}

#[test]
fn a_line_for_a_built_in_chain_keeps_its_rules() {
    lab::with_programs(&PROGRAMS, |lab| {
        let node = lab.namespace("node");
        let kernels = kernels(&node, IpFamily::V4);
        kernels.iter().for_each(Kernel::reset);
        let mut simulated = fresh(IpFamily::V4);
        for input in [
            "*nat\n:K -\n-A PREROUTING -j K\n-A OUTPUT -j K\nCOMMIT\n",
            "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT - [0:0]\nCOMMIT\n",
            "*nat\n-I OUTPUT -j RETURN\n:OUTPUT DROP [0:0]\n-I OUTPUT -j ACCEPT\nCOMMIT\n",
            "*nat\n-I K 1 -j RETURN\n-I K 2 -j ACCEPT\nCOMMIT\n",
        ] {
            assert!(agree(&kernels, &mut simulated, input), "{input}");
        }
        assert_eq!(
            simulated
                .rules(Table::Nat, ChainName::fixed("OUTPUT"))
                .len(),
            3
        );
        let too_far = "*nat\n-I K 4 -j ACCEPT\nCOMMIT\n";
        assert!(!agree(&kernels, &mut simulated, too_far));
    });
}

/// Verifies the list of differences in the documentation of `simulated`.
#[test]
fn where_the_variants_differ_the_stricter_one_is_followed() {
    let before = "*filter\n:A -\n-A A -j ACCEPT\n-A A -j RETURN\nCOMMIT\n";
    // The input, and whether nft and legacy accept it.
    let cases = [
        (":B ACCEPT [0:0]\n", [true, false]),
        (":A -\n-I A 2 -j DROP\n", [true, false]),
        (":B -\n-A B -j ACCEPT\n-X B\n-F\n", [true, false]),
        (
            ":B -\n-A B -j B\n-A INPUT -j ACCEPT\n-A INPUT -j B\n",
            [false, true],
        ),
    ];
    lab::with_programs(&PROGRAMS, |lab| {
        let node = lab.namespace("node");
        for (lines, taken_by) in cases {
            let input = format!("*filter\n{lines}COMMIT\n");
            for (kernel, taken) in kernels(&node, IpFamily::V4).into_iter().zip(taken_by) {
                kernel.reset();
                assert!(kernel.restore(before).status.success());
                let output = kernel.restore(&input);
                assert_eq!(output.status.success(), taken, "{} {input}", kernel.variant);
            }
            let mut simulated = fresh(IpFamily::V4);
            simulated.restore(before).unwrap();
            assert!(simulated.restore(&input).is_err(), "{input}");
        }
    });
}

/// The kernel compares more of a `recent` rule than its text shows.
#[test]
fn a_recent_rule_is_deleted_only_in_the_spelling_in_which_it_was_made() {
    let short = "-m recent --name A --set -j RETURN";
    let long = "-m recent --set --name A --mask 255.255.255.255 --rsource -j RETURN";
    lab::with_programs(&PROGRAMS, |lab| {
        let node = lab.namespace("node");
        for kernel in kernels(&node, IpFamily::V4) {
            for (made, deleted) in [(short, short), (long, long), (short, long), (long, short)] {
                kernel.reset();
                let make = format!("*filter\n:A -\n-A A {made}\nCOMMIT\n");
                assert!(kernel.restore(&make).status.success());
                let delete = kernel.restore(&format!("*filter\n-D A {deleted}\nCOMMIT\n"));
                assert_eq!(
                    delete.status.success(),
                    made == deleted,
                    "{}",
                    kernel.variant
                );
            }
        }
    });
}
