//! Plans of the allocator.

use std::time::Duration;

use ipnet::IpNet;
use weft_ipam::{
    ContainerResult, UpdatePhase,
    allocator::{
        Allocator, AllocatorSettings, Block, ClaimState, ClusterCidr, IpPool, Notice, Plan,
        PoolSource, WallTime, Write,
    },
};
use weft_model::{LabelSelector, Moment};

use crate::{
    cluster::{Api, Conflict},
    fixtures::at,
};

pub(crate) const WALL: WallTime = WallTime(1_000_000);

pub(crate) fn pool(range: &str) -> IpPool {
    IpPool::new("pods", PoolSource::Ranges(vec![range.parse().unwrap()]))
}

pub(crate) fn plan(allocator: &mut Allocator, api: &Api, now: Moment) -> Plan {
    allocator.plan(&api.view, now, WALL)
}

/// Plans and writes until there is nothing left to write; returns the plans as text.
pub(crate) fn settle(allocator: &mut Allocator, api: &mut Api, now: Moment) -> Vec<String> {
    settle_at(allocator, api, now, WALL)
}

pub(crate) fn settle_at(
    allocator: &mut Allocator,
    api: &mut Api,
    now: Moment,
    wall: WallTime,
) -> Vec<String> {
    let mut plans = Vec::new();
    for _ in 0..20 {
        let plan = allocator.plan(&api.view, now, wall);
        if plan.is_empty() {
            return plans;
        }
        for write in &plan.writes {
            api.write(write).unwrap();
        }
        plans.push(plan.to_string());
    }
    panic!("never settles: {plans:#?}");
}

pub(crate) fn count(api: &Api, node: &str) -> u64 {
    api.config(node).status.address_count()
}

pub(crate) fn offer_all(api: &mut Api, node: &str) {
    let names = api
        .config(node)
        .status
        .entries()
        .map(|(_, entry)| entry.name.clone())
        .collect();
    api.edit(node, |spec| spec.not_in_use = names);
}

#[test]
fn a_new_node_gets_its_config_and_a_block_which_is_claimed_before_it_is_published() {
    let mut api = Api::new([pool("10.0.0.0/16")]);
    api.add_node("n1", &[], &[]);
    let mut allocator = Allocator::default();
    let plans = settle(&mut allocator, &mut api, at(0));
    assert_eq!(
        plans,
        [
            "+ nodenetworkconfig n1: request 16\n",
            "~ shard pods-10-0-0-0-20: +10.0.0.0/28=n1\n",
            "~ nodenetworkconfig n1: 16 addresses\n",
        ]
    );
    let config = api.config("n1");
    let container = &config.status.containers[0];
    assert_eq!(container.entries[0].ip, "10.0.0.0/28");
    assert_eq!(container.gateways[0].to_string(), "10.0.0.1");
    assert_eq!(
        (container.version, config.status.phase),
        (1, Some(UpdatePhase::Updated))
    );
    assert!(
        plan(&mut allocator, &api, at(1000)).is_empty(),
        "steady state writes nothing"
    );
}

#[test]
fn a_request_is_rounded_up_to_whole_blocks_in_one_write() {
    let mut api = Api::new([pool("10.0.0.0/16")]);
    api.add_node("n1", &[], &[]);
    let mut allocator = Allocator::default();
    settle(&mut allocator, &mut api, at(0));
    api.edit("n1", |spec| spec.requested = 36);
    let plans = settle(&mut allocator, &mut api, at(1));
    assert_eq!((plans.len(), count(&api, "n1")), (2, 48));
    api.edit("n1", |spec| spec.requested = i64::MAX);
    settle(&mut allocator, &mut api, at(2));
    assert_eq!(count(&api, "n1"), 256, "the maximum of 250, in blocks");
    for nonsense in [i64::MIN, -1, 0] {
        api.edit("n1", |spec| spec.requested = nonsense);
        settle(&mut allocator, &mut api, at(3));
        assert_eq!(count(&api, "n1"), 256, "only what is offered is taken");
    }
}

