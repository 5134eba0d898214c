//! Starts over existing rules, and cleanup.

use weft_iptables::{Options, RestoreScope};
use weft_model::IpFamily;
use weft_testkit::cluster::RandomCluster;

use crate::world::{OPTIONS, World};

const GATE_OFF: Options = Options {
    restore: RestoreScope::Everything,
    ..OPTIONS
};

fn world(seed: u64, family: IpFamily, options: Options) -> (World, RandomCluster) {
    let mut cluster = RandomCluster::new(seed);
    let mut world = World::new(family, options);
    for _ in 0..30 {
        for edit in cluster.edit() {
            world.edit(&edit);
        }
    }
    world.sync();
    (world, cluster)
}

/// The process ends and starts again with these options, over the same kernel.
fn restart(world: &mut World, options: Options) {
    let family = world.settings.family;
    let mut kernel = crate::world::Simulated::new(family);
    std::mem::swap(&mut kernel, world.backend.kernel());
    kernel.inputs.clear();
    world.restart(kernel, options);
}

#[test]
fn a_restart_over_its_own_rules_writes_nothing() {
    for family in IpFamily::ALL {
        let (mut world, _) = world(1, family, OPTIONS);
        restart(&mut world, OPTIONS);
        assert_eq!(world.full_sync().bytes, 0, "{family}");
    }
}

#[test]
fn what_changed_in_between_is_written_and_what_is_stale_is_removed() {
    for seed in 0..10 {
        let (mut world, mut cluster) = world(seed, IpFamily::V4, OPTIONS);
        for _ in 0..10 {
            for edit in cluster.edit() {
                world.edit(&edit);
            }
        }
        restart(&mut world, OPTIONS);
        world.full_sync();
        world.assert_as_fresh(&format!("seed {seed}"));
    }
}

#[test]
fn the_gate_can_be_switched_by_a_restart_in_both_directions() {
    let (mut world, mut cluster) = world(2, IpFamily::V4, GATE_OFF);
    for options in [OPTIONS, GATE_OFF, OPTIONS, GATE_OFF] {
        restart(&mut world, options);
        world.full_sync();
        for edit in cluster.edit() {
            world.edit(&edit);
        }
        let report = world.sync();
        assert_eq!(report.full, options.restore == RestoreScope::Everything);
        world.assert_as_fresh(&format!("{options:?}"));
    }
}

#[test]
fn without_the_gate_every_sync_writes_everything() {
    let (mut world, _) = world(3, IpFamily::V4, GATE_OFF);
    let first = world.full_sync().bytes;
    assert_eq!(world.full_sync().bytes, first);
    assert!(first > 1000);
}

#[test]
fn groups_in_another_order_are_not_a_difference() {
    let (mut world, _) = world(4, IpFamily::V4, OPTIONS);
    // kube-proxy writes them in the order of a Go map.
    let text = world.rules().to_string();
    let mut first_rules = text
        .lines()
        .filter(|line| line.starts_with("-A KUBE-SERVICES -d") && line.contains("cluster IP"));
    let first = first_rules.next().unwrap();
    let rule = first.strip_prefix("-A KUBE-SERVICES ").unwrap();
    let only = text.lines().filter(|line| line.contains(rule)).count();
    assert_eq!(only, 1);
    let moved = format!("*nat\n-D KUBE-SERVICES {rule}\n-I KUBE-SERVICES {rule}\nCOMMIT\n");
    world.backend.kernel().disturb(&moved);
    restart(&mut world, OPTIONS);
    assert_eq!(world.full_sync().bytes, 0);
}

#[test]
fn a_cleanup_leaves_what_others_wrote_and_what_kubelet_needs() {
    let (mut world, _) = world(6, IpFamily::V4, OPTIONS);
    let foreign = "*nat\n:CNI-HOSTPORT - [0:0]\n-A CNI-HOSTPORT -j RETURN\n\
                   -A PREROUTING -j CNI-HOSTPORT\nCOMMIT\n";
    world.backend.kernel().disturb(foreign);
    weft_iptables::cleanup(world.backend.kernel(), IpFamily::V4).unwrap();
    let text = world.rules().to_string();
    let ours: Vec<&str> = text.lines().filter(|line| line.contains("KUBE-")).collect();
    assert_eq!(
        ours.len(),
        4,
        "kubelet's chain, its rule, two jumps: {ours:?}"
    );
    assert!(ours.iter().all(|line| line.contains("KUBE-FIREWALL")));
    assert!(text.contains("-A PREROUTING -j CNI-HOSTPORT"));
    let again = weft_iptables::cleanup(world.backend.kernel(), IpFamily::V4).unwrap();
    assert!(again.is_empty(), "{again}");
}

#[test]
fn what_is_rendered_without_a_kernel_is_what_a_fresh_one_gets() {
    let (mut world, _) = world(7, IpFamily::V6, OPTIONS);
    let plan = weft_iptables::render(&world.desired, &world.settings, OPTIONS);
    let mut rules = weft_ruleset::Ruleset::new(IpFamily::V6);
    rules.restore(&plan.to_string()).unwrap();
    assert_eq!(rules.to_string(), world.fresh().to_string());
    let (findings, mend) = weft_iptables::differences(
        world.backend.kernel(),
        &world.desired,
        &world.settings,
        OPTIONS,
    )
    .unwrap();
    assert!(findings.is_empty() && mend.is_empty(), "{findings:?}");
}

#[test]
fn changed_settings_reach_every_rule() {
    let (mut world, _) = world(5, IpFamily::V4, OPTIONS);
    world.settings.masquerade_all = true;
    world.settings.local_detector = None;
    world.sync();
    world.assert_as_fresh("masquerade all");
}

#[test]
fn external_addresses_can_be_switched_off() {
    let found = |world: &mut World| world.rules().to_string().contains("198.51.100.");
    let mut world = world_with_external_address();
    assert!(found(&mut world));
    world.settings.external_ips = false;
    world.sync();
    assert!(!found(&mut world));
    world.assert_as_fresh("without external addresses");
}

fn world_with_external_address() -> World {
    let object = serde_json::json!({"kind": "Service",
        "metadata": {"namespace": "shop", "name": "cart"},
        "spec": {"clusterIP": "10.96.0.1", "externalIPs": ["198.51.100.7"],
                 "ports": [{"name": "http", "port": 80}]}});
    let mut world = World::new(IpFamily::V4, OPTIONS);
    let object = weft_proxy::objects::Object::decode(&object)
        .unwrap()
        .unwrap();
    world.model.set(&object);
    world.sync();
    world
}
