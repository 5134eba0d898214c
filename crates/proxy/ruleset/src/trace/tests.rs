//! Tests of tracing packets through rules.

use weft_model::IpFamily;

use super::*;

/// A Service with three endpoints, an external one with traffic policy Local, one with affinity,
/// one without endpoints, and foreign rules.
const SAVED: &str = "\
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A FORWARD -d 10.180.0.0/16 -j ACCEPT
-A FORWARD -p icmp -m icmp --icmp-type 8 -j ACCEPT
-A OUTPUT -m conntrack --ctstate NEW -j KUBE-SERVICES
-A KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment \"n/none has no endpoints\" -m addrtype --dst-type LOCAL -m tcp --dport 30003 -j REJECT --reject-with icmp-port-unreachable
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-SERVICES -d 10.96.0.9/32 -p tcp -m comment --comment \"n/none has no endpoints\" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-EXT-L - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-1 - [0:0]
:KUBE-SEP-2 - [0:0]
:KUBE-SEP-3 - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-A - [0:0]
:KUBE-SVC-S - [0:0]
:KUBE-SVL-L - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A KUBE-EXT-L -i veth+ -m comment --comment \"pod traffic for n/l external destinations\" -j KUBE-SVC-A
-A KUBE-EXT-L -m comment --comment \"route LOCAL traffic for n/l external destinations\" -m addrtype --src-type LOCAL -j KUBE-SVC-A
-A KUBE-EXT-L -j KUBE-SVL-L
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-NODEPORTS -p tcp -m comment --comment \"n/l\" -m tcp --dport 30001 -j KUBE-EXT-L
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully
-A KUBE-SEP-1 -s 10.180.0.1/32 -m comment --comment \"n/a:dns\" -j KUBE-MARK-MASQ
-A KUBE-SEP-1 -p udp -m comment --comment \"n/a:dns\" -m udp -j DNAT --to-destination 10.180.0.1:53
-A KUBE-SEP-1 -p tcp -m comment --comment \"n/a:dns\" -m tcp -j DNAT --to-destination 10.180.0.1:80
-A KUBE-SEP-2 -m comment --comment \"n/a:dns\" -m recent --set --name KUBE-SEP-2 --mask 255.255.255.255 --rsource -p udp -m udp -j DNAT --to-destination 10.180.0.2:53
-A KUBE-SEP-3 -p udp -m comment --comment \"n/a:dns\" -m udp -j DNAT --to-destination 10.180.0.3:53
-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m comment --comment \"n/a:dns cluster IP\" -m udp --dport 53 -j KUBE-SVC-A
-A KUBE-SERVICES -d 10.96.0.11/32 -p udp -m comment --comment \"n/s:dns cluster IP\" -m udp --dport 53 -j KUBE-SVC-S
-A KUBE-SERVICES -m comment --comment \"kubernetes service nodeports\" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-A ! -s 10.180.0.0/16 -d 10.96.0.10/32 -p udp -m comment --comment \"n/a:dns cluster IP\" -m udp --dport 53 -j KUBE-MARK-MASQ
-A KUBE-SVC-A -m comment --comment \"n/a:dns -> 10.180.0.1:53\" -m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-1
-A KUBE-SVC-A -m comment --comment \"n/a:dns -> 10.180.0.2:53\" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-2
-A KUBE-SVC-A -m comment --comment \"n/a:dns -> 10.180.0.3:53\" -j KUBE-SEP-3
-A KUBE-SVC-S -m comment --comment \"n/s:dns -> 10.180.0.2:53\" -m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-2 --mask 255.255.255.255 --rsource -j KUBE-SEP-2
-A KUBE-SVC-S -m comment --comment \"n/s:dns -> 10.180.0.3:53\" -j KUBE-SEP-3
-A KUBE-SVL-L -m comment --comment \"n/l -> 10.180.0.1:80\" -j KUBE-SEP-1
COMMIT
";

fn ruleset() -> Ruleset {
    Ruleset::parse(SAVED, IpFamily::V4).unwrap()
}

fn packet(source: &str, destination: &str, protocol: Protocol) -> Packet {
    let destination: SocketAddr = destination.parse().unwrap();
    let node: IpAddr = "192.168.0.2".parse().unwrap();
    let source: IpAddr = source.parse().unwrap();
    Packet {
        source,
        destination: destination.ip(),
        protocol,
        destination_port: destination.port(),
        entry: if source == node {
            Entry::Sent
        } else {
            Entry::Arriving {
                device: Some("eth0".to_owned()),
            }
        },
        mark: 0,
        local_addresses: BTreeSet::from([node]),
        affinity: None,
    }
}