#[test]
fn an_offered_block_is_unpublished_before_it_is_freed_and_cools_down_before_reuse() {
    let mut api = Api::new([pool("10.0.0.0/27")]);
    for name in ["n1", "n2"] {
        api.add_node(name, &[], &[]);
    }
    let mut allocator = Allocator::default();
    settle(&mut allocator, &mut api, at(0));
    offer_all(&mut api, "n1");
    api.edit("n1", |spec| spec.requested = 0);
    api.edit("n2", |spec| spec.requested = 32);
    let first = plan(&mut allocator, &api, at(1));
    let statuses: Vec<&Write> = first
        .writes
        .iter()
        .filter(|write| matches!(write, Write::Status { .. }))
        .collect();
    assert!(!statuses.is_empty());
    assert!(
        !first
            .writes
            .iter()
            .any(|write| matches!(write, Write::Shard { .. })),
        "{first}"
    );
    settle(&mut allocator, &mut api, at(1));
    assert_eq!((count(&api, "n1"), count(&api, "n2")), (0, 16));
    let result = api.config("n2").status.containers[0].result;
    assert_eq!(result, Some(ContainerResult::SubnetFull));
    // Nothing about n2 changes, and still it is served.
    settle_at(
        &mut allocator,
        &mut api,
        at(40),
        WALL.after(Duration::from_secs(30)),
    );
    assert_eq!(count(&api, "n2"), 32);
    let result = api.config("n2").status.containers[0].result;
    assert_eq!(result, Some(ContainerResult::Success));
}

#[test]
fn a_claim_that_a_crash_left_is_published_and_one_that_was_overtaken_is_freed() {
    let mut api = Api::new([pool("10.0.0.0/16")]);
    api.add_node("n1", &[], &[]);
    let mut allocator = Allocator::default();
    settle(&mut allocator, &mut api, at(0));
    api.edit("n1", |spec| spec.requested = 32);
    let claims = plan(&mut allocator, &api, at(1));
    api.write(&claims.writes[0]).unwrap();
    let mut next = Allocator::default();
    settle(&mut next, &mut api, at(1));
    assert_eq!(count(&api, "n1"), 32);
    // Claimed, but the node's status moved on before it was published.
    api.edit("n1", |spec| spec.requested = 48);
    let claims = plan(&mut next, &api, at(2));
    api.write(&claims.writes[0]).unwrap();
    let mut config = api.config("n1").clone();
    config.status.containers[0].version += 1;
    let overtaking = Write::Status {
        name: config.name.clone(),
        precondition: config.precondition(),
        status: config.status,
    };
    api.write(&overtaking).unwrap();
    let text = settle(&mut next, &mut api, at(2)).concat();
    assert!(text.contains("-10.0.0.32/28=n1"), "{text}");
    assert_eq!(count(&api, "n1"), 48);
}

#[test]
fn of_two_controllers_with_the_same_view_one_claims() {
    let mut api = Api::new([pool("10.0.0.0/27")]);
    api.add_node("n1", &[], &[]);
    api.add_node("n2", &[], &[]);
    let mut first = Allocator::default();
    for write in plan(&mut first, &api, at(0)).writes {
        api.write(&write).unwrap();
    }
    let one = plan(&mut first, &api, at(0));
    let other = plan(&mut Allocator::default(), &api, at(0));
    assert_eq!(one, other);
    let claims = |plan: &Plan| {
        let mut writes = plan.writes.iter();
        writes
            .find(|write| matches!(write, Write::Shard { .. }))
            .cloned()
            .unwrap()
    };
    api.write(&claims(&one)).unwrap();
    assert_eq!(api.write(&claims(&other)), Err(Conflict));
}

#[test]
fn nothing_is_planned_on_an_incomplete_view() {
    let mut api = Api::new([pool("10.0.0.0/16")]);
    api.add_node("n1", &[], &[]);
    api.view.complete = false;
    assert!(plan(&mut Allocator::default(), &api, at(0)).is_empty());
}

#[test]
fn the_node_must_be_absent_for_the_grace_before_its_addresses_are_taken() {
    let mut api = Api::new([pool("10.0.0.0/16")]);
    api.add_node("n1", &[], &[]);
    let mut allocator = Allocator::new(AllocatorSettings {
        node_grace: Duration::from_secs(300),
    });
    settle(&mut allocator, &mut api, at(0));
    api.remove_node("n1");
    assert!(plan(&mut allocator, &api, at(10)).is_empty());
    assert_eq!(allocator.wake(), Some(at(310)));
    assert!(plan(&mut allocator, &api, at(309)).is_empty());
    let plans = settle(&mut allocator, &mut api, at(310));
    assert_eq!(
        plans,
        [
            "- nodenetworkconfig n1\n",
            "~ nodenetworkconfig n1: 0 addresses\n",
            "~ shard pods-10-0-0-0-20: -10.0.0.0/28=n1\n",
            "~ nodenetworkconfig n1: no finalizer\n",
        ]
    );
    assert!(api.view.configs.is_empty());
}

