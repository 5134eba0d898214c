//! Interface addresses of a namespace.

use weft_host::addresses::interface_addresses;
use weft_model::IpFamily;
use weft_testkit::lab;

#[test]
fn addresses_are_those_of_the_threads_namespace_and_our_own_end_of_a_link() {
    lab::inside(|lab| {
        let node = lab.namespace("node");
        // Must not be listed: it belongs to the main thread's namespace.
        lab.bridge("br0").address("192.0.2.1/24".parse().unwrap());
        for command in [
            "link add br1 type bridge",
            "link set br1 up",
            "address add 10.1.0.1/24 dev br1",
            "address add 10.1.0.2/24 dev br1",
            "address add 10.9.0.1 peer 10.9.0.2/32 dev br1",
            "address add fd00::1/64 dev br1 nodad",
            "address add fd00::9 peer fd00::a/128 dev br1 nodad",
        ] {
            let words: Vec<&str> = command.split(' ').collect();
            node.program("ip", &words);
        }
        let listed = |family| -> Vec<String> {
            let found = node.run(|| interface_addresses(family)).unwrap();
            let texts = found.iter().map(|entry| {
                let device = if entry.interface == 1 { "lo" } else { "br1" };
                format!("{}/{} {device}", entry.address, entry.prefix_length)
            });
            texts.filter(|text| !text.starts_with("fe80:")).collect()
        };
        assert_eq!(
            listed(IpFamily::V4),
            [
                "10.1.0.1/24 br1",
                "10.1.0.2/24 br1",
                "10.9.0.1/32 br1",
                "127.0.0.1/8 lo"
            ]
        );
        assert_eq!(
            listed(IpFamily::V6),
            ["::1/128 lo", "fd00::1/64 br1", "fd00::9/128 br1"]
        );
    });
}
