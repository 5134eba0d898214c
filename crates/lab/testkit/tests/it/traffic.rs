//! Tests that namespaces of a lab reach each other by veth and by bridge, in both families.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use ipnet::IpNet;
use weft_testkit::lab::{self, Namespace};

/// Far longer than a packet on this machine takes; only a broken link waits this long.
const PATIENCE: Duration = Duration::from_secs(20);

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

#[test]
fn two_namespaces_on_a_veth_exchange_tcp_and_udp() {
    lab::inside(|lab| {
        let (client, server) = (lab.namespace("client"), lab.namespace("server"));
        lab.connect((&client, "eth0"), (&server, "eth0"));
        for (ours, theirs) in [("10.1.0.1/24", "10.1.0.2/24"), ("fd00::1/64", "fd00::2/64")] {
            client.address("eth0", net(ours));
            server.address("eth0", net(theirs));
            exchange_tcp(&client, &server, net(theirs).addr());
            exchange_udp(&client, &server, net(theirs).addr());
        }
    });
}

#[test]
fn namespaces_on_a_bridge_reach_each_other_and_the_lab() {
    lab::inside(|lab| {
        let bridge = lab.bridge("br0");
        bridge.address(net("10.2.0.1/24"));
        let (a, b) = (lab.namespace("a"), lab.namespace("b"));
        a.attach(&bridge, "eth0", net("10.2.0.2/24"));
        b.attach(&bridge, "eth0", net("10.2.0.3/24"));
        exchange_tcp(&a, &b, net("10.2.0.3/24").addr());

        let listener = TcpListener::bind("10.2.0.1:0").unwrap();
        let port = listener.local_addr().unwrap();
        a.run(|| TcpStream::connect_timeout(&port, PATIENCE).unwrap());
    });
}

#[test]
fn a_default_route_leads_through_the_lab() {
    lab::inside(|lab| {
        let bridge = lab.bridge("br0");
        bridge.address(net("10.3.0.1/24"));
        let pod = lab.namespace("pod");
        pod.attach(&bridge, "eth0", net("10.3.0.2/24"));
        pod.default_route(net("10.3.0.1/24").addr());
        let route = pod.program("ip", &["route", "get", "192.0.2.1"]);
        assert!(
            route.starts_with("192.0.2.1 via 10.3.0.1 dev eth0"),
            "{route}"
        );
    });
}

fn exchange_tcp(client: &Namespace, server: &Namespace, address: IpAddr) {
    let listener = server.run(|| TcpListener::bind((address, 0)).unwrap());
    let target = listener.local_addr().unwrap();
    let echo = thread::spawn(move || {
        let (mut stream, peer) = listener.accept().unwrap();
        let mut word = [0; 4];
        stream.read_exact(&mut word).unwrap();
        stream.write_all(&word).unwrap();
        peer
    });
    let mut stream = client.run(|| TcpStream::connect_timeout(&target, PATIENCE).unwrap());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"warp").unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"warp");
    assert_eq!(echo.join().unwrap(), stream.local_addr().unwrap());
}

fn exchange_udp(client: &Namespace, server: &Namespace, address: IpAddr) {
    let receiver = server.run(|| UdpSocket::bind((address, 0)).unwrap());
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let target: SocketAddr = receiver.local_addr().unwrap();
    let unspecified = if target.is_ipv6() {
        "[::]:0"
    } else {
        "0.0.0.0:0"
    };
    client.run(|| {
        UdpSocket::bind(unspecified)
            .unwrap()
            .send_to(b"weft", target)
            .unwrap()
    });
    let mut word = [0; 8];
    let (length, _peer) = receiver.recv_from(&mut word).unwrap();
    assert_eq!(&word[..length], b"weft");
}
