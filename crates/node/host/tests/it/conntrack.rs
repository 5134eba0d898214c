//! Conntrack entries of real connections, from a client through a node with DNAT to a server.

use std::{
    fs,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

use weft_host::{
    iptables::{Iptables, Variant},
    netfilter::{Endpoints, Flow, Netfilter, Zone},
};
use weft_model::{IpFamily, Protocol};
use weft_testkit::lab::{self, Lab, Namespace};

use crate::support::{IPTABLES, open};

/// Far beyond what a packet on this machine needs; only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(20);

struct Network {
    family: IpFamily,
    client: Namespace,
    server: Namespace,
    tables: Iptables,
    client_address: IpAddr,
    server_address: IpAddr,
    /// On no interface: reachable only through DNAT.
    service: SocketAddr,
}

impl Network {
    fn new(lab: &Lab, family: IpFamily, variant: Variant) -> Self {
        let (left, right, length, service, forwarding) = match family {
            IpFamily::V4 => ("10.1.0.", "10.2.0.", 24, "10.96.0.10:53", "ipv4/ip_forward"),
            IpFamily::V6 => (
                "fd01::",
                "fd02::",
                64,
                "[fd96::10]:53",
                "ipv6/conf/all/forwarding",
            ),
        };
        fs::write(format!("/proc/sys/net/{forwarding}"), "1").unwrap();
        let host = |bridge: &str, name: &str, network: &str| {
            let gateway = format!("{network}1/{length}");
            let address = format!("{network}2/{length}");
            let bridge = lab.bridge(bridge);
            bridge.address(gateway.parse().unwrap());
            let host = lab.namespace(name);
            host.attach(&bridge, "eth0", address.parse().unwrap());
            host.default_route(format!("{network}1").parse().unwrap());
            (host, format!("{network}2").parse().unwrap())
        };
        let (client, client_address) = host("left", "client", left);
        let (server, server_address) = host("right", "server", right);
        Self {
            family,
            client,
            server,
            tables: open(family, variant),
            client_address,
            server_address,
            service: service.parse().unwrap(),
        }
    }

    /// Redirects the service's traffic to this address.
    fn translate_to(&self, backend: SocketAddr) {
        let width = self.family.width();
        let rule = format!(
            "*nat\n-F PREROUTING\n-A PREROUTING -d {}/{width} -p udp -m udp \
             --dport {} -j DNAT --to-destination {backend}\nCOMMIT\n",
            self.service.ip(),
            self.service.port()
        );
        self.tables.restore(rule.as_bytes()).unwrap();
    }

    fn udp_server(&self) -> UdpSocket {
        let address = self.server_address;
        udp(&self.server, address)
    }

    fn udp_client(&self) -> UdpSocket {
        let address = self.client_address;
        udp(&self.client, address)
    }

    fn flows(&self, protocol: Protocol) -> Vec<Flow> {
        Netfilter::open()
            .unwrap()
            .flows(self.family, protocol)
            .unwrap()
    }
}

fn udp(namespace: &Namespace, address: IpAddr) -> UdpSocket {
    let socket = namespace.run(|| UdpSocket::bind((address, 0)).unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Receives one packet and returns its sender.
fn receive(socket: &UdpSocket) -> SocketAddr {
    let mut word = [0; 8];
    let (length, sender) = socket.recv_from(&mut word).unwrap();
    assert_eq!(&word[..length], b"weft");
    sender
}

#[test]
fn an_ipv4_flow_is_listed_with_both_its_sides_and_can_be_deleted() {
    lab::with_programs(&IPTABLES, |lab| {
        list_and_delete(&Network::new(lab, IpFamily::V4, Variant::Nft));
    });
}

#[test]
fn an_ipv6_flow_is_listed_with_both_its_sides_and_can_be_deleted() {
    lab::with_programs(&IPTABLES, |lab| {
        list_and_delete(&Network::new(lab, IpFamily::V6, Variant::Legacy));
    });
}

fn list_and_delete(network: &Network) {
    let (client, first, second) = (
        network.udp_client(),
        network.udp_server(),
        network.udp_server(),
    );
    let send = || client.send_to(b"weft", network.service).unwrap();
    network.translate_to(first.local_addr().unwrap());
    send();
    let sender = receive(&first);
    assert_eq!(sender, client.local_addr().unwrap());
    first.send_to(b"weft", sender).unwrap();
    assert_eq!(receive(&client), network.service);

    let flows = network.flows(Protocol::Udp);
    let [flow] = flows[..] else {
        panic!("one flow was made: {flows:?}");
    };
    let client_address = client.local_addr().unwrap();
    assert_eq!(flow.protocol, Protocol::Udp);
    assert_eq!(
        flow.original,
        Endpoints {
            source: client_address,
            destination: network.service
        }
    );
    assert_eq!(
        flow.reply,
        Endpoints {
            source: first.local_addr().unwrap(),
            destination: client_address
        }
    );
    assert_eq!(flow.zone, None);

    // Only the first packet of an entry is looked up in the rules.
    network.translate_to(second.local_addr().unwrap());
    send();
    receive(&first);
    let mut netfilter = Netfilter::open().unwrap();
    let other = Flow {
        id: flow.id.wrapping_add(1),
        ..flow
    };
    assert!(!netfilter.delete_flow(&other).unwrap(), "not this one");
    assert_eq!(network.flows(Protocol::Udp), [flow]);
    assert!(netfilter.delete_flow(&flow).unwrap());
    assert_eq!(network.flows(Protocol::Udp), []);
    assert!(!netfilter.delete_flow(&flow).unwrap(), "gone already");
    send();
    receive(&second);
}

#[test]
fn flows_are_filtered_by_protocol_and_by_the_caller() {
    lab::with_programs(&IPTABLES, |lab| {
        let network = Network::new(lab, IpFamily::V4, Variant::Nft);
        let server = network.udp_server();
        let target = server.local_addr().unwrap();
        network.translate_to(target);
        let clients = [network.udp_client(), network.udp_client()];
        for client in &clients {
            client.send_to(b"weft", target).unwrap();
            receive(&server);
        }
        let address = network.server_address;
        let listener = network
            .server
            .run(|| TcpListener::bind((address, 0)).unwrap());
        let listening = listener.local_addr().unwrap();
        let _stream = network
            .client
            .run(|| TcpStream::connect_timeout(&listening, PATIENCE).unwrap());

        let destinations = |protocol| -> Vec<SocketAddr> {
            let flows = network.flows(protocol);
            flows.iter().map(|flow| flow.original.destination).collect()
        };
        assert_eq!(destinations(Protocol::Udp), [target, target]);
        assert_eq!(destinations(Protocol::Tcp), [listening]);
        assert_eq!(destinations(Protocol::Sctp), []);
        let mut netfilter = Netfilter::open().unwrap();
        assert_eq!(
            netfilter.flows(IpFamily::V6, Protocol::Udp).unwrap(),
            [],
            "all of them are IPv4"
        );
        let wanted = clients[1].local_addr().unwrap();
        let kept = netfilter
            .flows_where(IpFamily::V4, Protocol::Udp, |flow| {
                flow.original.source == wanted
            })
            .unwrap();
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].original.source, wanted);
    });
}

#[test]
fn a_flow_in_a_zone_of_its_own_can_be_deleted_too() {
    lab::with_programs(&IPTABLES, |lab| {
        let network = Network::new(lab, IpFamily::V4, Variant::Nft);
        let (client, server) = (network.udp_client(), network.udp_server());
        let target = server.local_addr().unwrap();
        network.translate_to(target);
        let mut netfilter = Netfilter::open().unwrap();
        for (option, zone) in [
            ("--zone", Zone::Both(7)),
            ("--zone-orig", Zone::Original(7)),
        ] {
            let rule = format!(
                "*raw\n-F PREROUTING\n\
                 -A PREROUTING -s {} -p udp -j CT {option} 7\nCOMMIT\n",
                network.client_address
            );
            network.tables.restore(rule.as_bytes()).unwrap();
            client.send_to(b"weft", target).unwrap();
            receive(&server);
            let flows = network.flows(Protocol::Udp);
            let zones: Vec<_> = flows.iter().map(|flow| flow.zone).collect();
            assert_eq!(zones, [Some(zone)]);
            let elsewhere = Flow {
                zone: None,
                ..flows[0]
            };
            assert!(!netfilter.delete_flow(&elsewhere).unwrap());
            assert!(netfilter.delete_flow(&flows[0]).unwrap());
            assert_eq!(network.flows(Protocol::Udp), []);
        }
    });
}