/// Networks that a node publishes.
fn nets(api: &Api, node: &str) -> Vec<IpNet> {
    let entries = api.config(node).status.entries();
    entries.map(|(_, entry)| entry.net().unwrap()).collect()
}

#[test]
fn a_node_registered_again_gets_its_former_blocks_at_once_in_a_config_of_its_own() {
    // The garbage collector has deleted the former config, or not yet.
    for deleting in [false, true] {
        let mut api = Api::new([pool("10.0.0.0/16")]);
        for name in ["n0", "n1", "n2"] {
            api.add_node(name, &[], &[]);
        }
        let mut allocator = Allocator::default();
        settle(&mut allocator, &mut api, at(0));
        api.edit("n1", |spec| spec.requested = 32);
        settle(&mut allocator, &mut api, at(0));
        let (old, before) = (api.config("n1").clone(), nets(&api, "n1"));
        api.remove_node("n1");
        if deleting {
            api.delete_config("n1", false);
        }
        settle(&mut allocator, &mut api, at(10));
        assert_eq!(api.config("n1").uid, old.uid, "its addresses are reserved");
        let uid = api.add_node("n1", &[], &[]);
        // What is known comes from the objects: a restart does not change it.
        let mut restarted = Allocator::default();
        settle(&mut restarted, &mut api, at(11));
        let now = api.config("n1");
        assert_eq!(now.owner, Some(uid));
        assert_ne!(now.uid, old.uid, "requests of the former Node do not apply");
        assert!(!now.deleting);
        assert_eq!(nets(&api, "n1"), before);
        // They stay, however long the former Node has been gone.
        for seconds in [400, 800] {
            settle(&mut restarted, &mut api, at(seconds));
            assert_eq!(nets(&api, "n1"), before);
        }
    }
}

#[test]
fn blocks_wait_for_the_config_of_a_node_that_is_registered_again() {
    let mut api = Api::new([pool("10.0.0.0/16")]);
    api.add_node("n1", &[], &[]);
    let mut allocator = Allocator::default();
    settle(&mut allocator, &mut api, at(0));
    api.remove_node("n1");
    api.delete_config("n1", true);
    api.add_node("n1", &[], &[]);
    // The config cannot be created for longer than the grace period.
    for seconds in [1, 400, 800] {
        let plan = plan(&mut allocator, &api, at(seconds));
        assert_eq!(plan.to_string(), "+ nodenetworkconfig n1: request 16\n");
    }
    settle(&mut allocator, &mut api, at(801));
    assert_eq!(nets(&api, "n1"), ["10.0.0.0/28".parse().unwrap()]);
    // No pool serves the Node that is registered now: its blocks become free.
    api.view.pools.get_mut(&"pods".into()).unwrap().nodes =
        LabelSelector::parse("gpu=yes").unwrap();
    api.remove_node("n1");
    api.delete_config("n1", true);
    api.add_node("n1", &[], &[]);
    assert!(plan(&mut allocator, &api, at(900)).is_empty());
    let freed = plan(&mut allocator, &api, at(1200)).to_string();
    assert!(freed.contains("-10.0.0.0/28=n1"), "{freed}");
}

#[test]
fn claims_move_only_to_a_node_that_exists() {
    let mut api = Api::new([]);
    let mut allocator = Allocator::default();
    api.add_node("n1", &[], &[]);
    settle_cidrs(&mut allocator, &mut api, at(0));
    api.remove_node("n1");
    api.add_node("n1", &[], &[]);
    let moving = plan_cidrs(&mut allocator, &api, at(1));
    assert_eq!(
        moving.to_string(),
        "~ shard node-cidrs-10-244-0-0-22: >10.244.0.0/24=n1\n\
         ~ shard node-cidrs-fd00-10---56: >fd00:10::/64=n1\n"
    );
    // The cache was stale: that Node has been replaced by yet another one.
    api.remove_node("n1");
    api.add_node("n1", &[], &[]);
    for write in &moving.writes {
        assert_eq!(api.write(write), Err(Conflict));
    }
}

