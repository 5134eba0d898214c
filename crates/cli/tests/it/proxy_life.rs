//! `weft proxy` from start to end, over a real kernel: whatever happens to its API server, its
//! rules or itself, it ends in the right state.

use std::{
    fs::{self, Permissions},
    net::UdpSocket,
    os::unix::fs::PermissionsExt as _,
    process::{Child, Command},
    time::{Duration, Instant},
};

use http::StatusCode;
use serde_json::{Value, json};
use weft_apiserver::{ApiServer, AuthorizationMode, Cut, Fault, Matcher, Times, User, Verb};
use weft_host::{netfilter::Netfilter, nftables::Nftables};
use weft_model::{IpFamily, Protocol};
use weft_testkit::{
    Flood,
    cluster::{Edit, NODE, ObjectName, RandomCluster},
    lab::{self, Namespace},
    wait_until,
};

use crate::arena::Arena;

const PROGRAMS: [&str; 2] = ["iptables-nft", "iptables-legacy"];
const PATIENCE: Duration = Duration::from_secs(20);

/// A cluster with some Services, known to the API server.
fn cluster(arena: &Arena, seed: u64) -> RandomCluster {
    let mut cluster = RandomCluster::new(seed);
    arena.create_namespace(cluster.namespace());
    let nodes: Vec<Edit> = cluster
        .objects()
        .map(|(name, object)| Edit::Put(name.clone(), object.clone()))
        .collect();
    arena.apply(&nodes);
    edit(arena, &mut cluster, 25);
    cluster
}

fn edit(arena: &Arena, cluster: &mut RandomCluster, count: usize) {
    for _ in 0..count {
        arena.apply(&cluster.edit());
    }
}

#[test]
fn rules_keep_working_while_the_api_server_is_down_and_follow_it_when_it_is_back() {
    lab::with_programs(&PROGRAMS, |lab| {
        let arena = Arena::new("nft");
        let node = lab.namespace("node");
        let mut cluster = cluster(&arena, 1);
        arena.serve(&node);
        let proxy = arena.start_weft(&node);
        arena.assert_serves(&node, "before");
        drop(proxy);
        let faults = arena.server.faults();
        faults.inject(
            Matcher::any().user_agent("weft"),
            Fault::Disconnect,
            Times::Always,
        );
        let before = arena.rules(&node, IpFamily::V4).to_string();
        edit(&arena, &mut cluster, 10);
        // A cold start over existing rules, without an API server.
        let asked = || {
            let requests = Matcher::any().user_agent("weft");
            arena.server.stats().requests(&requests).len()
        };
        let before_start = asked();
        let mut proxy = arena.start_weft(&node);
        wait_until("it asked each of its watches again", PATIENCE, || {
            asked() >= before_start + 6
        });
        assert!(proxy.0.try_wait().unwrap().is_none(), "it waits");
        assert_eq!(arena.rules(&node, IpFamily::V4).to_string(), before);
        faults.clear();
        arena.assert_serves(&node, "after the API server came back");
    });
}

#[test]
fn a_faulty_api_server_delays_rules_and_loses_none() {
    lab::with_programs(&PROGRAMS, |lab| {
        let arena = Arena::new("nft");
        let node = lab.namespace("node");
        let mut cluster = cluster(&arena, 2);
        arena.serve(&node);
        let _proxy = arena.start_weft(&node);
        arena.assert_serves(&node, "before");
        let faults = arena.server.faults();
        for round in 0..6 {
            let watches = Matcher::any().verb(Verb::Watch);
            match round % 3 {
                0 => {
                    faults.cut_watches(&watches, Cut::MidFrame);
                }
                1 => faults.compact(),
                _ => {
                    let error = StatusCode::INTERNAL_SERVER_ERROR;
                    faults.respond(watches.clone(), error, Times::Next(2));
                }
            }
            edit(&arena, &mut cluster, 5);
            faults.cut_watches(&watches, Cut::Clean);
            edit(&arena, &mut cluster, 3);
        }
        arena.assert_serves(&node, "after the faults");
    });
}