fn only(outcomes: Vec<Outcome>) -> Outcome {
    assert_eq!(outcomes.len(), 1, "{outcomes:#?}");
    outcomes.into_iter().next().unwrap()
}

fn address(text: &str) -> Verdict {
    Verdict::Dnat(text.parse().unwrap())
}

#[test]
fn a_service_spreads_its_clients_evenly_and_the_words_say_how() {
    let outcomes = ruleset().trace(&packet("10.180.0.7", "10.96.0.10:53", Protocol::Udp));
    let first = 715_827_883.0 / 2_147_483_648.0;
    let rest = (1.0 - first) / 2.0;
    let seen: Vec<_> = outcomes
        .iter()
        .map(|o| (o.verdict, o.probability))
        .collect();
    assert_eq!(
        seen,
        [
            (address("10.180.0.1:53"), first),
            (address("10.180.0.2:53"), rest),
            (address("10.180.0.3:53"), rest),
        ]
    );
    assert!(outcomes.iter().all(|o| !o.masqueraded && o.is_certain()));
    assert_eq!(
        outcomes[1].to_string(),
        "33.3 %: goes to 10.180.0.2:53\n  \
         nat PREROUTING: everything → chain KUBE-SERVICES (kubernetes service portals)\n    \
         KUBE-SERVICES: to 10.96.0.10, port 53/udp → chain KUBE-SVC-A (n/a:dns cluster IP)\n      \
         KUBE-SVC-A: one in two of the rest (33.3 % of all) → endpoint 10.180.0.2:53\n        \
         KUBE-SEP-2: udp, client is remembered → destination becomes 10.180.0.2:53 (n/a:dns)\n  \
         routing: 10.180.0.2 is elsewhere → forwarded\n  \
         filter FORWARD: everything → chain KUBE-FORWARD (kubernetes forwarding rules)\n  \
         filter FORWARD: connection NEW → chain KUBE-SERVICES (kubernetes service portals)\n  \
         filter FORWARD: to 10.180.0.0/16 → accepted\n  \
         nat POSTROUTING: everything → chain KUBE-POSTROUTING (kubernetes postrouting rules)\n    \
         KUBE-POSTROUTING: mark not 0x4000 in 0x4000 → return to the calling chain"
    );
    let steps = |outcome: &Outcome| outcome.to_string();
    assert!(steps(&outcomes[0]).contains("one in three (33.3 %) → endpoint 10.180.0.1:53"));
    assert!(steps(&outcomes[2]).contains("all the rest (33.3 %) → endpoint 10.180.0.3:53"));
}

#[test]
fn a_client_from_outside_and_one_that_meets_itself_are_masqueraded() {
    for outcome in ruleset().trace(&packet("203.0.113.1", "10.96.0.10:53", Protocol::Udp)) {
        assert!(outcome.masqueraded, "{outcome}");
        assert!(outcome.to_string().contains("from outside 10.180.0.0/16"));
    }
    let hairpin = ruleset().trace(&packet("10.180.0.1", "10.96.0.10:53", Protocol::Udp));
    let masqueraded: Vec<_> = hairpin.iter().map(|o| o.masqueraded).collect();
    assert_eq!(masqueraded, [true, false, false]);
}

#[test]
fn a_client_with_affinity_goes_where_it_was() {
    let mut packet = packet("10.180.0.7", "10.96.0.11:53", Protocol::Udp);
    let stranger = only(ruleset().trace(&packet));
    assert_eq!(stranger.verdict, address("10.180.0.3:53"));
    packet.affinity = Some(ChainName::fixed("KUBE-SEP-2"));
    let regular = only(ruleset().trace(&packet));
    assert_eq!(regular.verdict, address("10.180.0.2:53"));
    assert!(
        regular
            .to_string()
            .contains("client was here in the last 10800 s → endpoint 10.180.0.2:53"),
        "{regular}"
    );
}

#[test]
fn a_service_without_endpoints_rejects_on_every_way() {
    for source in ["10.180.0.7", "192.168.0.2"] {
        let outcome = only(ruleset().trace(&packet(source, "10.96.0.9:80", Protocol::Tcp)));
        assert_eq!(outcome.verdict, Verdict::Rejected);
        assert!(
            outcome.to_string().contains("(n/none has no endpoints)"),
            "{outcome}"
        );
    }
    // A packet that a node sends to itself also passes the input chains.
    for source in ["10.180.0.7", "192.168.0.2"] {
        let outcome = only(ruleset().trace(&packet(source, "192.168.0.2:30003", Protocol::Tcp)));
        assert_eq!(outcome.verdict, Verdict::Rejected, "{outcome}");
    }
}