#[test]
fn a_node_registered_again_gets_its_former_pod_cidrs_and_the_addresses_in_them() {
    let mut api = Api::new([IpPool::new("own", PoolSource::NodeCidrs)]);
    let (mut addresses, mut cidrs) = (Allocator::default(), Allocator::default());
    for index in 0..3 {
        api.add_node(&format!("n{index}"), &[], &[]);
    }
    settle_cidrs(&mut cidrs, &mut api, at(0));
    settle(&mut addresses, &mut api, at(0));
    let range = api.view.nodes[&"n1".into()].pod_cidrs.clone();
    let (old, before) = (api.config("n1").uid.clone(), nets(&api, "n1"));
    api.remove_node("n1");
    api.delete_config("n1", false);
    settle_cidrs(&mut cidrs, &mut api, at(1));
    settle(&mut addresses, &mut api, at(1));
    api.add_node("n1", &[], &[]);
    // A restart in between: the claims say whose the range is.
    (addresses, cidrs) = (Allocator::default(), Allocator::default());
    settle(&mut addresses, &mut api, at(2));
    assert_eq!(
        api.config("n1").uid,
        old,
        "not before the Node has its range"
    );
    settle_cidrs(&mut cidrs, &mut api, at(2));
    assert_eq!(api.view.nodes[&"n1".into()].pod_cidrs, range);
    settle(&mut addresses, &mut api, at(2));
    assert_ne!(api.config("n1").uid, old);
    assert_eq!(nets(&api, "n1"), before);
    for seconds in [400, 800] {
        settle_cidrs(&mut cidrs, &mut api, at(seconds));
        api.add_node(&format!("later-{seconds}"), &[], &[]);
        settle_cidrs(&mut cidrs, &mut api, at(seconds));
    }
    assert_eq!(
        api.view.nodes[&"later-400".into()].pod_cidrs[0].to_string(),
        "10.244.3.0/24"
    );
    assert!(
        api.view.nodes[&"later-800".into()].pod_cidrs.is_empty(),
        "all are taken"
    );
}

#[test]
fn what_a_node_had_in_a_range_that_it_did_not_get_back_is_kept_for_the_grace_period() {
    let mut api = Api::new([IpPool::new("own", PoolSource::NodeCidrs)]);
    let mut allocator = Allocator::default();
    api.add_node("n1", &[], &["10.244.1.0/24"]);
    settle(&mut allocator, &mut api, at(0));
    let old = api.config("n1").uid.clone();
    api.remove_node("n1");
    // Another allocator of pod CIDRs, which does not remember.
    let uid = api.add_node("n1", &[], &["10.244.2.0/24"]);
    api.add_node("n2", &[], &["10.244.1.0/24"]);
    settle(&mut allocator, &mut api, at(1));
    assert_eq!(api.config("n1").uid, old);
    let taken = nets(&api, "n1")[0];
    assert!(!nets(&api, "n2").contains(&taken), "{taken} may be in use");
    settle(&mut allocator, &mut api, at(400));
    assert_eq!(api.config("n1").owner, Some(uid));
    assert_eq!(nets(&api, "n1"), ["10.244.2.16/28".parse().unwrap()]);
}

#[test]
fn an_orphaned_claim_is_freed_only_if_its_config_is_really_gone() {
    let mut api = Api::new([pool("10.0.0.0/16")]);
    api.add_node("n1", &[], &[]);
    let mut allocator = Allocator::default();
    settle(&mut allocator, &mut api, at(0));
    // A cache that has not seen the config yet, nor the Node for a long time.
    let mut stale = api.clone();
    stale.view.configs.clear();
    stale.view.nodes.clear();
    plan(&mut allocator, &stale, at(1));
    let freeing = plan(&mut allocator, &stale, at(1000));
    assert_eq!(
        freeing.to_string(),
        "~ shard pods-10-0-0-0-20: -10.0.0.0/28=n1 (if n1 is gone)\n"
    );
    assert_eq!(api.write(&freeing.writes[0]), Err(Conflict));
    api.view.configs.clear();
    api.view.nodes.clear();
    assert_eq!(api.write(&freeing.writes[0]), Ok(()));
}

