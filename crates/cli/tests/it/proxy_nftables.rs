//! `weft proxy --proxy-mode=nftables` as a process, over a real kernel.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use weft_host::nftables::{Nftables, delete_table};
use weft_model::IpFamily;
use weft_testkit::{
    cluster::{Edit, NODE, ObjectName},
    lab::{self, Namespace},
    wait_until,
};

use crate::arena::Arena;

const PROGRAMS: [&str; 2] = ["iptables-nft", "iptables-legacy"];
const PATIENCE: Duration = Duration::from_secs(30);
const FAMILY: IpFamily = IpFamily::V4;
const TABLE: &str = "weft";
const MODE: [&str; 1] = ["--proxy-mode=nftables"];

fn put(kind: &'static str, namespace: &str, object: Value) -> Edit {
    let name = ObjectName {
        kind,
        namespace: namespace.to_owned(),
        name: object["metadata"]["name"].as_str().unwrap().to_owned(),
    };
    Edit::Put(name, object)
}

fn node_object() -> Edit {
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE},
        "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}});
    put("Node", "", object)
}

/// A Service of the namespace `shop` with endpoints on this node.
fn service(name: &str, spec: &Value, endpoints: u32) -> [Edit; 2] {
    let service = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "shop", "name": name}, "spec": spec});
    let endpoints: Vec<Value> = (1..=endpoints)
        .map(|number| json!({"addresses": [format!("10.244.0.{number}")], "nodeName": NODE}))
        .collect();
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"namespace": "shop", "name": format!("{name}-x"),
                     "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}]});
    [
        put("Service", "shop", service),
        put("EndpointSlice", "shop", slice),
    ]
}

/// The elements of a set, in words; none without the table.
fn elements(node: &Namespace, set: &str) -> BTreeSet<String> {
    node.run(|| {
        let mut nftables = Nftables::open().unwrap();
        let elements = nftables.elements(FAMILY, TABLE, set).unwrap_or_default();
        elements
            .iter()
            .map(|element| format!("{element:?}"))
            .collect()
    })
}

#[test]
fn killed_in_the_middle_of_a_load_it_completes_it_after_a_restart() {
    const SERVICES: usize = 600;
    lab::with_programs(&PROGRAMS, |lab| {
        let arena = Arena::new("nft");
        let node = lab.namespace("node");
        arena.serve(&node);
        arena.create_namespace("shop");
        arena.apply(&[node_object()]);
        for index in 0..SERVICES {
            let spec = json!({"clusterIP": format!("10.97.{}.{}", index / 200, index % 200 + 1),
                              "ports": [{"port": 80}]});
            arena.apply(&service(&format!("s{index}"), &spec, 20));
        }
        // The Service `kubernetes` is there as well.
        let is_loaded = || elements(&node, "services").len() > SERVICES;
        let mut interrupted = 0;
        for _ in 0..10 {
            let proxy = arena.start_weft_with(&node, &MODE);
            node.run(|| {
                let mut nftables = Nftables::open().unwrap();
                let deadline = Instant::now() + Duration::from_secs(30);
                let is_begun = |nftables: &mut Nftables| {
                    let found = nftables.elements(FAMILY, TABLE, "services");
                    found.is_ok_and(|found| !found.is_empty())
                };
                while !is_begun(&mut nftables) {
                    assert!(Instant::now() < deadline, "{}", arena.log("weft"));
                }
            });
            // SIGKILL.
            drop(proxy);
            interrupted += usize::from(!is_loaded());
            if interrupted == 2 {
                break;
            }
            node.run(|| delete_table(FAMILY, TABLE).unwrap());
        }
        assert!(interrupted > 0, "it was never killed in the middle");
        let sets = ["services", "endpoints", "cluster-ips", "hairpin", "pick"];
        let proxy = arena.start_weft_with(&node, &MODE);
        wait_until("everything is there", PATIENCE, is_loaded);
        wait_until("the first sync ended", PATIENCE, || {
            !Arena::metric(
                &node,
                "kubeproxy_sync_full_proxy_rules_duration_seconds_count",
            )
            .is_empty()
        });
        let completed = sets.map(|set| elements(&node, set));
        drop(proxy);
        node.run(|| delete_table(FAMILY, TABLE).unwrap());
        let _proxy = arena.start_weft_with(&node, &MODE);
        wait_until("everything is there again", PATIENCE, is_loaded);
        wait_until("it is the same", PATIENCE, || {
            sets.map(|set| elements(&node, set)) == completed
        });
        assert_eq!(completed[1].len(), SERVICES * 20);
    });
}

