//! Partial syncs lead to the same rules as a fresh start: the check that KEP-3453 gave up on.

use weft_model::IpFamily;
use weft_ruleset::{ComparisonOptions, compare};
use weft_testkit::cluster::RandomCluster;

use crate::world::{OPTIONS, World};

fn assert_same(world: &mut World, seed: u64, round: usize) {
    let (fresh, ours) = (world.fresh(), world.rules());
    let differences = compare(&fresh, &ours, ComparisonOptions::default());
    let words: Vec<String> = differences.iter().map(ToString::to_string).collect();
    assert!(
        words.is_empty(),
        "seed {seed}, round {round}, {}:\n{}\nlast input:\n{}",
        world.settings.family,
        words.join("\n"),
        world.backend.kernel().inputs.last().unwrap()
    );
}

#[test]
fn every_partial_sync_leaves_what_a_fresh_start_would() {
    for seed in 0..16 {
        for family in IpFamily::ALL {
            let mut cluster = RandomCluster::new(seed);
            let mut world = World::new(family, OPTIONS);
            for (_, object) in cluster.objects() {
                let object = weft_proxy::objects::Object::decode(object)
                    .unwrap()
                    .unwrap();
                world.model.set(&object);
            }
            world.sync();
            for round in 0..50 {
                for edit in cluster.edit() {
                    world.edit(&edit);
                }
                let report = world.sync();
                assert!(!report.full, "seed {seed}, round {round}");
                assert!(report.partial_failure.is_none(), "seed {seed}: {report:?}");
                assert_same(&mut world, seed, round);
            }
        }
    }
}
