//! Tests of comparing two rulesets.

use weft_model::IpFamily;

use super::*;

/// Two Services as kube-proxy writes them, with everything that matters to a comparison.
const THEIRS: &str = "\
*mangle
:PREROUTING ACCEPT [0:0]
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -j cni-input
-A INPUT -m comment --comment \"kubernetes portals\" -j KUBE-EXTERNAL-SERVICES
-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-SERVICES -d 10.96.0.9/32 -p tcp -m comment --comment \"n/empty has no endpoints\" -m tcp --dport 80 -j DROP
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-EXT-A - [0:0]
:KUBE-EXT-B - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-SEP-A1 - [0:0]
:KUBE-SEP-A2 - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-A - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A KUBE-EXT-A -j KUBE-SVC-A
-A KUBE-NODEPORTS -d 127.0.0.0/8 -p tcp -m comment --comment \"n/a:p\" -m tcp --dport 30001 -m nfacct --nfacct-name  localhost_nps_accepted_pkts -j KUBE-EXT-A
-A KUBE-NODEPORTS -p tcp -m comment --comment \"n/a:p\" -m tcp --dport 30001 -j KUBE-EXT-A
-A KUBE-NODEPORTS -p tcp -m comment --comment \"n/b:p\" -m tcp --dport 30002 -j KUBE-EXT-B
-A KUBE-SEP-A1 -s 10.0.0.1/32 -m comment --comment \"n/a:p\" -j KUBE-MARK-MASQ
-A KUBE-SEP-A1 -p tcp -m comment --comment \"n/a:p\" -m tcp -j DNAT --to-destination 10.0.0.1:80
-A KUBE-SEP-A2 -p tcp -m comment --comment \"n/a:p\" -m tcp -j DNAT --to-destination 10.0.0.2:80
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment \"n/a:p cluster IP\" -m tcp --dport 80 -j KUBE-SVC-A
-A KUBE-SERVICES -d 1.2.3.4/32 -p tcp -m comment --comment \"n/a:p external IP\" -m tcp --dport 80 -j KUBE-EXT-A
-A KUBE-SERVICES -d 5.6.7.8/32 -p tcp -m comment --comment \"n/a:p loadbalancer IP\" -m tcp --dport 80 -j KUBE-EXT-A
-A KUBE-SERVICES -d 10.96.0.2/32 -p tcp -m comment --comment \"n/b:p cluster IP\" -m tcp --dport 80 -j KUBE-EXT-B
-A KUBE-SERVICES -d 9.9.9.9/32 -p tcp -m comment --comment \"n/b:p external IP\" -m tcp --dport 80 -j KUBE-EXT-B
-A KUBE-SERVICES -d 192.168.0.2/32 -m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\" -j KUBE-NODEPORTS
-A KUBE-SERVICES -d 127.0.0.1/32 -m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\" -j KUBE-NODEPORTS
-A KUBE-SVC-A ! -s 10.0.0.0/8 -m comment --comment \"n/a:p cluster IP\" -j KUBE-MARK-MASQ
-A KUBE-SVC-A -m comment --comment \"n/a:p -> 10.0.0.1:80\" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-A1
-A KUBE-SVC-A -m comment --comment \"n/a:p -> 10.0.0.2:80\" -j KUBE-SEP-A2
COMMIT
";

fn differences_with(ours: &str, options: ComparisonOptions) -> Vec<String> {
    let [theirs, ours] = [THEIRS, ours].map(|text| Ruleset::parse(text, IpFamily::V4).unwrap());
    let differences = compare(&theirs, &ours, options);
    differences.iter().map(ToString::to_string).collect()
}

fn differences(ours: &str) -> Vec<String> {
    differences_with(ours, ComparisonOptions::default())
}

/// Asserts that there is one difference, which begins like this.
fn one_difference(ours: &str, beginning: &str) {
    let differences = differences(ours);
    assert!(
        matches!(&differences[..], [only] if only.starts_with(beginning)),
        "{beginning}\n{differences:#?}"
    );
}

