//! States of a made-up playground, for tests and for the example `look`.

use jiff::{SignedDuration, Timestamp};
use weft_dashboard::{
    State,
    state::{
        Action, Check, Cost, Endpoint, Mode, Node, Note, Pod, Pool, Port, Process, ProcessState,
        Route, Savings, Service,
    },
};

/// A healthy playground with this many nodes and pods.
pub(crate) fn playground(nodes: usize, pods: usize) -> State {
    let mut state = State::new(Mode::Playground, "playground", "https://127.0.0.1:6443");
    state.nodes = (1..=nodes).map(node).collect();
    for number in 0..pods {
        let place = number % nodes;
        let pod = pod(number, pods, place + 1, number / nodes + 5);
        state.nodes[place].pods.push(pod);
    }
    let everyone = state.nodes.clone();
    for node in &mut state.nodes {
        node.pool = Some(pool(node.pods.len()));
        let others = everyone.iter().filter(|other| other.name != node.name);
        node.routes = others.map(route).collect();
    }
    state.services = services(&state.nodes);
    state.savings = Some(Savings {
        bytes_written: 18_234,
        bytes_full: 1_456_789,
        calls_made: 12,
        calls_polling: 240,
    });
    state.processes = processes(&state.nodes);
    state.checks = checks(pods);
    for note in notes() {
        state.timeline.push(note);
    }
    state
}

fn node(number: usize) -> Node {
    Node {
        name: format!("node-{number}"),
        ready: true,
        addresses: vec![format!("172.30.0.{}", 10 + number)],
        pod_ranges: vec![format!("10.244.{number}.0/24")],
        network_unavailable: Some(false),
        ..Node::default()
    }
}

fn pod(number: usize, of: usize, node: usize, last: usize) -> Pod {
    let app = match number * 100 / of {
        0..55 => "web",
        55..80 => "api",
        80..92 => "cache",
        _ => "jobs",
    };
    Pod {
        namespace: "default".to_owned(),
        name: format!("{app}-{}", number + 1),
        app: Some(app.to_owned()),
        addresses: vec![format!("10.244.{node}.{last}")],
        phase: "Running".to_owned(),
        ready: true,
    }
}

fn pool(pods: usize) -> Pool {
    let pods = u64::try_from(pods).unwrap();
    let requested = (pods + 2).next_multiple_of(16);
    Pool {
        assigned: Some(pods),
        free: Some(requested - pods - 2),
        pending: Some(0),
        cooling: Some(2),
        requested: Some(requested),
        demand: Some(pods),
    }
}

fn route(to: &Node) -> Route {
    Route {
        destination: to.pod_ranges[0].clone(),
        via: to.addresses[0].clone(),
        node: Some(to.name.clone()),
    }
}

fn services(nodes: &[Node]) -> Vec<Service> {
    let service =
        |name: &str, kind: &str, addresses: &[&str], ports: Vec<Port>, app: &str| Service {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            kind: kind.to_owned(),
            addresses: addresses.iter().copied().map(str::to_owned).collect(),
            ports,
            endpoints: endpoints(nodes, app),
        };
    vec![
        service(
            "api",
            "ClusterIP",
            &["10.96.0.20", "fd00:96::20"],
            vec![port(8080, "TCP"), port(53, "UDP")],
            "api",
        ),
        service("cache", "ClusterIP", &[], vec![port(6379, "TCP")], "cache"),
        service(
            "web",
            "ClusterIP",
            &["10.96.0.10"],
            vec![port(80, "TCP")],
            "web",
        ),
        service(
            "web-outside",
            "NodePort",
            &["10.96.0.11"],
            vec![Port {
                node_port: Some(30080),
                ..port(80, "TCP")
            }],
            "web",
        ),
    ]
}

fn port(number: u16, protocol: &str) -> Port {
    Port {
        name: None,
        protocol: protocol.to_owned(),
        port: number,
        node_port: None,
    }
}