#[test]
fn killed_in_the_middle_of_a_sync_it_converges_after_a_restart() {
    lab::with_programs(&PROGRAMS, |lab| {
        for variant in ["nft", "legacy"] {
            let arena = Arena::new(variant);
            let node = lab.namespace(variant);
            let mut cluster = cluster(&arena, 3);
            arena.serve(&node);
            for round in 0..8 {
                let proxy = arena.start_weft(&node);
                edit(&arena, &mut cluster, 4);
                // Each round a little later, so that it dies at different moments.
                std::thread::sleep(Duration::from_millis(40 * round));
                // SIGKILL, to the programs that it started too.
                drop(proxy);
            }
            let _proxy = arena.start_weft(&node);
            arena.assert_serves(&node, variant);
        }
    });
}

#[test]
fn what_others_do_to_the_rules_is_repaired_and_counted() {
    lab::with_programs(&PROGRAMS, |lab| {
        for variant in ["nft", "legacy"] {
            let arena = Arena::new(variant);
            let node = lab.namespace(variant);
            cluster(&arena, 4);
            arena.serve(&node);
            let _proxy = arena.start_weft_with(&node, &["--iptables-sync-period=1s"]);
            arena.assert_serves(&node, "before");
            let iptables = format!("iptables-{variant}");
            for flush in [
                &["-t", "nat", "-F"][..],
                &["-t", "filter", "-F"],
                &["-t", "nat", "-D", "PREROUTING", "1"],
                &["-t", "nat", "-F", "KUBE-SERVICES"],
                &["-t", "mangle", "-X"],
            ] {
                // Waits for a write of ours, as any administrator's tool does.
                node.program(&iptables, &[&["-w"], flush].concat());
                arena.assert_serves(&node, &format!("{variant} {flush:?}"));
            }
            let counted = Arena::metric(&node, "weft_proxy_repaired_chains_total");
            assert!(counted.contains("table=\"nat\""), "{counted}");
            let failures = Arena::metric(&node, "consecutive_sync_failures");
            assert_eq!(failures, "");
        }
    });
}

#[test]
fn repairs_are_not_put_off_where_programs_wait_for_the_processor() {
    lab::with_programs(&PROGRAMS, |lab| {
        let arena = Arena::new("legacy");
        for family in ["iptables", "ip6tables"] {
            let program = fs::read_link(arena.programs.path().join(format!("{family}-save")));
            let program = program.unwrap();
            let slow = arena.programs.path().join(program.file_name().unwrap());
            // Half a second more of the clock's time, and none of a processor's.
            let script = format!("#!/bin/sh\nsleep 0.5\nexec {} \"$@\"\n", program.display());
            fs::write(&slow, script).unwrap();
            fs::set_permissions(&slow, Permissions::from_mode(0o755)).unwrap();
        }
        let node = lab.namespace("node");
        cluster(&arena, 4);
        arena.serve(&node);
        let _proxy = arena.start_weft_with(&node, &["--iptables-sync-period=1s"]);
        arena.assert_serves(&node, "before");
        for round in 0..3 {
            node.program("iptables-legacy", &["-w", "-t", "nat", "-F"]);
            arena.assert_serves(&node, &format!("round {round}"));
        }
    });
}

