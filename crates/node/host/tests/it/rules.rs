//! nftables rules, read over netlink.

use std::net::UdpSocket;

use weft_host::{
    iptables::{Iptables, Variant},
    netfilter::Netfilter,
};
use weft_model::IpFamily;
use weft_testkit::lab;

use crate::support::{IPTABLES, open};

/// Rules of every kind that a service proxy writes or meets, each with one that differs in a
/// single detail. `%` is an address of the family, `#` the same with a port.
const FILTER: [(&str, &str); 19] = [
    ("-j RETURN", "-j ACCEPT"),
    ("-j NEXT", "-j OTHER"),
    ("-g NEXT", "-j NEXT"),
    ("-d % -j RETURN", "-s % -j RETURN"),
    ("-i eth0 -j RETURN", "-i eth+ -j RETURN"),
    (
        "-p udp -m udp --dport 53 -j RETURN",
        "-p udp -m udp --dport 54 -j RETURN",
    ),
    (
        "-m comment --comment \"one\" -j RETURN",
        "-m comment --comment \"ond\" -j RETURN",
    ),
    (
        "-m recent --name AFFINITY --set --rsource",
        "-m recent --name AFFINITY --set --rdest",
    ),
    (
        "-m recent --name AFFINITY --rcheck --seconds 10800 --reap --rsource -j RETURN",
        "-m recent --name AFFINITY --rcheck --seconds 10801 --reap --rsource -j RETURN",
    ),
    (
        "-m statistic --mode random --probability 0.5 -j RETURN",
        "-m statistic --mode random --probability 0.25 -j RETURN",
    ),
    (
        "-m statistic --mode nth --every 3 --packet 0 -j RETURN",
        "-m statistic --mode nth --every 3 --packet 1 -j RETURN",
    ),
    (
        "-m nfacct --nfacct-name one",
        "-m nfacct --nfacct-name other",
    ),
    (
        "-m conntrack --ctstate INVALID -j RETURN",
        "-m conntrack --ctstate NEW -j RETURN",
    ),
    (
        "-m addrtype --dst-type LOCAL -j RETURN",
        "-m addrtype --src-type LOCAL -j RETURN",
    ),
    (
        "-m mark --mark 0x4000/0x4000 -j RETURN",
        "-m mark --mark 0x4000/0xc000 -j RETURN",
    ),
    (
        "-m limit --limit 5/min -j RETURN",
        "-m limit --limit 6/min -j RETURN",
    ),
    (
        "-m quota --quota 1000000 -j RETURN",
        "-m quota --quota 1000001 -j RETURN",
    ),
    (
        "-m connlimit --connlimit-above 7 -j RETURN",
        "-m connlimit --connlimit-above 8 -j RETURN",
    ),
    (
        "-m hashlimit --hashlimit-above 9/sec --hashlimit-name weft -j RETURN",
        "-m hashlimit --hashlimit-above 8/sec --hashlimit-name weft -j RETURN",
    ),
];

const REJECTIONS: [(&str, &str); 1] = [("-j REJECT", "-p tcp -j REJECT --reject-with tcp-reset")];

const NAT: [(&str, &str); 4] = [
    ("-j MASQUERADE", "-j MASQUERADE --random-fully"),
    (
        "-p udp -j DNAT --to-destination #",
        "-p udp -j DNAT --to-destination #0",
    ),
    (
        "-p udp -j REDIRECT --to-ports 1",
        "-p udp -j REDIRECT --to-ports 2",
    ),
    (
        "-j MARK --set-xmark 0x4000/0x4000",
        "-j MARK --set-xmark 0x4000/0xc000",
    ),
];

#[test]
fn the_same_rules_give_the_same_bytes_however_often_they_are_written() {
    lab::with_programs(&IPTABLES, |_| {
        let mut netfilter = with_counters();
        for family in IpFamily::ALL {
            let tables = open(family, Variant::Nft);
            for (table, rules) in all_rules() {
                let texts: Vec<&str> = rules.iter().map(|(rule, _)| *rule).collect();
                write(&tables, table, &texts);
                let first = read(&mut netfilter, family, table);
                assert_eq!(first.len(), texts.len());
                assert_eq!(read(&mut netfilter, family, table), first);

                // New objects at other addresses of the kernel's memory, and other handles.
                for _ in 0..3 {
                    write(&tables, table, &texts);
                    for (rule, (again, first)) in texts
                        .iter()
                        .zip(read(&mut netfilter, family, table).iter().zip(&first))
                    {
                        assert_eq!(again, first, "{family} {table} {rule}");
                    }
                }
            }
        }
    });
}

#[test]
fn any_change_of_a_rule_changes_its_bytes() {
    lab::with_programs(&IPTABLES, |_| {
        let mut netfilter = with_counters();
        for family in IpFamily::ALL {
            let tables = open(family, Variant::Nft);
            for (table, rules) in all_rules() {
                let texts: Vec<&str> = rules.iter().flat_map(|(a, b)| [*a, *b]).collect();
                write(&tables, table, &texts);
                let read = read(&mut netfilter, family, table);
                assert_eq!(read.len(), texts.len());
                for (index, rule) in read.iter().enumerate() {
                    let twin = read.iter().position(|other| other == rule).unwrap();
                    assert_eq!(texts[twin], texts[index], "{family} {table}");
                }
            }
        }
    });
}

