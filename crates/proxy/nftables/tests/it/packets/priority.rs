//! The priority of packets, which carries our numbers from rule to rule.

use serde_json::json;
use weft_model::{IpFamily, Protocol};
use weft_testkit::lab;

use super::{
    EVERYWHERE,
    Sender::{Client, Node, PodA},
    answered, at, cluster_ip, networks, service, slice, to,
};

#[test]
fn no_packet_leaves_with_a_number_of_ours_in_its_priority() {
    lab::with_programs(&["nft"], |lab| {
        for mut network in networks(lab) {
            let family = network.family;
            let sticky = json!({"type": "NodePort", "sessionAffinity": "ClientIP"});
            network.program(&[
                service(family, "web", 50, &json!({"type": "NodePort"})),
                slice(family, "web", &EVERYWHERE),
                service(family, "sticky", 51, &sticky),
                slice(family, "sticky", &EVERYWHERE),
            ]);
            let word = match family {
                IpFamily::V4 => "ip",
                IpFamily::V6 => "ip6",
            };
            // Another program, behind all of our hooks; and one right behind our first.
            let other = format!(
                "table {word} other {{
                    counter used {{ }}
                    counter dirty {{ }}
                    counter seen {{ }}
                    chain middle {{
                        type filter hook output priority -99
                        meta priority >= 1000:0 counter name used
                    }}
                    chain last {{
                        type filter hook postrouting priority 300
                        meta l4proto {{ tcp, udp }} counter name seen
                        meta priority >= 1000:0 counter name dirty
                    }}
                }}"
            );
            let file = tempfile(&other);
            network.node.program("nft", &["-f", &file]);
            for number in [50, 51] {
                let fronts = [
                    to(cluster_ip(family, number), 80),
                    to(at(family, "node"), 30000 + u16::from(number)),
                ];
                for front in fronts {
                    for sender in [PodA, Node, Client] {
                        for protocol in [Protocol::Tcp, Protocol::Udp] {
                            answered(network.ask(sender, front, protocol));
                        }
                    }
                }
            }
            let packets = |counter: &str| -> u64 {
                let text = network
                    .node
                    .program("nft", &["list", "counter", word, "other", counter]);
                let words: Vec<&str> = text.split_whitespace().collect();
                let place = words.iter().position(|word| *word == "packets").unwrap();
                words[place + 1].parse().unwrap()
            };
            assert!(packets("seen") > 24, "{}", packets("seen"));
            assert!(
                packets("used") > 0,
                "nothing to clear: the test proves nothing"
            );
            assert_eq!(packets("dirty"), 0, "{family}");
        }
    });
}

/// A file in the lab's private `/run`.
fn tempfile(text: &str) -> String {
    let path = format!("/run/priority-{}.nft", text.len());
    std::fs::write(&path, text).unwrap();
    path
}