#[test]
fn what_is_published_without_a_claim_is_adopted_before_anything_is_granted() {
    let mut api = Api::new([pool("10.0.0.0/16")]);
    api.add_node("n1", &[], &[]);
    let mut allocator = Allocator::default();
    settle(&mut allocator, &mut api, at(0));
    api.view.shards.clear();
    api.add_node("n2", &[], &[]);
    let plans = settle(&mut allocator, &mut api, at(1));
    assert!(
        plans[0].contains("!10.0.0.0/28=n1") && !plans[0].contains("=n2"),
        "{plans:#?}"
    );
    let second = api.config("n2").status.containers[0].entries[0].ip.clone();
    assert_eq!(second, "10.0.0.16/28");
}

#[test]
fn a_conflict_is_reported_and_no_addresses_are_withdrawn() {
    let mut api = Api::new([pool("10.0.0.0/16")]);
    for name in ["n1", "n2"] {
        api.add_node(name, &[], &[]);
    }
    let mut allocator = Allocator::default();
    settle(&mut allocator, &mut api, at(0));
    let stolen = api.config("n1").status.containers[0].entries[0].clone();
    let entries = &mut api
        .view
        .configs
        .get_mut(&"n2".into())
        .unwrap()
        .status
        .containers[0]
        .entries;
    entries.push(weft_ipam::Entry {
        name: "by-hand".into(),
        ..stolen
    });
    let plan = plan(&mut allocator, &api, at(1));
    assert_eq!(
        plan.to_string(),
        "! nodenetworkconfig n2: by-hand (10.0.0.0/28) is claimed by n1\n"
    );
}

#[test]
fn a_status_that_was_set_back_is_published_again() {
    let mut api = Api::new([pool("10.0.0.0/16")]);
    api.add_node("n1", &[], &[]);
    let mut allocator = Allocator::default();
    settle(&mut allocator, &mut api, at(0));
    api.edit("n1", |spec| spec.requested = 32);
    settle(&mut allocator, &mut api, at(0));
    let before: Vec<_> = api.config("n1").status.containers[0].entries.clone();
    let config = api.view.configs.get_mut(&"n1".into()).unwrap();
    config.status.containers.clear();
    settle(&mut allocator, &mut api, at(1));
    let after = &api.config("n1").status.containers[0].entries;
    assert!(after.contains(&before[1]), "{after:?}");
    assert_eq!(count(&api, "n1"), 32);
}

#[test]
fn the_last_addresses_go_to_pods_and_not_to_buffers_one_by_one() {
    let mut api = Api::new([pool("10.0.0.0/27")]);
    for name in ["n1", "n2"] {
        api.add_node(name, &[], &[]);
    }
    let mut allocator = Allocator::default();
    settle(&mut allocator, &mut api, at(0));
    api.add_node("n3", &[], &[]);
    settle(&mut allocator, &mut api, at(0));
    assert!(api.view.exhausted.contains(&"pods".into()));
    assert_eq!(count(&api, "n3"), 0);
    // n1 releases its block; n3 wants a buffer, n2 has pods.
    offer_all(&mut api, "n1");
    api.edit("n1", |spec| spec.requested = 0);
    api.edit("n2", |spec| (spec.requested, spec.demand) = (30, Some(29)));
    api.edit("n3", |spec| (spec.requested, spec.demand) = (8, Some(0)));
    settle(&mut allocator, &mut api, at(0));
    settle_at(
        &mut allocator,
        &mut api,
        at(0),
        WALL.after(Duration::from_secs(60)),
    );
    assert_eq!((count(&api, "n2"), count(&api, "n3")), (30, 2));
    let split = api
        .view
        .shards
        .values()
        .flat_map(|shard| shard.blocks.values());
    assert_eq!(
        split
            .filter(|block| matches!(block, Block::Split(_)))
            .count(),
        1
    );
}

#[test]
fn exhaustion_is_entered_and_left_at_different_marks() {
    let mut api = Api::new([pool("10.0.0.0/24")]);
    for index in 0..15 {
        api.add_node(&format!("n{index:02}"), &[], &[]);
    }
    let mut allocator = Allocator::default();
    settle(&mut allocator, &mut api, at(0));
    assert!(
        api.view.exhausted.contains(&"pods".into()),
        "16 of 256 are free"
    );
    for index in 0..15 {
        api.edit(&format!("n{index:02}"), |spec| spec.demand = Some(0));
    }
    let mut wall = WALL;
    for (name, later, exhausted) in [("n00", 400, true), ("n01", 800, false)] {
        api.remove_node(name);
        plan(&mut allocator, &api, at(later - 350));
        settle_at(&mut allocator, &mut api, at(later), wall);
        wall = wall.after(Duration::from_secs(60));
        settle_at(&mut allocator, &mut api, at(later), wall);
        let said = api.view.exhausted.contains(&"pods".into());
        assert_eq!(said, exhausted, "{name}: 12.5 % are free, then 18.75 %");
    }
}