/// The line with this start and this part, with its line end.
fn line<'a>(text: &'a str, start: &str, part: &str) -> &'a str {
    let mut lines = text.split_inclusive('\n');
    let found = lines.find(|line| line.starts_with(start) && line.contains(part));
    found.unwrap_or_else(|| panic!("{start} … {part}"))
}

fn without(start: &str, part: &str) -> String {
    THEIRS.replacen(line(THEIRS, start, part), "", 1)
}

/// Moves one line before another.
fn moved(start: &str, part: &str, before: &str) -> String {
    let text = without(start, part);
    let target = line(&text, start, before);
    text.replacen(target, &format!("{}{target}", line(THEIRS, start, part)), 1)
}

#[test]
fn equal_rulesets_have_no_differences() {
    assert_eq!(differences(THEIRS), [""; 0]);
}

#[test]
fn services_may_come_in_any_order_in_shared_chains() {
    let mut ours = moved("-A KUBE-SERVICES", "n/b:p cluster", "n/a:p cluster");
    let external = line(&ours, "-A KUBE-SERVICES", "n/b:p external").to_owned();
    let first = line(&ours, "-A KUBE-SERVICES", "n/a:p cluster").to_owned();
    ours = ours.replacen(&external, "", 1);
    ours = ours.replacen(&first, &format!("{external}{first}"), 1);
    assert_eq!(differences(&ours), [""; 0]);
    let node_ports = moved("-A KUBE-NODEPORTS", "n/b:p", "127.0.0.0/8");
    assert_eq!(differences(&node_ports), [""; 0]);
}

#[test]
fn ways_to_node_ports_may_come_in_any_order() {
    let ours = moved("-A KUBE-SERVICES", "127.0.0.1/32", "192.168.0.2/32");
    assert_eq!(differences(&ours), [""; 0]);
}

#[test]
fn rules_and_policies_of_others_in_built_in_chains_do_not_matter() {
    let ours = without("-A INPUT", "cni-input").replace(":FORWARD ACCEPT", ":FORWARD DROP");
    assert_eq!(differences(&ours), [""; 0]);
}

#[test]
fn our_jumps_in_built_in_chains_are_ordered() {
    let ours = moved("-A FORWARD", "KUBE-SERVICES", "KUBE-FORWARD");
    one_difference(
        &ours,
        "filter FORWARD: rules in another order from number 1 on",
    );
    let ours = without("-A OUTPUT", "KUBE-SERVICES");
    one_difference(&ours, "nat OUTPUT: missing rule: -j KUBE-SERVICES");
}

#[test]
fn missing_and_extra_chains_are_reported() {
    one_difference(
        &without(":KUBE-PROXY-CANARY", ""),
        "mangle: chain KUBE-PROXY-CANARY is missing",
    );
    let ours = THEIRS.replace(":KUBE-SVC-A", ":KUBE-SVC-0 - [0:0]\n:KUBE-SVC-A");
    one_difference(&ours, "nat: chain KUBE-SVC-0 should not be there");
}

#[test]
fn missing_extra_and_changed_rules_are_reported() {
    one_difference(
        &without("-A KUBE-SVC-A", "KUBE-SEP-A2"),
        "nat KUBE-SVC-A: missing rule: -m comment",
    );
    let twice = line(THEIRS, "-A KUBE-SERVICES", "n/b:p cluster");
    one_difference(
        &THEIRS.replace(twice, &format!("{twice}{twice}")),
        "nat KUBE-SERVICES: rule that should not be there: -d 10.96.0.2/32",
    );
    let changed = differences(&THEIRS.replace("10.0.0.2:80\n", "10.0.0.2:81\n"));
    assert_eq!(changed.len(), 2, "{changed:#?}");
}

#[test]
fn order_counts_in_chains_of_one_service() {
    let ours = moved("-A KUBE-SVC-A", "KUBE-SEP-A2", "KUBE-SEP-A1");
    one_difference(
        &ours,
        "nat KUBE-SVC-A: rules in another order from number 2 on",
    );
}

