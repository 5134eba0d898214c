//! Tests of the simulated iptables-restore.

use weft_model::IpFamily;

use super::*;

fn restored(inputs: &[&str]) -> Ruleset {
    let mut ruleset = Ruleset::new(IpFamily::V4);
    for input in inputs {
        ruleset.restore(input).unwrap();
    }
    ruleset
}

fn rules(ruleset: &Ruleset, table: Table, chain: &'static str) -> Vec<String> {
    let rules = ruleset.rules(table, ChainName::fixed(chain));
    rules.iter().map(ToString::to_string).collect()
}

/// Line and reason of a refused input. Asserts that the input changed nothing.
fn refused(before: &[&str], input: &str) -> (usize, RestoreFailure) {
    let before = restored(before);
    let mut after = before.clone();
    let error = after.restore(input).unwrap_err();
    assert_eq!(after, before);
    (error.line, error.reason)
}

#[test]
fn a_chain_line_makes_a_chain_or_empties_it() {
    let ruleset = restored(&[
        "*nat\n:A - [0:0]\n-A A -j ACCEPT\nCOMMIT\n",
        "*nat\n:A - [0:0]\n-A A -j RETURN\nCOMMIT\n",
    ]);
    assert_eq!(rules(&ruleset, Table::Nat, "A"), ["-j RETURN"]);
}

#[test]
fn a_chain_line_of_a_built_in_chain_only_sets_its_policy() {
    let ruleset = restored(&[
        "*filter\n-A INPUT -j ACCEPT\nCOMMIT\n",
        "*filter\n:INPUT DROP [0:0]\nCOMMIT\n",
    ]);
    assert_eq!(rules(&ruleset, Table::Filter, "INPUT"), ["-j ACCEPT"]);
    let input = ruleset.chain(Table::Filter, ChainName::fixed("INPUT"));
    assert_eq!(input.unwrap().policy, Some(ChainPolicy::Drop));
}

#[test]
fn commands_take_effect_in_the_order_in_which_they_stand() {
    let ruleset = restored(&[
        "*filter\n:A -\n-A A -s 1.1.1.1 -j DROP\n-D A -s 1.1.1.1/32 -j DROP\n\
         -A A -s 2.2.2.2 -j DROP\n-I A -s 3.3.3.3 -j DROP\n-I A 2 -s 4.4.4.4 -j DROP\n\
         :B -\n-A B -j ACCEPT\n:B -\n-A B -j DROP\nCOMMIT\n",
    ]);
    assert_eq!(
        rules(&ruleset, Table::Filter, "A"),
        [
            "-s 3.3.3.3/32 -j DROP",
            "-s 4.4.4.4/32 -j DROP",
            "-s 2.2.2.2/32 -j DROP"
        ]
    );
    assert_eq!(rules(&ruleset, Table::Filter, "B"), ["-j DROP"]);
}

#[test]
fn deleting_a_rule_takes_the_first_of_equals() {
    let ruleset = restored(&[
        "*filter\n:A -\n-A A -j ACCEPT\n-A A -j DROP\n-A A -j ACCEPT\n-D A -j ACCEPT\nCOMMIT\n",
    ]);
    assert_eq!(
        rules(&ruleset, Table::Filter, "A"),
        ["-j DROP", "-j ACCEPT"]
    );
}

#[test]
fn an_error_keeps_the_tables_before_it_and_nothing_else() {
    let mut ruleset = Ruleset::new(IpFamily::V4);
    let input =
        "*filter\n:A -\nCOMMIT\n*nat\n:B -\n-A B -j NOWHERE\nCOMMIT\n*mangle\n:C -\nCOMMIT\n";
    let error = ruleset.restore(input).unwrap_err();
    assert_eq!(error.line, 6);
    assert_eq!(ruleset.tables().collect::<Vec<_>>(), [Table::Filter]);
    assert_eq!(ruleset.user_chains(Table::Filter).count(), 1);
}

#[test]
fn a_chain_goes_only_when_it_is_empty_and_no_rule_jumps_to_it() {
    let [a, b] = ["A", "B"].map(ChainName::fixed);
    let before = &["*filter\n:A -\n:B -\n-A A -j B\nCOMMIT\n"];
    let delete = |lines: &str| format!("*filter\n{lines}COMMIT\n");
    assert_eq!(
        refused(before, &delete("-X A\n")),
        (2, RestoreFailure::NotEmpty(a))
    );
    assert_eq!(
        refused(before, &delete("-X B\n")),
        (2, RestoreFailure::Referenced(b))
    );
    assert_eq!(
        refused(before, &delete(":A -\n-X A\n-X A\n")),
        (4, RestoreFailure::NoChain(a))
    );
    assert_eq!(
        refused(before, &delete("-X INPUT\n")),
        (2, RestoreFailure::BuiltIn(ChainName::fixed("INPUT")))
    );
    for way in [
        "-D A -j B\n-X B\n",
        ":A -\n-X B\n",
        "-F A\n-X B\n",
        "-F\n-X\n",
    ] {
        let ruleset = restored(&[before[0], &delete(way)]);
        assert_eq!(ruleset.chain(Table::Filter, b), None, "{way}");
    }
}

