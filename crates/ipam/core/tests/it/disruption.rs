//! The allocator when objects are lost, restored, moved or deleted by hand.

use std::{collections::BTreeSet, time::Duration};

use ipnet::IpNet;
use weft_ipam::{
    Entry, NodeStatus,
    allocator::{Allocator, ClaimState, IpPool, PoolSource, Write},
};
use weft_model::LabelSelector;

use crate::{
    allocator::{WALL, count, offer_all, plan, pool, settle, settle_at},
    cluster::Api,
    fixtures::at,
};

/// Networks that a node publishes.
fn nets(api: &Api, node: &str) -> BTreeSet<IpNet> {
    let entries = api.config(node).status.entries();
    entries.map(|(_, entry)| entry.net().unwrap()).collect()
}

/// Networks claimed for the current config of a node, in blocks of 16.
fn held(api: &Api, node: &str) -> BTreeSet<IpNet> {
    let shards = api.view.shards.values();
    let claims = shards.flat_map(|shard| shard.claims(28));
    claims
        .filter(|(_, claim)| {
            claim.state == ClaimState::Held && claim.holder.config == api.config(node).uid
        })
        .map(|(net, _)| net)
        .collect()
}

/// Asserts that no two configs publish the same addresses.
fn check_apart(api: &Api) {
    let configs: Vec<_> = api.view.configs.values().collect();
    for (index, one) in configs.iter().enumerate() {
        for other in &configs[..index] {
            for net in nets(api, one.name.as_str()) {
                for theirs in nets(api, other.name.as_str()) {
                    let apart = !net.contains(&theirs) && !theirs.contains(&net);
                    assert!(apart, "{net} of {} is {}'s", one.name, other.name);
                }
            }
        }
    }
}

fn served(ranges: &str, nodes: &[&str]) -> (Api, Allocator) {
    let mut api = Api::new([pool(ranges)]);
    for name in nodes {
        api.add_node(name, &[], &[]);
    }
    let mut allocator = Allocator::default();
    settle(&mut allocator, &mut api, at(0));
    (api, allocator)
}

#[test]
fn a_config_made_again_for_the_same_node_gets_what_the_node_had() {
    let (mut api, mut allocator) = served("10.0.0.0/26", &["n1", "n2"]);
    api.edit("n1", |spec| spec.requested = 32);
    settle(&mut allocator, &mut api, at(0));
    let (before, old) = (nets(&api, "n1"), api.config("n1").clone());
    api.view.configs.remove(&"n1".into());
    settle(&mut allocator, &mut api, at(1));
    let now = api.config("n1");
    assert_ne!(now.uid, old.uid);
    assert_eq!(nets(&api, "n1"), before);
    assert_eq!(held(&api, "n1"), before);
    let names = |status: &NodeStatus| -> BTreeSet<_> {
        let entries = status.entries().map(|(_, entry)| entry.name.clone());
        entries.collect()
    };
    assert!(
        names(&now.status).is_disjoint(&names(&old.status)),
        "offers of the old one must not apply to the new one"
    );
    // No other node gets any of it, however long it waits.
    api.edit("n2", |spec| spec.requested = 64);
    let later = WALL.after(Duration::from_secs(3600));
    settle_at(&mut allocator, &mut api, at(3600), later);
    check_apart(&api);
    // It is released like any other.
    offer_all(&mut api, "n1");
    api.edit("n1", |spec| spec.requested = 0);
    settle_at(&mut allocator, &mut api, at(3600), later);
    assert!(held(&api, "n1").is_empty());
}

#[test]
fn claims_move_to_a_config_only_as_it_was_seen() {
    let (mut api, mut allocator) = served("10.0.0.0/26", &["n1"]);
    api.view.configs.remove(&"n1".into());
    let creating = plan(&mut allocator, &api, at(1));
    api.write(&creating.writes[0]).unwrap();
    let moving = plan(&mut allocator, &api, at(1));
    api.edit("n1", |spec| spec.requested = 3);
    assert!(api.write(&moving.writes[0]).is_err(), "{moving}");
}

#[test]
fn moved_claims_are_published_only_after_the_move_is_written() {
    let (mut api, mut allocator) = served("10.0.0.0/26", &["n1", "n2"]);
    api.view.configs.remove(&"n1".into());
    let creating = plan(&mut allocator, &api, at(1));
    api.write(&creating.writes[0]).unwrap();
    let moving = plan(&mut allocator, &api, at(1));
    let text = moving.to_string();
    assert!(text.contains(">10.0.0.0/28=n1"), "{text}");
    let publishes =
        |write: &Write| matches!(write, Write::Status { name, .. } if *name == "n1".into());
    assert!(!moving.writes.iter().any(publishes), "{text}");
    api.write(&moving.writes[0]).unwrap();
    let publishing = plan(&mut allocator, &api, at(1));
    assert!(publishing.writes.iter().any(publishes), "{publishing}");
}