#[test]
fn clients_that_never_finish_a_request_delay_no_change_and_no_probe() {
    lab::with_programs(&PROGRAMS, |lab| {
        let arena = Arena::new("nft");
        let node = lab.namespace("node");
        let mut cluster = cluster(&arena, 5);
        let balanced = ObjectName {
            kind: "Service",
            namespace: "default".to_owned(),
            name: "balanced".to_owned(),
        };
        let object = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "balanced", "namespace": "default"},
            "spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local",
                "healthCheckNodePort": 31_555, "ports": [{"port": 80}]}});
        arena.apply(&[Edit::Put(balanced, object)]);
        arena.serve(&node);
        let variant = format!("--iptables-variant={}", arena.variant);
        let weft = env!("CARGO_BIN_EXE_weft");
        // The usual limit of a service, and no way to raise it.
        let program = ["prlimit", "--nofile=1024:1024", weft, "proxy", &variant];
        let _proxy = arena.start(&node, "weft", &program);
        arena.assert_serves(&node, "before");
        let started = Instant::now();
        edit(&arena, &mut cluster, 3);
        arena.assert_serves(&node, "without other clients");
        let usual = started.elapsed();
        let ports = [10_256, 10_249, 31_555];
        let _floods = node.run(|| {
            let flood = |port| Flood::tcp(([127, 0, 0, 1], port).into(), 2_000).unwrap();
            ports.map(flood)
        });
        let started = Instant::now();
        edit(&arena, &mut cluster, 3);
        arena.assert_serves(&node, "beside 6,000 clients");
        let took = started.elapsed();
        // A failed sync would be tried again after 30 s.
        let limit = usual * 3 + Duration::from_secs(5);
        assert!(
            took < limit,
            "{took:?} instead of {usual:?}\n{}",
            arena.log("weft")
        );
        for (port, path) in ports.into_iter().zip(["/healthz", "/metrics", "/"]) {
            let page = Arena::page(&node, port, path);
            // Without endpoints here the load balancer receives 503.
            let expected = if port == 31_555 { " 503 " } else { " 200 " };
            let status = page.lines().next().unwrap_or_default();
            assert!(status.contains(expected), "{port}: {page}");
        }
    });
}

#[test]
fn flows_to_an_endpoint_that_went_are_forgotten() {
    lab::with_programs(&PROGRAMS, |lab| {
        let arena = Arena::new("nft");
        let node = lab.namespace("node");
        let ip = |arguments: &str| {
            let arguments: Vec<&str> = arguments.split(' ').collect();
            node.program("ip", &arguments);
        };
        ip("link add pods type bridge");
        ip("link set pods up");
        ip("address add 10.244.0.254/16 dev pods");
        ip("route add 10.96.0.0/12 dev pods");
        arena.serve(&node);
        arena.create_namespace("dns");
        arena.apply(&[node_object(), dns_service(), dns_slice("10.244.0.1")]);
        let _proxy = arena.start_weft(&node);
        let send = || {
            node.run(|| {
                let socket = UdpSocket::bind("10.244.0.254:5000").unwrap();
                socket.send_to(b"who is", "10.96.0.53:53").unwrap();
            });
        };
        let goes_to = |endpoint: &str| {
            send();
            flows(&node).iter().any(|answer| answer == endpoint)
        };
        wait_until("the first endpoint is used", PATIENCE, || {
            goes_to("10.244.0.1:5353")
        });
        arena.apply(&[dns_slice("10.244.0.2")]);
        // The client keeps sending from the same port: only a forgotten flow is translated again.
        wait_until("the second endpoint is used", PATIENCE, || {
            goes_to("10.244.0.2:5353")
        });
        let mut service = dns_service();
        if let Edit::Put(name, _) = &service {
            service = Edit::Delete(name.clone());
        }
        arena.apply(&[service]);
        wait_until("the flow is forgotten with its Service", PATIENCE, || {
            !flows(&node)
                .iter()
                .any(|answer| answer == "10.244.0.2:5353")
        });
    });
}

