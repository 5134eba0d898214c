//! The cost of a sync: its input is in proportion to what changed.

use serde_json::json;
use weft_iptables::Plan;
use weft_model::IpFamily;
use weft_proxy::{Backend as _, Scope, objects::Object};

use crate::world::{OPTIONS, World};

fn add(world: &mut World, index: usize, last_octet: usize) {
    let ip = format!("10.96.{}.{}", index / 200, index % 200 + 1);
    let name = format!("service-{index}");
    let service = json!({"kind": "Service", "metadata": {"namespace": "shop", "name": name},
        "spec": {"clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"],
                 "ports": [{"name": "http", "port": 80}]}});
    let endpoints: Vec<_> = (0..5)
        .map(|n| json!({"addresses": [format!("10.244.{n}.{}", last_octet + n)]}))
        .collect();
    let slice = json!({"kind": "EndpointSlice",
        "metadata": {"namespace": "shop", "name": format!("{name}-x"),
                     "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "http", "port": 8080}]});
    for object in [service, slice] {
        let problems = world.model.set(&Object::decode(&object).unwrap().unwrap());
        assert!(problems.is_empty(), "{problems:?}");
    }
}

fn cluster(services: usize) -> World {
    let mut world = World::new(IpFamily::V4, OPTIONS);
    for index in 0..services {
        add(&mut world, index, 1);
    }
    world.sync();
    world.backend.kernel().inputs.clear();
    world
}

#[test]
fn a_changed_slice_writes_its_own_chains_and_no_shared_one() {
    for services in [10, 150] {
        let mut world = cluster(services);
        add(&mut world, 3, 100);
        let report = world.sync();
        let input = world.backend.kernel().inputs.concat();
        assert!(report.bytes <= 4096, "{} bytes:\n{input}", report.bytes);
        for shared in ["KUBE-SERVICES", "KUBE-NODEPORTS", "*filter"] {
            assert!(!input.contains(shared), "{shared} in\n{input}");
        }
        world.assert_as_fresh("after the change");
    }
}

#[test]
fn one_endpoint_more_leaves_the_chains_of_the_others_alone() {
    let mut world = cluster(3);
    let slice = json!({"kind": "EndpointSlice",
        "metadata": {"namespace": "shop", "name": "more",
                     "labels": {"kubernetes.io/service-name": "service-1"}},
        "addressType": "IPv4", "endpoints": [{"addresses": ["10.244.9.9"]}],
        "ports": [{"name": "http", "port": 8080}]});
    world.model.set(&Object::decode(&slice).unwrap().unwrap());
    world.sync();
    let input = world.backend.kernel().inputs.concat();
    let chains: Vec<&str> = input.lines().filter(|l| l.starts_with(':')).collect();
    assert_eq!(
        chains.len(),
        2,
        "the Service's and the new endpoint's: {chains:?}"
    );
    world.assert_as_fresh("after the change");
}

#[test]
fn a_new_service_is_inserted_and_an_old_one_deleted_by_single_rules() {
    let mut world = cluster(20);
    add(&mut world, 50, 7);
    world.sync();
    let input = std::mem::take(&mut world.backend.kernel().inputs).concat();
    assert_eq!(input.matches("-I KUBE-SERVICES").count(), 1, "{input}");
    assert!(!input.contains(":KUBE-SERVICES"), "{input}");
    world.assert_as_fresh("after the addition");
    let key = weft_model::ObjectKey::namespaced("shop", "service-4");
    world.model.remove_service(&key);
    world.sync();
    let input = std::mem::take(&mut world.backend.kernel().inputs).concat();
    assert_eq!(input.matches("-D KUBE-SERVICES").count(), 1, "{input}");
    world.assert_as_fresh("after the removal");
}

#[test]
fn many_new_services_rewrite_the_shared_chain_once() {
    let mut world = cluster(5);
    for index in 100..200 {
        add(&mut world, index, 3);
    }
    world.sync();
    let input = world.backend.kernel().inputs.concat();
    assert_eq!(input.matches(":KUBE-SERVICES").count(), 1);
    assert!(!input.contains("-I KUBE-SERVICES"));
    world.assert_as_fresh("after the additions");
}

#[test]
fn an_object_that_changes_nothing_writes_nothing() {
    let mut world = cluster(5);
    add(&mut world, 2, 1);
    let report = world.sync();
    assert_eq!(report.bytes, 0);
    assert!(world.backend.kernel().inputs.is_empty());
}

#[test]
fn a_large_cluster_does_without_comments_of_endpoints() {
    // 201 Services of 5 endpoints are more than a thousand.
    let mut world = cluster(201);
    let text = world.rules().to_string();
    assert!(!text.contains("shop/service-7:http -> "));
    assert!(text.contains("\"shop/service-7:http cluster IP\""));
    // Those written before the threshold keep theirs until they change.
    let mut world = cluster(200);
    assert!(
        world
            .rules()
            .to_string()
            .contains("shop/service-7:http -> ")
    );
    add(&mut world, 300, 5);
    world.sync();
    let text = world.rules().to_string();
    assert!(text.contains("shop/service-7:http -> "));
    assert!(!text.contains("shop/service-300:http -> "));
}

#[test]
fn on_an_empty_kernel_the_api_server_and_dns_come_first() {
    let mut world = World::new(IpFamily::V4, OPTIONS);
    for index in 0..600 {
        add(&mut world, index, 1);
    }
    let object = json!({"kind": "Service",
        "metadata": {"namespace": "default", "name": "kubernetes"},
        "spec": {"clusterIP": "10.96.200.1", "ports": [{"name": "https", "port": 443}]}});
    world.model.set(&Object::decode(&object).unwrap().unwrap());
    world.derive();
    world
        .backend
        .sync(&world.desired, &world.settings, Scope::Full)
        .unwrap();
    let inputs = &world.backend.kernel().inputs;
    assert_eq!(inputs.len(), 2);
    assert!(inputs[0].contains("default/kubernetes") && !inputs[0].contains("shop/"));
    world.assert_as_fresh("after both");
    assert!(Plan::default().is_empty());
}