#[test]
fn node_ports_come_last() {
    let ours = moved("-A KUBE-SERVICES", "192.168.0.2/32", "n/a:p cluster");
    one_difference(
        &ours,
        "nat KUBE-SERVICES: jump for node ports is not last (found): -d 192.168.0.2/32",
    );
}

#[test]
fn the_loopback_twin_comes_before_the_plain_one() {
    let ours = moved("-A KUBE-NODEPORTS -p", "n/a:p", "n/b:p");
    let twin = line(&ours, "-A KUBE-NODEPORTS", "127.0.0.0/8").to_owned();
    let plain = line(&ours, "-A KUBE-NODEPORTS -p", "n/a:p").to_owned();
    let ours = ours.replacen(&twin, "", 1);
    let ours = ours.replacen(&plain, &format!("{plain}{twin}"), 1);
    one_difference(
        &ours,
        "nat KUBE-NODEPORTS: rules of n/a:p (tcp) in another order",
    );
}

#[test]
fn rules_of_a_service_port_stand_together_and_in_order() {
    let ours = moved("-A KUBE-SERVICES", "n/a:p external", "n/b:p external");
    let found = differences(&ours);
    let scattered = |port: &str| {
        format!("nat KUBE-SERVICES: rules of n/{port}:p (tcp) are not contiguous (found)")
    };
    assert!(found.contains(&scattered("a")), "{found:#?}");
    assert!(found.contains(&scattered("b")), "{found:#?}");
    let ours = moved("-A KUBE-SERVICES", "n/a:p loadbalancer", "n/a:p external");
    one_difference(
        &ours,
        "nat KUBE-SERVICES: rules of n/a:p (tcp) in another order",
    );
}

#[test]
fn comments_of_endpoints_can_be_ignored_and_no_others() {
    let options = ComparisonOptions {
        ignore_endpoint_comments: true,
        ..ComparisonOptions::default()
    };
    let bare = THEIRS
        .replace("-m comment --comment \"n/a:p -> 10.0.0.1:80\" ", "")
        .replace(
            "-m comment --comment \"n/a:p\" -m tcp -j DNAT",
            "-m tcp -j DNAT",
        );
    assert_eq!(differences_with(&bare, options), [""; 0]);
    assert_eq!(differences(&bare).len(), 6);
    let more = bare.replace(
        "! -s 10.0.0.0/8 -m comment --comment \"n/a:p cluster IP\" ",
        "! -s 10.0.0.0/8 ",
    );
    assert_eq!(differences_with(&more, options).len(), 2);
}

#[test]
fn stale_chains_can_be_ignored_and_no_others() {
    let options = ComparisonOptions {
        ignore_stale_chains: true,
        ..ComparisonOptions::default()
    };
    let stale = THEIRS
        .replace(
            ":KUBE-SVC-A",
            ":KUBE-SEP-0 - [0:0]\n:KUBE-SVC-0 - [0:0]\n:KUBE-SVC-A",
        )
        .replace(
            "-A KUBE-SVC-A !",
            "-A KUBE-SVC-0 -j KUBE-SEP-0\n-A KUBE-SVC-A !",
        );
    assert_eq!(differences_with(&stale, options), [""; 0]);
    assert_eq!(differences(&stale).len(), 2);
    let used = stale.replace(
        "-A KUBE-EXT-A -j",
        "-A KUBE-EXT-A -j KUBE-SVC-0\n-A KUBE-EXT-A -j",
    );
    let found = differences_with(&used, options);
    assert_eq!(found.len(), 3, "{found:#?}");
}

#[test]
fn foreign_chains_can_be_ignored() {
    let ours = THEIRS.replace(":KUBE-SVC-A", ":CNI-X - [0:0]\n:KUBE-SVC-A");
    one_difference(&ours, "nat: chain CNI-X should not be there");
    let options = ComparisonOptions {
        ignore_foreign_chains: true,
        ..ComparisonOptions::default()
    };
    assert_eq!(differences_with(&ours, options), [""; 0]);
}