#[test]
fn the_nftables_mode_takes_over_repairs_its_table_and_gives_way() {
    let programs = ["iptables-nft", "iptables-legacy", "nft"];
    lab::with_programs(&programs, |lab| {
        let arena = Arena::new("nft");
        let node = lab.namespace("node");
        let ip = |arguments: &str| {
            let arguments: Vec<&str> = arguments.split(' ').collect();
            node.program("ip", &arguments);
        };
        ip("link add pods type bridge");
        ip("link set pods up");
        ip("address add 10.244.0.254/16 dev pods");
        ip("route add 10.96.0.0/12 dev pods");
        arena.serve(&node);
        arena.create_namespace("dns");
        arena.apply(&[node_object(), dns_service(), dns_slice("10.244.0.1")]);
        let goes_to = |endpoint: &str| {
            node.run(|| {
                let socket = UdpSocket::bind("10.244.0.254:5000").unwrap();
                // Refused where the Service has no endpoint yet.
                let _ = socket.send_to(b"who is", "10.96.0.53:53");
            });
            flows(&node).iter().any(|answer| answer == endpoint)
        };
        let chains = || {
            node.program("iptables-nft-save", &[])
                .contains("KUBE-SERVICES")
        };
        let table = || {
            node.program("nft", &["list", "tables"])
                .contains("table ip weft")
        };

        let proxy = arena.start_weft(&node);
        wait_until("iptables serves", PATIENCE, || goes_to("10.244.0.1:5353"));
        drop(proxy);
        let proxy = arena.start_weft_with(&node, &["--proxy-mode=nftables"]);
        wait_until("the other mode's chains are gone", PATIENCE, || !chains());
        assert!(table(), "{}", arena.log("weft"));
        arena.apply(&[dns_slice("10.244.0.2")]);
        wait_until("nftables serves", PATIENCE, || goes_to("10.244.0.2:5353"));
        let mode = Arena::page(&node, 10_249, "/proxyMode");
        assert!(mode.ends_with("nftables"), "{mode}");

        node.program("nft", &["flush", "ruleset"]);
        let flushed = Instant::now();
        node.run(|| {
            let mut nftables = Nftables::open().unwrap();
            wait_until("the Service is back", PATIENCE, || {
                let services = nftables.elements(IpFamily::V4, "weft", "services");
                services.is_ok_and(|services| !services.is_empty())
            });
        });
        // By the kernel's notification and not by the next audit, which is due after 30 s.
        let took = flushed.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
        arena.apply(&[dns_slice("10.244.0.3")]);
        wait_until("it serves again", PATIENCE, || goes_to("10.244.0.3:5353"));
        drop(proxy);

        let proxy = arena.start_weft(&node);
        wait_until("the table is gone", PATIENCE, || !table());
        assert!(chains());
        arena.apply(&[dns_slice("10.244.0.1")]);
        wait_until("iptables serves again", PATIENCE, || {
            goes_to("10.244.0.1:5353")
        });
        drop(proxy);
        let weft = env!("CARGO_BIN_EXE_weft");
        node.program(weft, &["proxy", "--iptables-variant=nft", "cleanup"]);
        assert!(!chains() && !table());
    });
}

#[test]
fn it_ends_when_told_and_leaves_the_rules() {
    lab::with_programs(&PROGRAMS, |lab| {
        let arena = Arena::new("nft");
        let node = lab.namespace("node");
        cluster(&arena, 5);
        arena.serve(&node);
        let mut proxy = arena.start_weft(&node);
        arena.assert_serves(&node, "before");
        let pid = proxy.0.id().to_string();
        let status = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        assert!(status.success());
        assert_eq!(wait(&mut proxy.0), Some(0), "{}", arena.log("weft"));
        arena.assert_serves(&node, "after");
        node.program(
            env!("CARGO_BIN_EXE_weft"),
            &["proxy", "--iptables-variant=nft", "cleanup"],
        );
        let left = arena.rules(&node, IpFamily::V4).to_string();
        let ours: Vec<&str> = left.lines().filter(|l| l.contains("KUBE-S")).collect();
        assert_eq!(ours, [""; 0]);
    });
}