fn endpoints(nodes: &[Node], app: &str) -> Vec<Endpoint> {
    let pods = nodes
        .iter()
        .flat_map(|node| node.pods.iter().map(move |pod| (node, pod)));
    let chosen = pods.filter(|(_, pod)| pod.app.as_deref() == Some(app));
    let endpoint = |(node, pod): (&Node, &Pod)| {
        Some(Endpoint {
            address: pod.addresses.first()?.clone(),
            pod: Some(pod.name.clone()),
            node: Some(node.name.clone()),
            ready: pod.ready,
        })
    };
    chosen.filter_map(endpoint).collect()
}

fn processes(nodes: &[Node]) -> Vec<Process> {
    let process = |name: &str, node: Option<&str>, component: &str, pid: usize| Process {
        name: name.to_owned(),
        node: node.map(str::to_owned),
        component: component.to_owned(),
        pid: u32::try_from(pid).ok(),
        state: ProcessState::Running,
        since: ago(420),
        detail: String::new(),
        actions: vec![Action::Stop, Action::Restart],
    };
    let mut all = vec![Process {
        detail: "leads; ipam, pod-cidr".to_owned(),
        ..process("controller", None, "controller", 3991)
    }];
    for (index, node) in nodes.iter().enumerate() {
        for (offset, component) in ["ipam", "proxy", "routes"].into_iter().enumerate() {
            let name = format!("{}/{component}", node.name);
            all.push(process(
                &name,
                Some(&node.name),
                component,
                4000 + index * 3 + offset,
            ));
        }
    }
    all.push(Process {
        detail: "stand-in for kubelet, scheduler and Deployments".to_owned(),
        actions: Vec::new(),
        ..process("stand-in", None, "stand-in", 3980)
    });
    all
}

fn checks(pods: usize) -> Vec<Check> {
    let check = |name: &str, detail: String| Check {
        name: name.to_owned(),
        ok: true,
        detail,
    };
    let answered = "answered from every node".to_owned();
    vec![
        check("pod to pod", "on the same node and on another".to_owned()),
        check("pod to Service", answered.clone()),
        check("node to NodePort", answered.clone()),
        check("UDP", answered),
        check("no duplicate address", format!("{pods} pods looked at")),
    ]
}

fn notes() -> Vec<Note> {
    let note =
        |seconds: i64, what: &str, place: Option<&str>, component: &str, cost: Option<Cost>| Note {
            at: ago(seconds),
            what: what.to_owned(),
            place: place.map(str::to_owned),
            component: component.to_owned(),
            cost,
        };
    let mut notes = Vec::new();
    for (index, node) in ["node-1", "node-2", "node-3"].into_iter().enumerate() {
        let cost = Cost {
            milliseconds: Some(31.0),
            changes: Some("+2 routes".to_owned()),
            calls: Some(0),
            avoided_calls: Some(12),
            ..Cost::default()
        };
        let seconds = 260 - i64::try_from(index).unwrap();
        notes.push(note(
            seconds,
            "routes to the other nodes",
            Some(node),
            "routes",
            Some(cost),
        ));
    }
    for step in 0..6_u32 {
        for (index, node) in ["node-1", "node-2", "node-3"].into_iter().enumerate() {
            let cost = Cost {
                milliseconds: Some(9.2 + f64::from(step) * 2.1),
                bytes: Some(812 + u64::from(step) * 40),
                changes: Some("+1 chain ~1 rule".to_owned()),
                avoided_bytes: Some(48_211 + u64::from(step) * 900),
                ..Cost::default()
            };
            let seconds = 200 - i64::from(step) * 24 - i64::try_from(index).unwrap();
            let what = "Service default/web: +1 endpoint";
            notes.push(note(seconds, what, Some(node), "proxy", Some(cost)));
        }
    }
    notes.push(note(
        46,
        "Deployment default/web scaled to 36",
        None,
        "kubectl",
        None,
    ));
    let grown = Cost {
        milliseconds: Some(48.6),
        calls: Some(1),
        avoided_calls: Some(11),
        ..Cost::default()
    };
    notes.push(note(
        44,
        "pool grew by a block of 16",
        Some("node-2"),
        "ipam",
        Some(grown),
    ));
    notes
}