#[test]
fn exhaustion_is_not_left_while_the_nodes_buffers_would_bring_it_back() {
    let mut api = Api::new([pool("10.0.0.0/26")]);
    for name in ["n1", "n2"] {
        api.add_node(name, &[], &[]);
    }
    let mut allocator = Allocator::default();
    settle(&mut allocator, &mut api, at(0));
    for name in ["n1", "n2"] {
        api.edit(name, |spec| (spec.requested, spec.demand) = (32, Some(20)));
    }
    settle(&mut allocator, &mut api, at(0));
    assert!(api.view.exhausted.contains(&"pods".into()));
    // They follow the scaler and keep little more than they need.
    for name in ["n1", "n2"] {
        let entry = api.config(name).status.containers[0].entries[1]
            .name
            .clone();
        api.edit(name, |spec| {
            spec.requested = 16;
            spec.not_in_use.insert(entry);
        });
    }
    settle(&mut allocator, &mut api, at(0));
    let wall = WALL.after(Duration::from_secs(60));
    settle_at(&mut allocator, &mut api, at(0), wall);
    assert_eq!(count(&api, "n1") + count(&api, "n2"), 32);
    assert!(api.view.exhausted.contains(&"pods".into()));
}

#[test]
fn reserved_addresses_are_never_assigned_and_the_rest_of_their_block_is_used_last() {
    let mut small = pool("10.0.0.0/27");
    small.reserved = ["10.0.0.0/31", "10.0.0.31/32"]
        .map(|net| net.parse().unwrap())
        .to_vec();
    let mut api = Api::new([small]);
    api.add_node("n1", &[], &[]);
    let mut allocator = Allocator::default();
    settle(&mut allocator, &mut api, at(0));
    api.edit("n1", |spec| spec.requested = 32);
    settle(&mut allocator, &mut api, at(0));
    assert_eq!(count(&api, "n1"), 29);
    let reserved: IpNet = "10.0.0.0/31".parse().unwrap();
    let entries = api.config("n1").status.entries();
    assert!(
        entries
            .map(|(_, entry)| entry.net().unwrap())
            .all(|net| !net.contains(&reserved))
    );
}

#[test]
fn both_families_are_claimed_from_ranges_of_any_size() {
    let ranges = ["10.0.0.0/16", "fd00::/48"]
        .map(|net| net.parse().unwrap())
        .to_vec();
    let mut api = Api::new([IpPool::new("dual", PoolSource::Ranges(ranges))]);
    api.add_node("n1", &[], &[]);
    settle(&mut Allocator::default(), &mut api, at(0));
    let status = &api.config("n1").status;
    let ips: Vec<&str> = status
        .entries()
        .map(|(_, entry)| entry.ip.as_str())
        .collect();
    assert_eq!(ips, ["10.0.0.0/28", "fd00::/124"]);
    let requested = api.config("n1").spec.requested;
    assert_eq!(
        (requested, status.address_count()),
        (16, 16),
        "both count addresses of each family"
    );
}

#[test]
fn a_node_is_served_by_the_first_pool_that_selects_it() {
    let mut gpu = IpPool::new(
        "a-gpu",
        PoolSource::Ranges(vec!["10.9.0.0/24".parse().unwrap()]),
    );
    gpu.nodes = LabelSelector::parse("gpu=yes").unwrap();
    let mut rest = pool("10.0.0.0/24");
    rest.nodes = LabelSelector::parse("gpu!=yes,gpu").unwrap();
    let mut api = Api::new([gpu, rest]);
    api.add_node("n1", &[("gpu", "yes")], &[]);
    api.add_node("n2", &[("gpu", "no")], &[]);
    api.add_node("n3", &[], &[]);
    let mut allocator = Allocator::default();
    settle(&mut allocator, &mut api, at(0));
    assert_eq!(api.config("n1").status.containers[0].subnet, "a-gpu");
    assert_eq!(api.config("n2").status.containers[0].subnet, "pods");
    let notices = plan(&mut allocator, &api, at(0)).notices;
    assert_eq!(notices, [Notice::NoPool("n3".into())]);
}