#[test]
fn the_rights_in_the_manifest_are_enough() {
    lab::with_programs(&PROGRAMS, |lab| {
        let user = User::new("system:serviceaccount:kube-system:weft-proxy", []);
        let arena = Arena::of(
            "nft",
            ApiServer::builder()
                .authorization_mode(AuthorizationMode::Rbac)
                .token("proxy", user),
        );
        let node = lab.namespace("node");
        arena.serve(&node);
        arena.apply_rights(include_str!("../../../../deploy/proxy/daemonset.yaml"));
        cluster(&arena, 6);
        let kubeconfig = arena.programs.path().join("kubeconfig");
        std::fs::write(&kubeconfig, KUBECONFIG).unwrap();
        let flag = format!("--kubeconfig={}", kubeconfig.display());
        let proxy = arena.start_weft_with(&node, &[&flag, "--proxy-mode="]);
        arena.assert_serves(&node, "with the rights of the manifest");
        let stats = arena.server.stats();
        let refused = || {
            let all = stats.requests(&Matcher::any().user_agent("weft"));
            let refused = all.iter().filter(|record| record.status == 403);
            refused.count()
        };
        wait_until("its start was reported", PATIENCE, || {
            let events = Matcher::any().verb(Verb::Create).resource("events");
            stats
                .requests(&events)
                .iter()
                .any(|record| record.status == 201)
        });
        let events = || {
            let name = ObjectName {
                kind: "Event",
                namespace: String::new(),
                name: String::new(),
            };
            let events = arena.api(&name);
            let list = arena
                .runtime
                .block_on(events.list(&kube::api::ListParams::default()));
            list.unwrap()
                .items
                .into_iter()
                .map(|event| event.data["reason"].clone())
        };
        wait_until("it says that no mode was chosen", PATIENCE, || {
            events().any(|reason| reason == "KubeProxyDefaultMode")
        });
        drop(proxy);
        let _proxy = arena.start_weft_with(&node, &[&flag, "--proxy-mode=nftables"]);
        let mut nftables = node.run(|| Nftables::open().unwrap());
        wait_until("the nftables mode knows the ServiceCIDRs", PATIENCE, || {
            let networks = nftables.elements(IpFamily::V4, "weft", "service-networks");
            networks.is_ok_and(|networks| !networks.is_empty())
        });
        assert_eq!(refused(), 0, "{}", arena.log("weft"));
    });
}

/// Capabilities of a container of a manifest.
struct Privileges {
    capabilities: Vec<String>,
}

impl Privileges {
    fn of_proxy(manifest: &str) -> Self {
        let documents: Vec<Value> = serde_saphyr::from_multiple(manifest).unwrap();
        let containers = documents
            .iter()
            .find_map(|object| object.pointer("/spec/template/spec/containers")?.as_array());
        let containers = containers.unwrap();
        let proxy = containers
            .iter()
            .find(|one| one["name"] == "proxy")
            .unwrap();
        let context = &proxy["securityContext"];
        assert_eq!(context.get("privileged"), None);
        assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert_eq!(context["readOnlyRootFilesystem"], true);
        let added = context["capabilities"]["add"].as_array().unwrap();
        Self {
            capabilities: added
                .iter()
                .map(|name| name.as_str().unwrap().to_lowercase())
                .collect(),
        }
    }

    /// Words before a command line that let it run with these and no other: root with a few
    /// capabilities, and everything read-only but the lock of iptables.
    fn words(&self) -> Vec<String> {
        const ENTER: &str = r#"
            mount --rbind /proc/sys /proc/sys
            mount -o remount,bind,ro /proc/sys
            touch /run/xtables.lock
            mount --bind /run/xtables.lock /run/xtables.lock
            mount -o remount,bind,ro /run
            mount -o remount,bind,ro /
            exec "$@""#;
        let bounding = format!("--bounding-set=-all,+{}", self.capabilities.join(",+"));
        let words = ["unshare", "--mount", "sh", "-ec", ENTER, "sh", "setpriv"];
        let rest = [&*bounding, "--inh-caps=-all", "--no-new-privs"];
        words.into_iter().chain(rest).map(str::to_owned).collect()
    }

    /// As `/proc/self/status` shows them.
    fn mask(&self) -> String {
        let bit = |name: &String| match name.as_str() {
            "net_admin" => 1 << 12,
            "net_raw" => 1 << 13,
            other => panic!("{other} is not expected here"),
        };
        let mask: u64 = self.capabilities.iter().map(bit).sum();
        format!("{mask:016x}")
    }
}

const NODE_MANIFEST: &str = include_str!("../../../../deploy/node/daemonset.yaml");
const PROXY_MANIFEST: &str = include_str!("../../../../deploy/proxy/daemonset.yaml");