#[test]
fn it_answers_health_checks_and_follows_the_service_cidrs() {
    lab::with_programs(&["iptables-nft", "iptables-legacy", "nft"], |lab| {
        let arena = Arena::new("nft");
        let node = lab.namespace("node");
        arena.serve(&node);
        arena.create_namespace("shop");
        let local = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 31_556, "ports": [{"port": 80}]});
        arena.apply(&[node_object()]);
        arena.apply(&service("web", &local, 2));
        let _proxy = arena.start_weft_with(&node, &MODE);
        let is_served = || {
            elements(&node, "services")
                .iter()
                .any(|e| e.contains("shop/web"))
        };
        wait_until("the Service is served", PATIENCE, is_served);
        let page = || Arena::page(&node, 31_556, "/");
        wait_until("the health check is open", PATIENCE, || {
            node.run(|| std::net::TcpStream::connect(("127.0.0.1", 31_556)).is_ok())
        });
        wait_until("the health check answers", PATIENCE, || {
            page().contains(" 200 ")
        });
        assert!(page().contains("\"localEndpoints\": 2"), "{}", page());
        arena.apply(&service("web", &local, 0));
        wait_until("the last endpoint went", PATIENCE, || {
            page().contains(" 503 ")
        });

        // The default of the API server is there from the beginning.
        let networks = || elements(&node, "service-networks").len();
        assert_eq!(networks(), 1, "{}", arena.log("weft"));
        let more = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": {"name": "more"}, "spec": {"cidrs": ["10.200.0.0/16"]}});
        arena.apply(&[put("ServiceCIDR", "", more)]);
        wait_until("the new range is there", PATIENCE, || networks() == 2);
        for (metric, value) in [
            (
                "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
                "",
            ),
            ("kubeproxy_sync_proxy_rules_iptables_total", ""),
        ] {
            assert_eq!(Arena::metric(&node, metric), value);
        }
        let elements = Arena::metric(&node, "weft_proxy_nftables_elements{");
        assert!(elements.contains("IPv4"), "{elements}");
    });
}