#[test]
fn a_config_restored_without_its_owner_gets_its_node_as_owner_again() {
    let (mut api, mut allocator) = served("10.0.0.0/26", &["n1"]);
    let before = nets(&api, "n1");
    let owner = api.config("n1").owner.clone();
    let config = api.view.configs.get_mut(&"n1".into()).unwrap();
    config.owner = None;
    config.uid = "restored".into();
    settle(&mut allocator, &mut api, at(1));
    assert_eq!(api.config("n1").owner, owner);
    assert!(!api.config("n1").deleting);
    assert_eq!(
        (nets(&api, "n1"), held(&api, "n1")),
        (before.clone(), before)
    );
}

#[test]
fn a_config_without_a_node_waits_for_the_grace_period() {
    let (mut api, mut allocator) = served("10.0.0.0/26", &["n1"]);
    api.view.configs.get_mut(&"n1".into()).unwrap().owner = None;
    api.view.nodes.clear();
    settle(&mut allocator, &mut api, at(1));
    assert!(!api.config("n1").deleting && count(&api, "n1") == 16);
    settle(&mut allocator, &mut api, at(302));
    assert!(api.view.configs.is_empty());
}

#[test]
fn addresses_that_removed_nodes_still_publish_are_adopted_when_claims_are_lost() {
    let (mut api, mut allocator) = served("10.0.0.0/26", &["gone", "going"]);
    api.remove_node("gone");
    api.view.configs.get_mut(&"going".into()).unwrap().deleting = true;
    api.remove_node("going");
    api.view.shards.clear();
    api.add_node("n3", &[], &[]);
    api.add_node("n4", &[], &[]);
    settle(&mut allocator, &mut api, at(1));
    check_apart(&api);
    assert_eq!(held(&api, "gone"), nets(&api, "gone"));
    assert_eq!(held(&api, "going"), nets(&api, "going"));
    // They become free once the nodes are gone.
    let later = WALL.after(Duration::from_secs(3600));
    settle(&mut allocator, &mut api, at(400));
    settle_at(&mut allocator, &mut api, at(3600), later);
    api.edit("n3", |spec| spec.requested = 48);
    settle_at(&mut allocator, &mut api, at(3600), later);
    assert_eq!((count(&api, "n3"), count(&api, "n4")), (48, 16));
}

#[test]
fn something_larger_than_a_block_is_claimed_in_all_its_blocks() {
    let (mut api, mut allocator) = served("10.0.0.0/25", &["n1"]);
    let config = api.view.configs.get_mut(&"n1".into()).unwrap();
    config.status.containers[0].entries = vec![Entry {
        name: "by-hand".into(),
        ip: "10.0.0.32/27".into(),
    }];
    api.view.shards.clear();
    api.add_node("n2", &[], &[]);
    api.edit("n1", |spec| spec.requested = 32);
    settle(&mut allocator, &mut api, at(1));
    api.edit("n2", |spec| spec.requested = 128);
    settle(&mut allocator, &mut api, at(1));
    assert_eq!((count(&api, "n1"), count(&api, "n2")), (32, 96));
    check_apart(&api);
    offer_all(&mut api, "n1");
    api.edit("n1", |spec| spec.requested = 0);
    settle(&mut allocator, &mut api, at(1));
    assert!(held(&api, "n1").is_empty());
}

#[test]
fn nodes_whose_own_cidrs_overlap_do_not_get_the_same_addresses() {
    let mut api = Api::new([IpPool::new("own", PoolSource::NodeCidrs)]);
    api.add_node("n1", &[], &["10.1.0.0/24"]);
    let mut allocator = Allocator::default();
    settle(&mut allocator, &mut api, at(0));
    assert_eq!(count(&api, "n1"), 16);
    api.add_node("n2", &[], &["10.1.0.0/24"]);
    api.add_node("n3", &[], &["10.1.0.0/25", "fd00:3::/64"]);
    for name in ["n1", "n2", "n3"] {
        settle(&mut allocator, &mut api, at(0));
        api.edit(name, |spec| spec.requested = 64);
    }
    settle(&mut allocator, &mut api, at(0));
    check_apart(&api);
    assert_eq!(count(&api, "n1"), 16, "it keeps its addresses");
    let text = plan(&mut allocator, &api, at(0)).to_string();
    for name in ["n1", "n2", "n3"] {
        assert!(text.contains(&format!("! node {name}: pod CIDR")), "{text}");
    }
}