fn works_with_the_privileges_in_the_manifest(lab: &lab::Lab, variant: &str, manifest: &str) {
    let privileges = Privileges::of_proxy(manifest);
    let arena = Arena::new(variant);
    let node = lab.namespace(variant);
    let mut cluster = cluster(&arena, 7);
    arena.serve(&node);
    let chosen = format!("--iptables-variant={variant}");
    // The init container. The number of connections belongs to the host's network.
    let flags = [
        "proxy",
        "--init-only",
        &chosen,
        "--conntrack-max-per-core=0",
    ];
    node.program(env!("CARGO_BIN_EXE_weft"), &flags);
    let localnet = node.program("cat", &["/proc/sys/net/ipv4/conf/all/route_localnet"]);
    assert_eq!(localnet.trim(), "1");

    let words = privileges.words();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let shown = node.program(
        words[0],
        &[&words[1..], &["grep", "CapEff", "/proc/self/status"]].concat(),
    );
    let mask = privileges.mask();
    assert_eq!(shown.split_whitespace().nth(1), Some(mask.as_str()));
    let writes = ["sh", "-c", "touch /file 2>&1; touch /run/file 2>&1; true"];
    let shown = node.program(words[0], &[&words[1..], &writes].concat());
    assert_eq!(shown.matches("Read-only file system").count(), 2, "{shown}");

    let weft = [env!("CARGO_BIN_EXE_weft"), "proxy", chosen.as_str()];
    let proxy = arena.start(&node, "weft", &[&words[..], &weft].concat());
    arena.assert_serves(&node, "with the privileges of the manifest");
    edit(&arena, &mut cluster, 10);
    arena.assert_serves(&node, "after changes");
    drop(proxy);
    let log = arena.log("weft");
    // Here no kubelet has set the score before.
    let complaints = log.lines().filter(|line| {
        (line.contains("WARN") || line.contains("ERROR")) && !line.contains("oom_score_adj")
    });
    assert_eq!(complaints.count(), 0, "{log}");
}

#[test]
fn the_privileges_in_the_manifests_are_enough_for_nft() {
    lab::with_programs(&PROGRAMS, |lab| {
        works_with_the_privileges_in_the_manifest(lab, "nft", PROXY_MANIFEST);
    });
}

#[test]
fn the_privileges_in_the_manifests_are_enough_for_legacy() {
    lab::with_programs(&PROGRAMS, |lab| {
        works_with_the_privileges_in_the_manifest(lab, "legacy", NODE_MANIFEST);
    });
}

const KUBECONFIG: &str = "
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: 'http://127.0.0.1:6443'}}]
users: [{name: u, user: {token: proxy}}]
";

fn node_object() -> Edit {
    let name = ObjectName {
        kind: "Node",
        namespace: String::new(),
        name: NODE.to_owned(),
    };
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE},
        "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}});
    Edit::Put(name, object)
}

fn dns_service() -> Edit {
    let name = ObjectName {
        kind: "Service",
        namespace: "dns".to_owned(),
        name: "dns".to_owned(),
    };
    let object = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "dns", "name": "dns"},
        "spec": {"clusterIP": "10.96.0.53", "clusterIPs": ["10.96.0.53"],
                 "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]}});
    Edit::Put(name, object)
}

fn dns_slice(address: &str) -> Edit {
    let name = ObjectName {
        kind: "EndpointSlice",
        namespace: "dns".to_owned(),
        name: "dns-1".to_owned(),
    };
    let object = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"namespace": "dns", "name": "dns-1",
                     "labels": {"kubernetes.io/service-name": "dns"}},
        "addressType": "IPv4", "endpoints": [{"addresses": [address]}],
        "ports": [{"name": "dns", "port": 5353, "protocol": "UDP"}]});
    Edit::Put(name, object)
}

/// The endpoints of the flows in the conntrack table.
fn flows(node: &Namespace) -> Vec<String> {
    node.run(|| {
        let mut netfilter = Netfilter::open().unwrap();
        let flows = netfilter.flows(IpFamily::V4, Protocol::Udp).unwrap();
        flows
            .iter()
            .map(|flow| flow.reply.source.to_string())
            .collect()
    })
}

/// The code with which a process ends within reasonable time.
fn wait(child: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + Duration::from_secs(15);
    loop {
        match child.try_wait().unwrap() {
            Some(status) => return status.code(),
            None if Instant::now() > deadline => return None,
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