#[test]
fn packets_do_not_change_the_bytes() {
    lab::with_programs(&IPTABLES, |_| {
        let mut netfilter = with_counters();
        let tables = open(IpFamily::V4, Variant::Nft);
        let mut texts: Vec<&str> = FILTER.iter().map(|(rule, _)| *rule).collect();
        // A rule that ends the chain would keep packets from the rules after it.
        let ends = ["-j RETURN", "-j NEXT", "-g NEXT"];
        texts.retain(|text| !ends.contains(text));
        let texts: Vec<String> = texts
            .iter()
            .map(|text| text.replace(" -j RETURN", " -j NEXT"))
            .collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        write(&tables, "filter", &texts);
        tables
            .restore(b"*filter\n-A OUTPUT -p udp -j WEFT\nCOMMIT\n")
            .unwrap();
        let before = read(&mut netfilter, IpFamily::V4, "filter");

        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..20 {
            sender
                .send_to(b"weft", receiver.local_addr().unwrap())
                .unwrap();
        }
        assert!(netfilter.counter_packets("one").unwrap() >= Some(20));
        assert_eq!(read(&mut netfilter, IpFamily::V4, "filter"), before);
    });
}

#[test]
fn a_table_is_read_chain_by_chain_and_a_chain_alone() {
    lab::with_programs(&IPTABLES, |_| {
        let mut netfilter = Netfilter::open().unwrap();
        let family = IpFamily::V4;
        let chains = |netfilter: &mut Netfilter, table| {
            let mut names = netfilter.nftables_chains(family, table).unwrap();
            names.sort();
            names
        };
        assert!(chains(&mut netfilter, "nat").is_empty(), "no table yet");
        let tables = open(family, Variant::Nft);
        tables
            .restore(
                b"*filter\n:F - [0:0]\n-A F -j RETURN\nCOMMIT\n\
                  *nat\n:A - [0:0]\n:B - [0:0]\n:EMPTY - [0:0]\n\
                  -A A -j B\n-A B -j RETURN\n-A A -j RETURN\nCOMMIT\n",
            )
            .unwrap();
        assert_eq!(chains(&mut netfilter, "nat"), ["A", "B", "EMPTY"]);
        assert_eq!(chains(&mut netfilter, "filter"), ["F"]);

        let mut rules = |table, chain| {
            let mut found: Vec<(String, Vec<u8>)> = Vec::new();
            netfilter
                .nftables_rules(family, table, chain, &mut |chain, rule| {
                    found.push((chain.to_owned(), rule.as_bytes().to_vec()));
                })
                .unwrap();
            found
        };
        let mut whole = rules("nat", None);
        // The kernel may return chains in any order, but not rules.
        whole.sort_by(|(left, _), (right, _)| left.cmp(right));
        let names: Vec<&str> = whole.iter().map(|(chain, _)| &**chain).collect();
        assert_eq!(names, ["A", "A", "B"]);
        assert_ne!(whole[0].1, whole[1].1);
        assert_eq!(whole[1].1, whole[2].1, "both return");
        assert_eq!(rules("nat", Some("A")), whole[..2]);
        assert_eq!(rules("nat", Some("B")), whole[2..]);
        for nothing in ["EMPTY", "F", "NO-SUCH"] {
            assert_eq!(rules("nat", Some(nothing)), [], "{nothing}");
        }
        assert_eq!(rules("mangle", None), []);
    });
}

/// All rules above, by table.
fn all_rules() -> [(&'static str, Vec<(&'static str, &'static str)>); 2] {
    [
        ("filter", [&FILTER[..], &REJECTIONS].concat()),
        ("nat", NAT.to_vec()),
    ]
}

fn with_counters() -> Netfilter {
    let mut netfilter = Netfilter::open().unwrap();
    for name in ["one", "other"] {
        netfilter.ensure_counter(name).unwrap();
    }
    netfilter
}

/// Rewrites the chain `WEFT`.
fn write(tables: &Iptables, table: &str, rules: &[&str]) {
    let (address, port) = match tables.family() {
        IpFamily::V4 => ("10.0.0.1", "10.0.0.1:8"),
        IpFamily::V6 => ("fd00::1", "[fd00::1]:8"),
    };
    let rules = format!("-A WEFT {}", rules.join("\n-A WEFT "));
    let rules = rules.replace('%', address).replace('#', port);
    let input =
        format!("*{table}\n:WEFT - [0:0]\n:NEXT - [0:0]\n:OTHER - [0:0]\n{rules}\nCOMMIT\n");
    tables.restore(input.as_bytes()).unwrap();
}

fn read(netfilter: &mut Netfilter, family: IpFamily, table: &str) -> Vec<Vec<u8>> {
    let mut rules = Vec::new();
    netfilter
        .nftables_rules(family, table, Some("WEFT"), &mut |_, rule| {
            rules.push(rule.as_bytes().to_vec());
        })
        .unwrap();
    rules
}
