//! Tests of parsing rules.

use super::*;
use crate::ChainName;

fn save_form(text: &str) -> String {
    match Rule::parse(text) {
        Ok(rule) => rule.to_string(),
        Err(error) => panic!("{text}: {error}"),
    }
}

#[test]
fn what_iptables_save_prints_reads_back_as_itself() {
    let texts = [
        "",
        "-j KUBE-FIREWALL",
        "-j ACCEPT",
        "-m comment --comment \"other traffic to ns1/lb:p80 will be dropped\"",
        "-m comment --comment plain -j DROP",
        "-s 10.180.0.9/32 -m comment --comment \"ns1/svc1:p80\" -j KUBE-MARK-MASQ",
        "! -s 10.180.0.0/16 -d 10.96.0.41/32 ! -i br0 -p tcp -m comment --comment \"a b\" -m tcp --dport 80 -j KUBE-MARK-MASQ",
        "! -s 0.0.0.0/0 -j RETURN",
        "-p tcp -m comment --comment \"ns1/s has no endpoints\" -m addrtype --dst-type LOCAL -m tcp --dport 30003 -j REJECT --reject-with icmp-port-unreachable",
        "-d fd00::1/128 -p udp -m udp --dport 53 -j REJECT --reject-with icmp6-port-unreachable",
        "! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
        "-m conntrack --ctstate INVALID -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts -j DROP",
        "-m mark --mark 0x4000/0x4000 -j ACCEPT",
        "-m mark ! --mark 0x4000 -j RETURN",
        "-j MARK --set-xmark 0x4000/0x0",
        "-j MASQUERADE --random-fully",
        "-i veth+ -j MASQUERADE",
        "-m addrtype --src-type LOCAL -j KUBE-SVC-A",
        "-m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-A",
        "-m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-A --mask 255.255.255.255 --rsource -j KUBE-SEP-A",
        "-p tcp -m recent --set --name KUBE-SEP-A --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource -m tcp -j DNAT --to-destination [fd00:10:180::61]:8080",
        "-p sctp -m sctp -j DNAT --to-destination 10.180.0.41:99",
    ];
    for text in texts {
        assert_eq!(save_form(text), text);
    }
}

#[test]
fn what_kube_proxy_writes_reads_as_what_the_kernel_makes_of_it() {
    let pairs = [
        (
            "-m comment --comment \"n/s:p cluster IP\" -m tcp -p tcp -d 10.96.0.45 --dport 80 ! -s 10.180.0.0/16 -j KUBE-MARK-MASQ",
            "! -s 10.180.0.0/16 -d 10.96.0.45/32 -p tcp -m comment --comment \"n/s:p cluster IP\" -m tcp --dport 80 -j KUBE-MARK-MASQ",
        ),
        (
            "-m comment --comment n/s:p -m tcp -p tcp -d 127.0.0.0/8 --dport 30002 -m nfacct --nfacct-name localhost_nps_accepted_pkts -j KUBE-EXT-A",
            "-d 127.0.0.0/8 -p tcp -m comment --comment \"n/s:p\" -m tcp --dport 30002 -m nfacct --nfacct-name  localhost_nps_accepted_pkts -j KUBE-EXT-A",
        ),
        (
            "-m mark ! --mark 0x00004000/0x00004000 -j RETURN",
            "-m mark ! --mark 0x4000/0x4000 -j RETURN",
        ),
        (
            "-j MARK --xor-mark 0x00004000",
            "-j MARK --set-xmark 0x4000/0x0",
        ),
        (
            "-j MARK --or-mark 0x00004000",
            "-j MARK --set-xmark 0x4000/0x4000",
        ),
        (
            "-m statistic --mode random --probability 0.3333333333 -j KUBE-SEP-A",
            "-m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-A",
        ),
        (
            "-m comment --comment \"a -> b\" -d 10.0.0.1 -m recent --name KUBE-SEP-A --rcheck --seconds 10800 --reap -j KUBE-SEP-A",
            "-d 10.0.0.1/32 -m comment --comment \"a -> b\" -m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-A --mask 255.255.255.255 --rsource -j KUBE-SEP-A",
        ),
        (
            "-m comment --comment \"x\" -m tcp -p tcp -d fd00::1 --dport 80 -j REJECT",
            "-d fd00::1/128 -p tcp -m comment --comment x -m tcp --dport 80 -j REJECT --reject-with icmp6-port-unreachable",
        ),
        ("-p tcp --dport 80", "-p tcp -m tcp --dport 80"),
        ("-s 10.1.2.3/8 -d 0.0.0.0/0", "-s 10.0.0.0/8"),
    ];
    for (input, saved) in pairs {
        assert_eq!(save_form(input), saved);
    }
}