#[test]
fn references_that_come_and_go_after_the_count_count() {
    let b = ChainName::fixed("B");
    let lines = ":A -\n:B -\n:C -\n-X C\n-A A -j B\n-A A -j B\n-D A -j B\n-X B\n";
    let refusal = refused(&[], &format!("*filter\n{lines}COMMIT\n"));
    assert_eq!(refusal, (9, RestoreFailure::Referenced(b)));
    let lines = ":A -\n:B -\n:C -\n-A A -j B\n-X C\n-D A -j B\n-X B\n";
    let ruleset = restored(&[&format!("*filter\n{lines}COMMIT\n")]);
    assert_eq!(ruleset.chain(Table::Filter, b), None);
}

#[test]
fn a_mistake_is_named_with_its_line() {
    let [a, b] = ["A", "B"].map(ChainName::fixed);
    let before = &["*filter\n:A -\nCOMMIT\n"];
    let cases = [
        ("-A A -j B\n", 2, RestoreFailure::NoChain(b)),
        ("-A A -j B\n:B -\n", 2, RestoreFailure::NoChain(b)),
        ("-A B -j ACCEPT\n", 2, RestoreFailure::NoChain(b)),
        ("-F B\n", 2, RestoreFailure::NoChain(b)),
        ("-N A\n", 2, RestoreFailure::Exists(a)),
        ("-D A -j DROP\n", 2, RestoreFailure::NoRule(a)),
        ("-I A 2 -j DROP\n", 2, RestoreFailure::Position(a)),
        ("-I A 0 -j DROP\n", 2, RestoreFailure::Position(a)),
        (
            ":A DROP [0:0]\n",
            2,
            RestoreFailure::Policy("DROP".into(), a),
        ),
        (
            "-A A -j INPUT\n",
            2,
            RestoreFailure::BuiltIn(ChainName::fixed("INPUT")),
        ),
        (
            ":B -\n-A A -s 1.1.1.1 -j B\n-A B -j A\n-A INPUT -j B\n",
            6,
            RestoreFailure::Loop(b),
        ),
        (
            "-A OUTPUT -i eth0 -j A\n",
            2,
            RestoreFailure::NoArrival(ChainName::fixed("OUTPUT")),
        ),
        ("-A A -j MASQUERADE\n", 3, RestoreFailure::WrongTable(a)),
    ];
    for (lines, line, reason) in cases {
        let refusal = refused(before, &format!("*filter\n{lines}COMMIT\n"));
        assert_eq!(refusal, (line, reason), "{lines}");
    }
    assert_eq!(
        refused(before, "*filter\n:B -\n"),
        (3, RestoreFailure::CommitExpected)
    );
    assert_eq!(
        refused(before, "*nat\n-A OUTPUT -j DROP\nCOMMIT\n"),
        (2, RestoreFailure::DropInNat)
    );
    assert_eq!(refused(before, ":B -\n").1, RestoreFailure::NoTable);
    assert!(matches!(
        refused(before, "*filter\n-A A --odd\nCOMMIT\n"),
        (2, RestoreFailure::Rule(_))
    ));
}

#[test]
fn translations_stand_only_where_the_kernel_allows_them() {
    let a = ChainName::fixed("A");
    let dnat = "-A A -p tcp -j DNAT --to-destination 1.2.3.4:80\n";
    let masquerade = "-A A -j MASQUERADE\n";
    let input = |rule, from| format!("*nat\n:A -\n{rule}-A {from} -j A\nCOMMIT\n");
    for (rule, from) in [
        (dnat, "POSTROUTING"),
        (dnat, "INPUT"),
        (masquerade, "PREROUTING"),
        (masquerade, "OUTPUT"),
    ] {
        let from_chain = ChainName::parse(from).unwrap();
        let reason = RestoreFailure::WrongPlace {
            chain: a,
            from: from_chain,
        };
        assert_eq!(refused(&[], &input(rule, from)), (5, reason));
    }
    restored(&[&input(dnat, "OUTPUT"), &input(dnat, "PREROUTING")]);
    restored(&[&input(masquerade, "POSTROUTING")]);
}
