//! The cost of counting connections: of a load, of a change and of a new flow.

use std::{
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    process::Command,
};

use serde_json::json;
use weft_nftables::{Counters, HostKernel, Nftables, TableOptions, Watch, cleanup};
use weft_proxy::objects::Object;
use weft_testkit::bench::{Report, Target, median};

use crate::{FAMILY, Recording, World, cost};

/// Runs of each arm, in turns.
const RUNS: usize = 5;

fn backend(counters: Counters) -> Nftables<Recording> {
    let options = TableOptions {
        counters,
        ..TableOptions::default()
    };
    let kernel = Recording {
        kernel: HostKernel::new(FAMILY, Watch::new()),
        last: Vec::new(),
    };
    Nftables::with_options(kernel, options)
}

fn front(index: usize) -> SocketAddr {
    let [high, low] = [index / 200, index % 200 + 1].map(|n| u8::try_from(n).unwrap_or(0));
    SocketAddr::from((Ipv4Addr::new(10, 90, high, low), 53))
}

/// UDP Services, so that a packet is a flow.
fn world(services: usize) -> World {
    let mut world = World::new(0);
    for index in 0..services {
        let name = format!("udp-{index}");
        let service = json!({"kind": "Service", "metadata": {"namespace": "bench", "name": name},
            "spec": {"clusterIP": front(index).ip(),
                     "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]}});
        let endpoints: Vec<_> = (1..=5)
            .map(|number| json!({"addresses": [format!("192.0.2.{number}")]}))
            .collect();
        let slice = json!({"kind": "EndpointSlice",
            "metadata": {"namespace": "bench", "name": format!("{name}-x"),
                         "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4", "endpoints": endpoints,
            "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]});
        for object in [service, slice] {
            world.model.set(&Object::decode(&object).unwrap().unwrap());
        }
    }
    world.take();
    world
}

/// Processor time of each new flow in microseconds.
fn flows(services: usize, count: usize) -> f64 {
    let (cost, ()) = cost(|| {
        for index in 0..count {
            let socket = UdpSocket::bind("192.0.2.254:0").unwrap();
            socket.send_to(b"x", front(index % services)).unwrap();
        }
    });
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let each = cost.own / count as f64;
    each
}

pub(crate) fn measure(services: usize, count: usize, report: &mut Report) {
    for words in [
        "link add sink type bridge",
        "link set sink up",
        "address add 192.0.2.254/24 dev sink",
        "route add default dev sink",
    ] {
        let status = Command::new("ip").args(words.split(' ')).status();
        assert!(status.unwrap().success(), "{words}");
    }
    let mut world = world(services);
    let mut loads = [Vec::new(), Vec::new()];
    let mut new_flows = [Vec::new(), Vec::new()];
    for _ in 0..RUNS {
        for (arm, counters) in [Counters::Off, Counters::On].into_iter().enumerate() {
            world.backend = backend(counters);
            let (load, _) = world.full();
            loads[arm].push(load.own / 1e3);
            new_flows[arm].push(flows(services, count));
            cleanup(FAMILY).unwrap();
        }
    }
    let [off, on] = loads.map(median);
    let words = format!("{services} Services x 5: first sync, processor time, with counters");
    report.comparison(&words, "ms", on, off, Target::None);
    let [off, on] = new_flows.map(median);
    let words = format!("{services} Services x 5: new UDP flow, processor time, with counters");
    report.comparison(&words, "µs", on, off, Target::RatioAtMost(1.1));
}
