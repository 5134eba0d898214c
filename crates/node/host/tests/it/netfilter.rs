//! nftables generations, legacy fingerprints and named counters.

use std::net::UdpSocket;

use weft_host::{
    iptables::Variant,
    netfilter::{Netfilter, legacy_fingerprint},
};
use weft_model::{IpFamily, error_text};
use weft_testkit::lab;

use crate::support::{IPTABLES, open, saved};

#[test]
fn the_nftables_generation_rises_by_one_for_each_commit_that_changes_something() {
    lab::with_programs(&IPTABLES, |lab| {
        let mut netfilter = Netfilter::open().unwrap();
        let nft = open(IpFamily::V4, Variant::Nft);
        let restore = |input: &str| drop(nft.restore(input.as_bytes()));
        let rule = "*nat\n:WEFT - [0:0]\n-A WEFT -j RETURN\nCOMMIT\n";
        let mut rise = |work: &dyn Fn()| {
            let before = netfilter.nftables_generation().unwrap();
            work();
            netfilter.nftables_generation().unwrap() - before
        };

        assert_eq!(rise(&|| restore(rule)), 1);
        assert_eq!(rise(&|| restore(rule)), 1, "the same again is a change too");
        let both = "*filter\n:WEFT - [0:0]\nCOMMIT\n*nat\n:WEFT - [0:0]\nCOMMIT\n";
        assert_eq!(rise(&|| restore(both)), 2);
        assert_eq!(rise(&|| restore(both)), 0, "both chains are empty already");
        assert_eq!(rise(&|| restore("*nat\nCOMMIT\n")), 0);
        let refused = "*nat\n:A - [0:0]\n:B - [0:0]\n-A A -j B\n-X B\nCOMMIT\n";
        assert_eq!(rise(&|| restore(refused)), 0);

        let read = || {
            saved(&nft, None);
            saved(&nft, Some("mangle"));
            nft.has_chain("nat", "WEFT").unwrap();
        };
        assert_eq!(rise(&read), 0);
        let append = ["-A", "INPUT", "-j", "ACCEPT"];
        let append_with = |program| drop(lab.program(program, &append));
        assert_eq!(rise(&|| append_with("iptables-nft")), 1);
        assert_eq!(rise(&|| append_with("ip6tables-nft")), 1);
        assert_eq!(rise(&|| append_with("iptables-legacy")), 0);
    });
}

#[test]
fn a_connection_belongs_to_the_namespace_it_was_opened_in() {
    lab::with_programs(&IPTABLES, |lab| {
        let node = lab.namespace("node");
        let mut here = Netfilter::open().unwrap();
        let mut there = node.run(|| Netfilter::open().unwrap());
        let before = (
            here.nftables_generation().unwrap(),
            there.nftables_generation().unwrap(),
        );
        node.program("iptables-nft", &["-N", "WEFT"]);
        assert_eq!(here.nftables_generation().unwrap(), before.0);
        assert_eq!(there.nftables_generation().unwrap(), before.1 + 1);
    });
}

#[test]
fn a_legacy_table_changes_its_fingerprint_with_its_size() {
    lab::with_programs(&IPTABLES, |_| {
        for family in IpFamily::ALL {
            let fingerprint = |table| legacy_fingerprint(family, table).unwrap();
            // Twice, since the first read could have created the table.
            assert_eq!([fingerprint("nat"), fingerprint("nat")], [None, None]);
            let legacy = open(family, Variant::Legacy);
            legacy.restore(b"*nat\n:WEFT - [0:0]\nCOMMIT\n").unwrap();
            let chain = fingerprint("nat").unwrap();
            assert_eq!(fingerprint("nat"), Some(chain));
            legacy
                .restore(b"*nat\n-A WEFT -j RETURN\nCOMMIT\n")
                .unwrap();
            let rule = fingerprint("nat").unwrap();
            assert_eq!(rule.entries, chain.entries + 1);
            assert!(rule.size > chain.size);
            assert_eq!(fingerprint("mangle"), None);
            assert_eq!(fingerprint("loom"), None);
        }
    });
}

#[test]
fn a_counter_counts_and_keeps_its_value_when_ensured_again() {
    lab::with_programs(&IPTABLES, |_| {
        let name = "ct_state_invalid_dropped_pkts";
        let mut netfilter = Netfilter::open().unwrap();
        assert!(netfilter.has_counters());
        assert_eq!(netfilter.counter_packets(name).unwrap(), None);
        netfilter.ensure_counter(name).unwrap();
        assert_eq!(netfilter.counter_packets(name).unwrap(), Some(0));

        let rule = format!(
            "*filter\n-A OUTPUT -p udp -m udp --dport 9 -m nfacct --nfacct-name {name}\nCOMMIT\n"
        );
        let tables = open(IpFamily::V4, Variant::Nft);
        tables.restore(rule.as_bytes()).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..3 {
            // No process listens: the second packet may get ECONNREFUSED.
            let _ = socket.send_to(b"weft", "127.0.0.1:9");
        }
        let counted = netfilter.counter_packets(name).unwrap();
        assert!(counted >= Some(1), "{counted:?}");
        netfilter.ensure_counter(name).unwrap();
        assert_eq!(netfilter.counter_packets(name).unwrap(), counted);
    });
}

#[test]
fn a_refused_counter_says_what_was_asked_and_why_not() {
    lab::inside(|_| {
        let mut netfilter = Netfilter::open().unwrap();
        let error = netfilter.ensure_counter("").unwrap_err();
        assert_eq!(
            error_text(&error),
            "netlink: cannot create an nfacct counter: Invalid argument (os error 22)"
        );
        // The socket still works.
        netfilter.ensure_counter(&"x".repeat(31)).unwrap();
        assert_eq!(netfilter.counter_packets(&"x".repeat(31)).unwrap(), Some(0));
    });
}
