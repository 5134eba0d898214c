//! The JSON that the page reads, and that the playground fills.

use jiff::Timestamp;
use serde_json::{Value, json};
use weft_dashboard::{
    State,
    state::{
        Action, Check, Cost, Endpoint, Mode, Node, Note, Pod, Pool, Port, Process, ProcessState,
        Route, Savings, Service,
    },
};

fn text(text: &str) -> String {
    text.to_owned()
}

fn full(at: Timestamp) -> State {
    let mut state = State::new(Mode::Playground, "playground", "https://127.0.0.1:6443");
    state.generated = at;
    state.cluster.since = at;
    state.nodes = vec![Node {
        name: text("node-1"),
        ready: true,
        addresses: vec![text("172.30.0.11")],
        pod_ranges: vec![text("10.244.1.0/24")],
        network_unavailable: Some(false),
        pool: Some(Pool {
            assigned: Some(5),
            free: Some(9),
            pending: Some(0),
            cooling: Some(2),
            requested: Some(16),
            demand: Some(5),
        }),
        pods: vec![Pod {
            namespace: text("default"),
            name: text("web-1"),
            app: Some(text("web")),
            addresses: vec![text("10.244.1.5")],
            phase: text("Running"),
            ready: true,
        }],
        routes: vec![Route {
            destination: text("10.244.2.0/24"),
            via: text("172.30.0.12"),
            node: Some(text("node-2")),
        }],
    }];
    state.services = vec![Service {
        namespace: text("default"),
        name: text("web"),
        kind: text("ClusterIP"),
        addresses: vec![text("10.96.0.10")],
        ports: vec![Port {
            name: Some(text("http")),
            protocol: text("TCP"),
            port: 80,
            node_port: None,
        }],
        endpoints: vec![Endpoint {
            address: text("10.244.1.5"),
            pod: Some(text("web-1")),
            node: Some(text("node-1")),
            ready: true,
        }],
    }];
    state.timeline.push(Note {
        at,
        what: text("Service default/web: +1 endpoint"),
        place: Some(text("node-1")),
        component: text("proxy"),
        cost: Some(Cost {
            milliseconds: Some(14.2),
            bytes: Some(812),
            changes: Some(text("+1 chain ~1 rule")),
            calls: Some(1),
            avoided_bytes: Some(48211),
            avoided_calls: Some(0),
        }),
    });
    state.savings = Some(Savings {
        bytes_written: 1234,
        bytes_full: 456_789,
        calls_made: 12,
        calls_polling: 240,
    });
    state.processes = vec![Process {
        name: text("node-1/proxy"),
        node: Some(text("node-1")),
        component: text("proxy"),
        pid: Some(123),
        state: ProcessState::Running,
        since: at,
        detail: String::new(),
        actions: vec![Action::Stop, Action::Restart],
    }];
    state.checks = vec![Check {
        name: text("pod to Service"),
        ok: true,
        detail: text("3 of 3 nodes answered"),
    }];
    state
}

#[test]
fn the_state_is_written_as_the_page_reads_it() {
    let at = "2026-11-16T06:00:00.25Z";
    let state = full(at.parse().unwrap());
    let expected = json!({
        "generated": at, "mode": "playground",
        "cluster": {"name": "playground", "server": "https://127.0.0.1:6443",
            "reachable": true, "since": at},
        "nodes": [{"name": "node-1", "ready": true, "addresses": ["172.30.0.11"],
            "pod_ranges": ["10.244.1.0/24"], "network_unavailable": false,
            "pool": {"assigned": 5, "free": 9, "pending": 0, "cooling": 2, "requested": 16, "demand": 5},
            "pods": [{"namespace": "default", "name": "web-1", "app": "web",
                "addresses": ["10.244.1.5"], "phase": "Running", "ready": true}],
            "routes": [{"destination": "10.244.2.0/24", "via": "172.30.0.12", "node": "node-2"}]}],
        "services": [{"namespace": "default", "name": "web", "kind": "ClusterIP",
            "addresses": ["10.96.0.10"],
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "node_port": null}],
            "endpoints": [{"address": "10.244.1.5", "pod": "web-1", "node": "node-1", "ready": true}]}],
        "timeline": [{"number": 1, "at": at, "what": "Service default/web: +1 endpoint",
            "where": "node-1", "component": "proxy",
            "cost": {"milliseconds": 14.2, "bytes": 812, "changes": "+1 chain ~1 rule", "calls": 1,
                "avoided_bytes": 48211, "avoided_calls": 0}}],
        "savings": {"bytes_written": 1234, "bytes_full": 456_789, "calls_made": 12, "calls_polling": 240},
        "processes": [{"name": "node-1/proxy", "node": "node-1", "component": "proxy", "pid": 123,
            "state": "running", "since": at, "detail": "", "actions": ["stop", "restart"]}],
        "checks": [{"name": "pod to Service", "ok": true, "detail": "3 of 3 nodes answered"}],
    });
    assert_eq!(serde_json::to_value(&state).unwrap(), expected);
    let back: State = serde_json::from_value(expected).unwrap();
    assert_eq!(back, state);
}

/// Every path of a value, lists through their first entry.
fn paths(value: &Value, here: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let here = format!("{here}.{name}");
                found.push(here.clone());
                paths(value, &here, found);
            }
        }
        Value::Array(entries) => {
            if let Some(first) = entries.first() {
                paths(first, here, found);
            }
        }
        _ => {}
    }
}

#[test]
fn what_is_not_known_is_null_and_never_missing() {
    let at = Timestamp::UNIX_EPOCH;
    let mut state = full(at);
    let mut known = Vec::new();
    paths(&serde_json::to_value(&state).unwrap(), "", &mut known);
    state.nodes[0] = Node {
        pool: Some(Pool::default()),
        pods: vec![Pod::default()],
        routes: vec![Route::default()],
        ..Node::default()
    };
    state.services[0] = Service {
        ports: vec![Port::default()],
        endpoints: vec![Endpoint::default()],
        ..Service::default()
    };
    state.timeline = weft_dashboard::state::Timeline::default();
    state.timeline.push(Note {
        at,
        what: String::new(),
        place: None,
        component: String::new(),
        cost: Some(Cost::default()),
    });
    let process = &mut state.processes[0];
    (process.node, process.pid) = (None, None);
    let mut unknown = Vec::new();
    let value = serde_json::to_value(&state).unwrap();
    paths(&value, "", &mut unknown);
    assert_eq!(unknown, known);
    assert_eq!(value["nodes"][0]["network_unavailable"], Value::Null);
    assert_eq!(value["timeline"][0]["cost"]["milliseconds"], Value::Null);
}