/// A playground in which a node is not ready, a route is missing, a pod waits and processes ended.
pub(crate) fn troubled() -> State {
    let mut state = playground(3, 12);
    state.cluster.reachable = false;
    state.cluster.since = ago(33);
    state.nodes[0].routes.pop();
    state.nodes[1].ready = false;
    state.nodes[2].pods[1].ready = false;
    state.nodes[2].pods[1].phase = "Pending".into();
    state.nodes[2].pods[1].addresses.clear();
    state.services = services_of_troubled(&state.nodes);
    if let Some(pool) = &mut state.nodes[2].pool {
        (pool.pending, pool.demand) = (Some(3), Some(7));
    }
    let ended = [
        (
            1,
            ProcessState::Stopped,
            "stopped from this page",
            vec![Action::Start],
        ),
        (
            2,
            ProcessState::Failed,
            "ended with 3: address in use",
            vec![Action::Start],
        ),
        (3, ProcessState::Starting, "", Vec::new()),
    ];
    for (index, what, detail, actions) in ended {
        let process = &mut state.processes[index];
        (process.state, process.detail, process.actions) = (what, detail.to_owned(), actions);
    }
    state.checks[1].ok = false;
    state.checks[1].detail = "2 of 3 nodes answered".into();
    state
}

fn services_of_troubled(nodes: &[Node]) -> Vec<Service> {
    let mut services = services(nodes);
    services[0]
        .endpoints
        .iter_mut()
        .for_each(|endpoint| endpoint.ready = false);
    services
}

/// Names that would do harm if the page took them for markup.
pub(crate) const HOSTILE: &str = "<img src=x onerror=\"document.title='owned'\">";

/// A playground in which every text is hostile.
pub(crate) fn hostile() -> State {
    let mut state = playground(2, 4);
    state.cluster.name = HOSTILE.into();
    state.cluster.server = HOSTILE.into();
    for node in &mut state.nodes {
        node.addresses.push(HOSTILE.to_owned());
        node.pod_ranges.push(HOSTILE.to_owned());
        for route in &mut node.routes {
            route.destination = HOSTILE.into();
        }
    }
    let pod = &mut state.nodes[0].pods[0];
    (pod.namespace, pod.name) = (HOSTILE.to_owned(), HOSTILE.to_owned());
    (pod.app, pod.phase) = (Some(HOSTILE.to_owned()), HOSTILE.to_owned());
    pod.addresses.push(HOSTILE.to_owned());
    state.nodes[1].name = HOSTILE.into();
    let service = &mut state.services[0];
    (service.name, service.kind) = (HOSTILE.to_owned(), HOSTILE.to_owned());
    service.addresses = vec![HOSTILE.to_owned()];
    service.ports[0].protocol = HOSTILE.into();
    let process = &mut state.processes[0];
    (process.name, process.detail) = (HOSTILE.to_owned(), HOSTILE.to_owned());
    (state.checks[0].name, state.checks[0].detail) = (HOSTILE.to_owned(), HOSTILE.to_owned());
    state.timeline.push(Note {
        at: ago(1),
        what: HOSTILE.to_owned(),
        place: Some(HOSTILE.to_owned()),
        component: HOSTILE.to_owned(),
        cost: Some(Cost {
            changes: Some(HOSTILE.to_owned()),
            ..Cost::default()
        }),
    });
    state
}

fn ago(seconds: i64) -> Timestamp {
    Timestamp::now() - SignedDuration::from_secs(seconds)
}