/// A command of `weft proxy` against the cluster of the arena: whether it succeeded, and its output.
fn tool(node: &Namespace, words: &[&str]) -> (bool, String) {
    let mut command = node.command(env!("CARGO_BIN_EXE_weft"));
    let flags = [
        "proxy",
        MODE[0],
        "--master=http://127.0.0.1:6443",
        "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48",
    ];
    command
        .args(flags)
        .arg(format!("--hostname-override={NODE}"));
    let output = command.args(words).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

#[test]
fn render_diff_trace_and_top_show_what_the_kernel_has() {
    lab::with_programs(&["iptables-nft", "iptables-legacy", "nft"], |lab| {
        let arena = Arena::new("nft");
        let node = lab.namespace("node");
        for words in [
            "link add pods type bridge",
            "link set pods up",
            "address add 10.244.0.1/16 dev pods",
            "route add 10.96.0.0/16 dev pods",
        ] {
            let words: Vec<&str> = words.split(' ').collect();
            node.program("ip", &words);
        }
        arena.serve(&node);
        arena.create_namespace("shop");
        let spec = json!({"clusterIP": "10.96.0.70", "ports": [{"port": 80}]});
        let edits: Vec<Edit> = [node_object()]
            .into_iter()
            .chain(service("web", &spec, 1))
            .collect();
        arena.apply(&edits);
        let objects = edits.iter().map(|edit| match edit {
            Edit::Put(_, object) => object,
            Edit::Delete(_) => unreachable!("there are none"),
        });
        let objects =
            json!({"apiVersion": "v1", "kind": "List", "items": objects.collect::<Vec<_>>()});
        std::fs::write("/run/objects.json", objects.to_string()).unwrap();
        let from_file = ["--objects", "/run/objects.json"];
        let (_, before) = tool(&node, &["top", "--rounds=1"]);
        assert!(
            before.contains("does not run in the nftables mode"),
            "{before}"
        );
        let proxy = arena.start_weft_with(&node, &[MODE[0], "--nftables-counters"]);
        let deadline = Instant::now() + Duration::from_secs(30);
        while let (false, text) = tool(&node, &["diff"]) {
            assert!(Instant::now() < deadline, "still different: {text}");
        }

        let (is_ok, rendered) = tool(&node, &["render", from_file[0], from_file[1]]);
        assert!(is_ok, "{rendered}");
        let front = "10.96.0.70 . tcp . 80";
        for line in [
            format!("add element ip weft services {{ {front} comment \"shop/web\" : 1000:1 }}"),
            format!("add element ip weft endpoints {{ {front} . 1000:1 : 10.244.0.1 . 8080 }}"),
            "add element ip weft pick { 0:1 : jump pick-1 }".to_owned(),
        ] {
            assert!(
                rendered.lines().any(|found| found == line),
                "{line}: {rendered}"
            );
        }

        let packet = ["--src", "10.244.0.9", "--dst", "10.96.0.70:80/tcp"];
        for live in [&from_file[..], &["--live"]] {
            let words = [&["trace"][..], &packet, live].concat();
            let (is_ok, text) = tool(&node, &words);
            let end = "=> 10.244.0.1:8080 with 100.000 %, source kept";
            assert!(is_ok && text.contains(end), "{text}");
        }

        let pod = node.run(|| TcpListener::bind("10.244.0.1:8080").unwrap());
        std::thread::spawn(move || while pod.accept().is_ok() {});
        for _ in 0..3 {
            node.run(|| drop(TcpStream::connect("10.96.0.70:80").unwrap()));
        }
        let (is_ok, text) = tool(&node, &["top", "--rounds=1"]);
        let counted = |line: &str| line.contains("10.244.0.1:8080") && line.ends_with(" 3");
        assert!(is_ok && text.lines().any(counted), "{text}");

        // Without the proxy, what another program changes stays different.
        drop(proxy);
        let key = format!("{{ {front} }}");
        node.program("nft", &["delete", "element", "ip", TABLE, "services", &key]);
        let (is_ok, text) = tool(&node, &["diff"]);
        let line =
            format!("add element ip weft services {{ {front} comment \"shop/web\" : 1000:1 }}");
        assert!(!is_ok && text.contains(&line), "{text}");
    });
}

#[test]
fn status_does_not_take_the_table_of_another_program_for_ours() {
    lab::with_programs(&["iptables-nft", "iptables-legacy", "nft"], |lab| {
        let node = lab.namespace("node");
        node.program("nft", &["add", "table", "ip", TABLE]);
        let (is_ok, text) = tool(&node, &["status"]);
        assert!(
            is_ok && text.contains("ip weft, of another program"),
            "{text}"
        );
        assert!(!text.contains("STALE"), "{text}");
    });
}

#[test]
fn node_ports_answer_on_localhost_where_the_gate_and_the_addresses_say_so() {
    lab::with_programs(&PROGRAMS, |lab| {
        let arena = Arena::new("nft");
        let node = lab.namespace("node");
        for words in [
            "link add pods type bridge",
            "link set pods up",
            "address add 10.244.0.1/16 dev pods",
        ] {
            let words: Vec<&str> = words.split(' ').collect();
            node.program("ip", &words);
        }
        arena.serve(&node);
        arena.create_namespace("shop");
        let spec = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30_080}]});
        arena.apply(&[node_object()]);
        arena.apply(&service("web", &spec, 1));
        let pod = node.run(|| TcpListener::bind("10.244.0.1:8080").unwrap());
        std::thread::spawn(move || {
            while let Ok((mut client, _)) = pod.accept() {
                let _ = client.write_all(b"hello from the pod");
            }
        });
        let gate = "--feature-gates=KubeProxyNFTablesLocalhostNodePorts=true";
        let flags = [MODE[0], gate, "--nodeport-addresses=localhost"];
        let _proxy = arena.start_weft_with(&node, &flags);
        let ask = || -> std::io::Result<String> {
            node.run(|| {
                let mut text = String::new();
                TcpStream::connect("127.0.0.1:30080")?.read_to_string(&mut text)?;
                Ok(text)
            })
        };
        wait_until("the NodePort answers on localhost", PATIENCE, || {
            ask().is_ok_and(|text| text == "hello from the pod")
        });
        let listeners = Arena::metric(&node, "kubeproxy_nftables_localhost_nodeport_listeners");
        assert!(listeners.contains("{ip_family=\"IPv4\"} 1"), "{listeners}");
        arena.apply(&service("web", &spec, 0));
        wait_until("it ends with the last endpoint", PATIENCE, || {
            ask().is_err()
        });
    });
}