#[test]
fn a_nodes_own_cidr_is_not_used_where_a_pool_has_ranges() {
    let mut shared = pool("10.1.0.0/24");
    shared.nodes = LabelSelector::parse("shared=yes").unwrap();
    let mut own = IpPool::new("own", PoolSource::NodeCidrs);
    own.nodes = LabelSelector::parse("shared!=yes,shared").unwrap();
    let mut api = Api::new([own]);
    let mut allocator = Allocator::default();
    api.add_node("n1", &[("shared", "no")], &["10.1.0.0/24"]);
    settle(&mut allocator, &mut api, at(0));
    api.view.pools.insert("pods".into(), shared);
    api.add_node("n2", &[("shared", "yes")], &[]);
    settle(&mut allocator, &mut api, at(0));
    for name in ["n1", "n2"] {
        api.edit(name, |spec| spec.requested = 128);
        settle(&mut allocator, &mut api, at(0));
    }
    check_apart(&api);
    assert_eq!((count(&api, "n1"), count(&api, "n2")), (16, 128));
    let text = plan(&mut allocator, &api, at(0)).to_string();
    assert!(
        text.contains("! node n1: pod CIDR 10.1.0.0/24 overlaps"),
        "{text}"
    );
}

#[test]
fn a_reassigned_cidr_is_used_except_for_what_its_former_node_still_publishes() {
    let mut api = Api::new([IpPool::new("own", PoolSource::NodeCidrs)]);
    let mut allocator = Allocator::default();
    api.add_node("n1", &[], &["10.1.0.0/24"]);
    settle(&mut allocator, &mut api, at(0));
    api.remove_node("n1");
    api.add_node("n2", &[], &["10.1.0.0/24"]);
    settle(&mut allocator, &mut api, at(1));
    assert_eq!(count(&api, "n2"), 16);
    check_apart(&api);
}

#[test]
fn a_config_deleted_by_hand_is_made_again_with_the_same_addresses() {
    let (mut api, mut allocator) = served("10.0.0.0/26", &["n1", "n2"]);
    let (before, old) = (nets(&api, "n1"), api.config("n1").uid.clone());
    api.view.configs.get_mut(&"n1".into()).unwrap().deleting = true;
    let first = plan(&mut allocator, &api, at(1)).to_string();
    assert!(
        first.contains("! nodenetworkconfig n1 was deleted"),
        "{first}"
    );
    settle(&mut allocator, &mut api, at(1));
    assert_ne!(api.config("n1").uid, old);
    assert_eq!(
        (nets(&api, "n1"), held(&api, "n1")),
        (before.clone(), before)
    );
}

#[test]
fn a_config_deleted_by_hand_goes_only_when_all_it_publishes_is_claimed() {
    let (mut api, mut allocator) = served("10.0.0.0/26", &["n1", "n2"]);
    let before = nets(&api, "n1");
    api.view.configs.get_mut(&"n1".into()).unwrap().deleting = true;
    api.view.shards.clear();
    api.edit("n2", |spec| spec.requested = 64);
    settle(&mut allocator, &mut api, at(1));
    assert_eq!(
        (nets(&api, "n1"), held(&api, "n1")),
        (before.clone(), before)
    );
    check_apart(&api);
}

/// Two pools; nodes with the label `new` are the first one's.
fn two_pools() -> (Api, Allocator) {
    let mut new = IpPool::new(
        "a-new",
        PoolSource::Ranges(vec!["10.9.0.0/24".parse().unwrap()]),
    );
    new.nodes = LabelSelector::parse("new=yes").unwrap();
    let mut api = Api::new([new, pool("10.0.0.0/26")]);
    api.add_node("n1", &[], &[]);
    let mut allocator = Allocator::default();
    settle(&mut allocator, &mut api, at(0));
    assert_eq!(api.config("n1").status.containers[0].subnet, "pods");
    (api, allocator)
}

fn relabel(api: &mut Api, node: &str) {
    let node = api.view.nodes.get_mut(&node.into()).unwrap();
    node.labels.insert("new".into(), "yes".into());
}