#[test]
fn a_disabled_pool_assigns_nothing_and_still_accepts_releases() {
    let mut api = Api::new([pool("10.0.0.0/24")]);
    api.add_node("n1", &[], &[]);
    let mut allocator = Allocator::default();
    settle(&mut allocator, &mut api, at(0));
    api.view.pools.get_mut(&"pods".into()).unwrap().disabled = true;
    api.edit("n1", |spec| spec.requested = 64);
    settle(&mut allocator, &mut api, at(0));
    assert_eq!(count(&api, "n1"), 16);
    offer_all(&mut api, "n1");
    settle(&mut allocator, &mut api, at(0));
    assert_eq!(count(&api, "n1"), 0);
    let blocks: Vec<&Block> = api
        .view
        .shards
        .values()
        .flat_map(|s| s.blocks.values())
        .collect();
    let [Block::Whole(claim)] = blocks.as_slice() else {
        panic!("{blocks:?}");
    };
    assert!(matches!(claim.state, ClaimState::Cooldown(_)));
}

#[test]
fn a_node_is_served_from_its_own_pod_cidrs() {
    let mut api = Api::new([IpPool::new("own", PoolSource::NodeCidrs)]);
    api.add_node("n1", &[], &["10.244.1.0/24", "fd00:1::/64"]);
    api.add_node("n2", &[], &[]);
    let mut allocator = Allocator::default();
    settle(&mut allocator, &mut api, at(0));
    let ips = |api: &Api| {
        let entries = api.config("n1").status.entries();
        entries
            .map(|(_, entry)| entry.ip.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(ips(&api), ["10.244.1.16/28", "fd00:1::10/124"]);
    assert_eq!(count(&api, "n2"), 0);
    assert!(api.view.shards.is_empty(), "no other node could have them");
    let names: Vec<_> = api
        .config("n1")
        .status
        .entries()
        .map(|(_, entry)| entry.name.clone())
        .collect();
    offer_all(&mut api, "n1");
    api.edit("n1", |spec| spec.requested = 250);
    settle(&mut allocator, &mut api, at(0));
    let v4 = ips(&api).iter().filter(|ip| !ip.contains(':')).count();
    assert_eq!(
        v4,
        13 + 29 + 1,
        "blocks, single addresses, and the block that was offered"
    );
    for (_, entry) in api.config("n1").status.entries() {
        assert!(
            !names.contains(&entry.name),
            "{} was used before",
            entry.name
        );
        let net = entry.net().unwrap();
        for reserved in ["10.244.1.0/32", "10.244.1.1/32", "10.244.1.255/32"] {
            assert!(!net.contains(&reserved.parse::<IpNet>().unwrap()), "{net}");
        }
    }
}

fn cluster_cidrs() -> Vec<ClusterCidr> {
    vec![
        ClusterCidr {
            range: "10.244.0.0/22".parse().unwrap(),
            node_prefix: 24,
        },
        ClusterCidr {
            range: "fd00:10::/56".parse().unwrap(),
            node_prefix: 64,
        },
    ]
}

fn plan_cidrs(allocator: &mut Allocator, api: &Api, now: Moment) -> Plan {
    let wall = WALL.after(now.since_start());
    let name = "node-cidrs".into();
    allocator.plan_node_cidrs(&api.view, &name, &cluster_cidrs(), now, wall)
}

fn settle_cidrs(allocator: &mut Allocator, api: &mut Api, now: Moment) -> Plan {
    for _ in 0..10 {
        let plan = plan_cidrs(allocator, api, now);
        if plan.is_empty() {
            return plan;
        }
        for write in &plan.writes {
            api.write(write).unwrap();
        }
    }
    panic!("never settles");
}

#[test]
fn nodes_get_distinct_pod_cidrs_of_both_families() {
    let mut api = Api::new([]);
    api.add_node("old", &[], &["10.244.1.0/24", "fd00:10:0:1::/64"]);
    for index in 0..4 {
        api.add_node(&format!("n{index}"), &[], &[]);
    }
    let plan = settle_cidrs(&mut Allocator::default(), &mut api, at(0));
    let cidrs = |name: &str| {
        let cidrs = &api.view.nodes[&name.into()].pod_cidrs;
        cidrs
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(cidrs("n0"), "10.244.0.0/24 fd00:10::/64");
    assert_eq!(cidrs("n1"), "10.244.2.0/24 fd00:10:0:2::/64");
    assert_eq!(cidrs("n2"), "10.244.3.0/24 fd00:10:0:3::/64");
    assert_eq!(cidrs("n3"), "");
    assert_eq!(plan.notices, [Notice::NoCidr("n3".into())]);
}

#[test]
fn no_node_gets_a_part_of_a_larger_or_smaller_pod_cidr() {
    let mut api = Api::new([]);
    let mut allocator = Allocator::default();
    api.add_node("large", &[], &["10.244.0.0/23", "fd00:10::/62"]);
    api.add_node("small", &[], &["10.244.2.128/25"]);
    api.add_node("smaller", &[], &["10.244.2.0/26"]);
    api.add_node("n1", &[], &[]);
    api.add_node("n2", &[], &[]);
    let plan = settle_cidrs(&mut allocator, &mut api, at(0));
    assert_eq!(plan.notices, [Notice::NoCidr("n2".into())]);
    let cidrs = &api.view.nodes[&"n1".into()].pod_cidrs;
    assert_eq!(cidrs[0].to_string(), "10.244.3.0/24");
    assert_eq!(cidrs[1].to_string(), "fd00:10:0:4::/64");
    // A part that two nodes have is free when both are gone.
    api.remove_node("small");
    for seconds in [1, 302, 340, 1000] {
        let plan = settle_cidrs(&mut allocator, &mut api, at(seconds));
        assert_eq!(plan.notices.len(), 1, "{seconds}");
    }
    api.remove_node("smaller");
    for seconds in [1001, 1302, 1340] {
        settle_cidrs(&mut allocator, &mut api, at(seconds));
    }
    let cidrs = &api.view.nodes[&"n2".into()].pod_cidrs;
    assert_eq!(cidrs[0].to_string(), "10.244.2.0/24");
}

#[test]
fn the_pod_cidrs_of_a_node_that_is_gone_are_reused_after_grace_period_and_cooldown() {
    let mut api = Api::new([]);
    let mut allocator = Allocator::default();
    for index in 0..5 {
        api.add_node(&format!("n{index}"), &[], &[]);
    }
    settle_cidrs(&mut allocator, &mut api, at(0));
    api.remove_node("n0");
    for seconds in [1, 40, 300, 301, 330] {
        let plan = settle_cidrs(&mut allocator, &mut api, at(seconds));
        assert_eq!(plan.notices, [Notice::NoCidr("n4".into())], "{seconds}");
    }
    settle_cidrs(&mut allocator, &mut api, at(332));
    assert_eq!(
        api.view.nodes[&"n4".into()].pod_cidrs[0].to_string(),
        "10.244.0.0/24"
    );
}

#[test]
fn a_pod_cidr_is_not_free_before_the_last_config_with_addresses_of_it_is_gone() {
    let mut api = Api::new([IpPool::new("own", PoolSource::NodeCidrs)]);
    let (mut addresses, mut cidrs) = (Allocator::default(), Allocator::default());
    for index in 0..4 {
        api.add_node(&format!("n{index}"), &[], &[]);
    }
    settle_cidrs(&mut cidrs, &mut api, at(0));
    settle(&mut addresses, &mut api, at(0));
    assert_eq!(count(&api, "n0"), 16, "of each of two families");
    api.remove_node("n0");
    api.add_node("n4", &[], &[]);
    // The writer that empties the config is late.
    for seconds in [1, 302, 2000] {
        settle_cidrs(&mut cidrs, &mut api, at(seconds));
        assert!(api.view.nodes[&"n4".into()].pod_cidrs.is_empty());
    }
    settle(&mut addresses, &mut api, at(2000));
    settle(&mut addresses, &mut api, at(2300));
    assert!(!api.view.configs.contains_key(&"n0".into()));
    settle_cidrs(&mut cidrs, &mut api, at(2301));
    settle_cidrs(&mut cidrs, &mut api, at(2332));
    assert!(!api.view.nodes[&"n4".into()].pod_cidrs.is_empty());
}