#[test]
fn the_family_of_the_ruleset_settles_what_the_text_leaves_open() {
    let bare = "-p tcp -m tcp --dport 80 -j REJECT";
    assert!(matches!(
        Rule::parse(bare),
        Err(ParseError::FamilyNeeded(_))
    ));
    for (family, word) in [(IpFamily::V4, "icmp-"), (IpFamily::V6, "icmp6-")] {
        let text = Rule::parse_for(family, bare).unwrap().to_string();
        assert!(text.contains(word), "{text}");
    }
    let recent = "-m recent --name A --set -j B";
    assert!(matches!(
        Rule::parse(recent),
        Err(ParseError::FamilyNeeded(_))
    ));
    assert!(Rule::parse_for(IpFamily::V6, recent).is_ok());
    assert!(matches!(
        Rule::parse_for(IpFamily::V6, "-s 10.0.0.1"),
        Err(ParseError::WrongFamily(_))
    ));
}

#[test]
fn what_has_no_place_in_a_rule_is_an_error() {
    let foreign = [
        "-o eth0 -j ACCEPT",
        "-p icmp -j ACCEPT",
        "! -p tcp -j ACCEPT",
        "-p tcp -m tcp --sport 80 -j ACCEPT",
        "-p tcp -m tcp --dport 80:90 -j ACCEPT",
        "-p tcp -m tcp ! --dport 80 -j ACCEPT",
        "-p tcp -m tcp --dport 080 -j ACCEPT",
        "-p tcp -m tcp --dport 80 --dport 81 -j ACCEPT",
        "-p udp -m tcp --dport 80 -j ACCEPT",
        "-m tcp -j ACCEPT",
        "--dport 80",
        "-m multiport --dports 80,443 -j ACCEPT",
        "-s 10.0.0.0/255.0.255.0 -j ACCEPT",
        "-s example.org -j ACCEPT",
        "-s 10.0.0.1 -s 10.0.0.2",
        "-j LOG",
        "-j LOG --log-prefix \"x y\"",
        "-g KUBE-SERVICES",
        "-j ACCEPT -j DROP",
        "-j",
        "-m",
        "!",
        "-j DNAT --to-destination 10.0.0.1",
        "-j DNAT --to-destination 10.0.0.1:80-90",
        "-j DNAT --to-destination 10.0.0.1:80 --random",
        "-j MASQUERADE --to-ports 1-2",
        "-j REJECT --reject-with tcp-reset",
        "-j MARK --set-xmark 0x1/0x2/0x3",
        "-j MARK --set-xmark 0x+1",
        "-j MARK",
        "-m comment --comment \"it\\'s\" -j ACCEPT",
        "-m comment --comment \"open",
        "-m comment --comment \"\"",
        "-m addrtype --dst-type BROADCAST",
        "-m addrtype ! --dst-type LOCAL",
        "-m addrtype --src-type LOCAL --dst-type LOCAL",
        "-m statistic --mode nth --every 2 --packet 0",
        "-m statistic --mode random --probability inf",
        "-m statistic --mode random --probability -0.5",
        "-m statistic --mode random --probability 1.5",
        "-m recent --rcheck --name A --mask 255.255.255.255 --rsource",
        "-m recent --set --rcheck --name A --mask 255.255.255.255 --rsource",
        "-m recent --update --seconds 1 --name A --mask 255.255.255.255 --rsource",
        "-m recent --set --name A --mask 255.255.255.0 --rsource",
        "-m recent --set --name A --mask 255.255.255.255 --rdest",
        "-m nfacct --nfacct-name other",
        "-m mark --mark 0x1 extra",
        "\"-j\" ACCEPT",
    ];
    for text in foreign {
        let result = Rule::parse(text);
        assert!(result.is_err(), "{text}: {result:?}");
    }
}

#[test]
fn a_quoted_word_is_a_value_and_never_an_option() {
    let rule = Rule::parse("-m comment --comment \"-j DROP\" -j ACCEPT").unwrap();
    assert_eq!(rule.comment_text(), Some("-j DROP"));
    assert_eq!(rule.target, Some(crate::Target::Accept));
    assert!(Rule::parse("-m comment \"--comment\" x").is_err());
}

#[test]
fn a_jump_names_its_chain() {
    let rule = Rule::parse("-j cali-FORWARD_1.2:3/4").unwrap();
    assert_eq!(rule.jump(), Some(ChainName::fixed("cali-FORWARD_1.2:3/4")));
}