#[test]
fn what_a_node_gives_back_to_the_pool_it_had_before_is_free_again() {
    let (mut api, mut allocator) = two_pools();
    relabel(&mut api, "n1");
    settle(&mut allocator, &mut api, at(0));
    assert!(plan(&mut allocator, &api, at(0)).notices.is_empty());
    offer_all(&mut api, "n1");
    settle(&mut allocator, &mut api, at(0));
    assert_eq!(
        nets(&api, "n1"),
        BTreeSet::from(["10.9.0.0/28".parse().unwrap()])
    );
    assert_eq!(held(&api, "n1"), nets(&api, "n1"));
}

#[test]
fn what_was_claimed_before_a_node_changed_its_pool_is_published() {
    let (mut api, mut allocator) = two_pools();
    api.edit("n1", |spec| spec.requested = 32);
    let claiming = plan(&mut allocator, &api, at(0));
    api.write(&claiming.writes[0]).unwrap();
    relabel(&mut api, "n1");
    settle(&mut allocator, &mut api, at(0));
    let nets = nets(&api, "n1");
    assert!(nets.contains(&"10.0.0.16/28".parse().unwrap()), "{nets:?}");
    assert_eq!(held(&api, "n1"), nets);
}

#[test]
fn a_removed_node_is_released_although_its_pool_is_gone() {
    let (mut api, mut allocator) = served("10.0.0.0/26", &["n1"]);
    let pools = std::mem::take(&mut api.view.pools);
    api.remove_node("n1");
    settle(&mut allocator, &mut api, at(1));
    settle(&mut allocator, &mut api, at(400));
    assert!(api.view.configs.is_empty(), "{:?}", api.view.configs);
    // If the pool is restored, its addresses are, too.
    api.view.pools = pools;
    settle(&mut allocator, &mut api, at(401));
    api.add_node("n2", &[], &[]);
    let later = WALL.after(Duration::from_secs(3600));
    settle_at(&mut allocator, &mut api, at(402), later);
    api.edit("n2", |spec| spec.requested = 64);
    settle_at(&mut allocator, &mut api, at(402), later);
    assert_eq!(count(&api, "n2"), 64);
}

#[test]
fn a_pool_that_is_deleted_stays_until_nothing_is_claimed_of_it() {
    let (mut api, mut allocator) = served("10.0.0.0/26", &["n1"]);
    let pods = api.view.pools.get_mut(&"pods".into()).unwrap();
    (pods.deleting, pods.finalized) = (false, false);
    let text = settle(&mut allocator, &mut api, at(0)).concat();
    assert_eq!(text, "~ pool pods: finalizer\n");
    api.view.pools.get_mut(&"pods".into()).unwrap().deleting = true;
    api.add_node("n2", &[], &[]);
    settle(&mut allocator, &mut api, at(0));
    assert_eq!((count(&api, "n1"), count(&api, "n2")), (16, 0));
    let text = plan(&mut allocator, &api, at(0)).to_string();
    assert!(text.contains("! pool pods was deleted"), "{text}");
    offer_all(&mut api, "n1");
    settle(&mut allocator, &mut api, at(0));
    assert_eq!(
        api.view.pools.len(),
        1,
        "addresses in cooldown are not free yet"
    );
    let later = WALL.after(Duration::from_secs(60));
    settle_at(&mut allocator, &mut api, at(60), later);
    assert!(api.view.pools.is_empty());
}

#[test]
fn equal_needs_get_equal_shares_and_the_remainder_rotates() {
    let mut small = pool("10.0.0.0/27");
    small.reserved = vec!["10.0.0.0/28".parse().unwrap()];
    small.cooldown = Duration::ZERO;
    let mut api = Api::new([small]);
    let mut allocator = Allocator::default();
    let names = ["n1", "n2", "n3"];
    for name in names {
        api.add_node(name, &[], &[]);
    }
    settle(&mut allocator, &mut api, at(0));
    let mut counts = names.map(|name| count(&api, name));
    counts.sort_unstable();
    assert_eq!(counts, [5, 5, 6]);
    // One address becomes free again and again: the recipient is not chosen by name.
    let mut lucky = BTreeSet::new();
    for _ in 0..6 {
        let most = names
            .into_iter()
            .max_by_key(|name| count(&api, name))
            .unwrap();
        lucky.insert(most);
        let entry = api
            .config(most)
            .status
            .entries()
            .last()
            .unwrap()
            .1
            .name
            .clone();
        api.edit(most, |spec| {
            spec.not_in_use.insert(entry);
            spec.requested = 5;
        });
        settle(&mut allocator, &mut api, at(0));
        api.edit(most, |spec| spec.requested = 16);
        settle(&mut allocator, &mut api, at(0));
    }
    assert!(lucky.len() > 1, "{lucky:?}");
}