#[test]
fn the_sender_decides_about_external_traffic() {
    let node_port = |source: &str| packet(source, "192.168.0.2:30001", Protocol::Tcp);
    let outside = only(ruleset().trace(&node_port("203.0.113.1")));
    assert_eq!(outside.verdict, address("10.180.0.1:80"));
    // A rule for UDP does not take TCP: the endpoints 2 and 3 have only such rules.
    let node = ruleset().trace(&node_port("192.168.0.2"));
    let verdicts: Vec<_> = node.iter().map(|outcome| outcome.verdict).collect();
    assert_eq!(node.len(), 3, "{verdicts:?}");
    assert!(
        node.iter()
            .all(|o| o.to_string().contains("from this node → chain KUBE-SVC-A"))
    );
    let mut pod = node_port("10.180.0.7");
    pod.entry = Entry::Arriving {
        device: Some("veth1".to_owned()),
    };
    assert!(
        ruleset().trace(&pod)[0]
            .to_string()
            .contains("arriving on veth+")
    );
}

#[test]
fn an_unnamed_input_interface_is_a_doubt() {
    let mut packet = packet("203.0.113.1", "192.168.0.2:30001", Protocol::Tcp);
    packet.entry = Entry::Arriving { device: None };
    let outcome = only(ruleset().trace(&packet));
    assert!(!outcome.is_certain());
    let text = outcome.to_string();
    assert!(
        text.contains("KUBE-EXT-L: input interface not given"),
        "{text}"
    );
    assert!(
        text.lines()
            .next()
            .unwrap()
            .ends_with("(if the rules that cannot be evaluated do not match)")
    );
}

#[test]
fn the_policy_decides_when_no_rule_does() {
    let outcome = only(ruleset().trace(&packet("10.180.0.7", "8.8.8.8:443", Protocol::Tcp)));
    assert_eq!(outcome.verdict, Verdict::Dropped);
    assert!(
        outcome
            .to_string()
            .ends_with("filter FORWARD: no rule decides → dropped by policy"),
        "{outcome}"
    );
    let to_node = only(ruleset().trace(&packet("10.180.0.7", "192.168.0.2:22", Protocol::Tcp)));
    assert_eq!(to_node.verdict, Verdict::Accepted);
}

#[test]
fn foreign_rules_are_shown_unless_they_cannot_match() {
    let foreign = |rule: &str| {
        let text = SAVED.replace(
            "-A PREROUTING -m",
            &format!("-A PREROUTING {rule}\n-A PREROUTING -m"),
        );
        let ruleset = Ruleset::parse(&text, IpFamily::V4).unwrap();
        ruleset.trace(&packet("10.180.0.7", "10.96.0.11:53", Protocol::Udp))
    };
    let doubt = only(foreign(
        "-p udp -m multiport --dports 53,54 -j REDIRECT --to-ports 99",
    ));
    assert!(!doubt.is_certain());
    let line = "nat PREROUTING: cannot evaluate this rule, assuming that it does not match: \
                -p udp -m multiport --dports 53,54 -j REDIRECT --to-ports 99";
    assert!(doubt.to_string().contains(line), "{doubt}");
    for rule in [
        "-p icmp -m icmp --icmp-type 8 -j REDIRECT",
        "-s 172.16.0.0/12 -m length --length 1 -j REDIRECT",
        "! -d 10.96.0.0/16 -m length --length 1 -j REDIRECT",
        "-p udp -m udp --sport 1 --dport 54:60 -j REDIRECT",
    ] {
        assert!(only(foreign(rule)).is_certain(), "{rule}");
    }
}

#[test]
fn loops_and_deep_jumps_are_cut() {
    let mut ruleset = Ruleset::new(IpFamily::V4);
    let prerouting = ChainName::fixed("PREROUTING");
    let jump =
        |to: &str| crate::Rule::new().then(crate::Target::Jump(ChainName::parse(to).unwrap()));
    ruleset.append(Table::Nat, prerouting, jump("A"));
    ruleset.append(Table::Nat, ChainName::fixed("A"), jump("B"));
    ruleset.append(Table::Nat, ChainName::fixed("B"), jump("A"));
    let packet = packet("10.180.0.7", "8.8.8.8:443", Protocol::Tcp);
    let outcome = only(ruleset.trace(&packet));
    assert_eq!(outcome.verdict, Verdict::Unresolved);
    assert!(
        outcome
            .to_string()
            .ends_with("A: already on the path → loop, not followed")
    );

    let mut deep = Ruleset::new(IpFamily::V4);
    deep.append(Table::Nat, prerouting, jump("C0"));
    for number in 0..100_000 {
        let name = ChainName::parse(&format!("C{number}")).unwrap();
        deep.append(Table::Nat, name, jump(&format!("C{}", number + 1)));
    }
    assert_eq!(only(deep.trace(&packet)).verdict, Verdict::Unresolved);
}

