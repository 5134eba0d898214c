//! NodePorts on loopback addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::json;
use weft_model::{IpFamily, Protocol};
use weft_nftables::{Fate, loopback_rejections, trace};
use weft_proxy::LoopbackNodePorts;
use weft_testkit::{exchange::serve, lab};

use super::{EVERYWHERE, Network, Reply, Sender::Node, answered, networks, service, slice, to};

#[test]
fn node_ports_on_loopback_are_rejected_and_counted_unless_a_listener_has_them() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            let loopback: IpAddr = match family {
                IpFamily::V4 => Ipv4Addr::LOCALHOST.into(),
                IpFamily::V6 => Ipv6Addr::LOCALHOST.into(),
            };
            let node_port = to(loopback, 30070);
            let other = to(loopback, 30071);
            network.program(&[
                service(family, "web", 70, &json!({"type": "NodePort"})),
                slice(family, "web", &EVERYWHERE),
            ]);
            // What listens there answers if nothing is rejected.
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                for front in [node_port, other] {
                    network.node.run(|| serve("listener", front, protocol));
                }
            }
            let ask = |network: &Network, front, protocol| network.ask(Node, front, protocol);
            let counted = |network: &Network| {
                let counters = network.node.run(|| loopback_rejections(family).unwrap());
                counters
                    .into_iter()
                    .map(|(_, packets)| packets)
                    .collect::<Vec<_>>()
            };
            assert_eq!(counted(&network), [0; 0]);
            for (loopback, tcp, udp, packets) in [
                (LoopbackNodePorts::Untouched, true, true, &[][..]),
                (LoopbackNodePorts::Rejected, false, false, &[1, 1, 0]),
                // Their chain stays as it is, and so do its counters.
                (LoopbackNodePorts::TcpServed, true, false, &[1, 2, 0]),
            ] {
                network.world.settings.loopback = loopback;
                network.sync();
                for (protocol, answers) in [(Protocol::Tcp, tcp), (Protocol::Udp, udp)] {
                    let packet = network.packet(Node, node_port, protocol);
                    let world = &network.world;
                    let traced = trace(&world.desired, &world.settings, &packet).fate;
                    assert_eq!(traced == Fate::Untouched, answers, "{traced:?}");
                    let reply = ask(&network, node_port, protocol);
                    if answers {
                        assert_eq!(answered(reply).0, "listener", "{loopback:?} {protocol}");
                    } else {
                        assert_eq!(reply, Reply::Refused, "{loopback:?} {protocol}");
                    }
                    let reply = ask(&network, other, protocol);
                    assert_eq!(answered(reply).0, "listener", "it is not a NodePort");
                }
                assert_eq!(counted(&network), packets, "{loopback:?}");
            }
        }
    });
}