#[test]
fn too_many_branches_come_to_an_end_and_still_add_up_to_one() {
    let mut ruleset = Ruleset::new(IpFamily::V4);
    let half = crate::Match::Statistic(crate::Probability::one_in(2));
    for bit in 0..40 {
        let mark = crate::Target::SetMark {
            value: 1 << (bit % 32),
            mask: 0,
        };
        let rule = crate::Rule::new().with(half.clone()).then(mark);
        ruleset.append(Table::Nat, ChainName::fixed("PREROUTING"), rule);
    }
    let outcomes = ruleset.trace(&packet("10.180.0.7", "8.8.8.8:443", Protocol::Tcp));
    assert!(outcomes.iter().any(|o| o.verdict == Verdict::Unresolved));
    let sum: f64 = outcomes.iter().map(|outcome| outcome.probability).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{sum}");
}

#[test]
fn outcomes_come_in_the_order_of_the_rules_whatever_they_are() {
    let text = "*nat\n:PREROUTING ACCEPT [0:0]\n:A - [0:0]\n:B - [0:0]\n\
        -A PREROUTING -j A\n-A PREROUTING -p tcp -j DNAT --to-destination 1.1.1.1:1\n\
        -A A -m statistic --mode random --probability 0.25000000000 -j B\n\
        -A A -m statistic --mode random --probability 0.25000000000 -j DROP\n\
        -A A -m statistic --mode random --probability 0.25000000000 -j RETURN\n\
        -A A -j ACCEPT\n\
        -A B -m statistic --mode random --probability 0.50000000000 -j RETURN\n\
        -A B -j REJECT --reject-with icmp-port-unreachable\nCOMMIT\n";
    let ruleset = Ruleset::parse(text, IpFamily::V4).unwrap();
    let outcomes = ruleset.trace(&packet("10.180.0.7", "8.8.8.8:443", Protocol::Tcp));
    let seen: Vec<_> = outcomes
        .iter()
        .map(|o| (o.verdict, o.probability))
        .collect();
    let dnat = address("1.1.1.1:1");
    assert_eq!(
        seen,
        [
            // Through B and back to A, where the random match applies again.
            (Verdict::Dropped, 1.0 / 32.0),
            (dnat, 3.0 / 128.0),
            (Verdict::Accepted, 9.0 / 128.0),
            (Verdict::Rejected, 1.0 / 8.0),
            (Verdict::Dropped, 3.0 / 16.0),
            (dnat, 9.0 / 64.0),
            (Verdict::Accepted, 27.0 / 64.0),
        ]
    );
}

/// The outcome for a packet from a node to its own node port, with these rules in filter INPUT.
fn to_itself(input: &str) -> Outcome {
    let text = format!(
        "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT {input}\nCOMMIT\n\
         *nat\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n\
         -A OUTPUT -p tcp -m tcp --dport 30001 -j DNAT --to-destination 192.168.0.2:80\n\
         -A POSTROUTING -j MASQUERADE\nCOMMIT\n"
    );
    let ruleset = Ruleset::parse(&text, IpFamily::V4).unwrap();
    only(ruleset.trace(&packet("192.168.0.2", "192.168.0.2:30001", Protocol::Tcp)))
}

#[test]
fn what_a_node_sends_to_itself_arrives_on_the_loopback_device() {
    assert_eq!(to_itself("-i lo -j DROP").verdict, Verdict::Dropped);
    assert_eq!(
        to_itself("! -i lo -j DROP").verdict,
        address("192.168.0.2:80")
    );
}

#[test]
fn a_translated_connection_is_known_as_one() {
    let untouched = to_itself("-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP");
    assert_eq!(untouched.verdict, address("192.168.0.2:80"));
    let dropped = to_itself("-m conntrack --ctstate DNAT -j DROP");
    assert_eq!(dropped.verdict, Verdict::Dropped);
}

#[test]
fn only_what_goes_on_is_called_masqueraded() {
    assert!(to_itself("-p udp -j DROP").masqueraded);
    assert!(!to_itself("-p tcp -j DROP").masqueraded);
}
