//! Tables of the scaling equation and of the reactive rule.

use proptest::prelude::*;
use weft_ipam::scaling::{
    Scaler, ScalerFlaw, ScalerParameters,
    reactive::{Change, Counts, Thresholds, decide},
};

fn parameters(batch: i64, percent: i64, maximum: i64) -> ScalerParameters {
    ScalerParameters {
        batch_size: Some(batch),
        request_threshold_percent: Some(percent),
        release_threshold_percent: None,
        max_ip_count: Some(maximum),
    }
}

fn scaler(batch: i64, percent: i64, maximum: i64) -> Scaler {
    Scaler::read(Some(&parameters(batch, percent, maximum))).0
}

#[test]
fn the_request_is_that_of_the_worked_table() {
    let rows: [(u32, i64, i64, i64, u32); 27] = [
        (0, 16, 50, 250, 16),
        (1, 16, 50, 250, 16),
        (8, 16, 50, 250, 16),
        (9, 16, 50, 250, 32),
        (16, 16, 50, 250, 32),
        (24, 16, 50, 250, 32),
        (25, 16, 50, 250, 48),
        (36, 16, 50, 250, 48),
        (40, 16, 50, 250, 48),
        (41, 16, 50, 250, 64),
        (75, 16, 50, 250, 96),
        (110, 16, 50, 250, 128),
        (232, 16, 50, 250, 240),
        (233, 16, 50, 250, 250),
        (250, 16, 50, 250, 250),
        (300, 16, 50, 250, 250),
        (0, 16, 0, 250, 0),
        (16, 16, 0, 250, 16),
        (17, 16, 0, 250, 32),
        (10, 1, 50, 250, 11),
        (36, 1, 100, 250, 37),
        (0, 1, 100, 250, 1),
        (36, 16, 100, 250, 64),
        (7, 10, 30, 250, 10),
        (36, 10, 30, 30, 30),
        (20, 16, 50, 30, 30),
        (36, 256, 50, 250, 250),
    ];
    for (index, (demand, batch, percent, maximum, expected)) in rows.into_iter().enumerate() {
        let target = scaler(batch, percent, maximum).target(demand);
        assert_eq!(target, expected, "row {}", index + 1);
    }
}

#[test]
fn the_request_is_that_of_upstreams_table_too() {
    for (demand, batch, percent, maximum, expected) in [
        (0, 16, 50, 250, 16),
        (8, 16, 50, 250, 16),
        (16, 16, 50, 250, 32),
        (32, 16, 50, 250, 48),
        (48, 16, 50, 250, 64),
        (10, 1, 50, 250, 11),
        (10, 16, 0, 250, 16),
        (13, 1, 0, 250, 13),
        (0, 16, 50, 100, 16),
        (500, 16, 50, 250, 250),
    ] {
        assert_eq!(scaler(batch, percent, maximum).target(demand), expected);
    }
}

#[test]
fn the_integer_form_equals_the_equation_with_fractions() {
    for batch in 1..=64_u32 {
        for percent in (0..=100_u32).step_by(5) {
            let scaler = scaler(batch.into(), percent.into(), 4096);
            for demand in 0..=256_u32 {
                let share = f64::from(percent) / 100.0 + f64::from(demand) / f64::from(batch);
                // Fractions that ought to be whole miss by an ulp or two.
                let batches = (share - 1e-9).ceil().max(0.0);
                let expected = f64::from(batch) * batches;
                let target = f64::from(scaler.target(demand));
                assert!(
                    (target - expected).abs() < 0.5,
                    "{batch} {percent} {demand}: {target} instead of {expected}"
                );
            }
        }
    }
}

#[test]
fn invalid_parameters_are_replaced_and_reported() {
    let rows = [
        // A maximum of zero made upstream release everything.
        (parameters(16, 50, 0), 16, vec![ScalerFlaw::Maximum(0)]),
        (parameters(16, 50, -3), 16, vec![ScalerFlaw::Maximum(-3)]),
        (parameters(0, 50, 250), 16, vec![ScalerFlaw::Batch(0)]),
        (parameters(-1, 50, 250), 16, vec![ScalerFlaw::Batch(-1)]),
        (parameters(16, -50, 250), 16, vec![ScalerFlaw::Percent(-50)]),
        (
            parameters(16, 500, 250),
            80,
            vec![ScalerFlaw::PercentTooLarge(500)],
        ),
        (
            parameters(16, 50, i64::MAX),
            16,
            vec![ScalerFlaw::MaximumTooLarge(i64::MAX)],
        ),
        (parameters(i64::MAX, 50, 100), 100, vec![]),
        (
            ScalerParameters::default(),
            16,
            vec![ScalerFlaw::Maximum(0), ScalerFlaw::Batch(0)],
        ),
    ];
    for (written, expected, flaws) in rows {
        let (scaler, found) = Scaler::read(Some(&written));
        assert_eq!(scaler.target(5), expected, "{written:?}");
        assert_eq!(found, flaws, "{written:?}");
    }
    assert_eq!(Scaler::read(None), (Scaler::default(), vec![]));
    assert_eq!(Scaler::default().target(5), 16);
}

#[test]
fn an_exhausted_subnet_leaves_one_address_free() {
    let scaler = scaler(16, 50, 250).exhausted();
    assert_eq!(
        [0, 36, 249, 300].map(|demand| scaler.target(demand)),
        [1, 37, 250, 250]
    );
}

proptest! {
    #[test]
    fn the_request_covers_demand_and_buffer_and_no_batch_more(
        demand in 0..5000_u32, batch in 1..300_i64, percent in 0..=400_i64, maximum in 1..=4096_i64,
    ) {
        let scaler = scaler(batch, percent, maximum);
        let target = scaler.target(demand);
        prop_assert!(target >= demand.min(scaler.maximum()));
        prop_assert!(target <= scaler.target(demand + 1), "not monotone");
        if target < scaler.maximum() {
            let (free, batch) = (u64::from(target - demand) * 100, u64::from(scaler.batch()));
            let least = batch * u64::try_from(percent).unwrap();
            prop_assert!(free >= least && free < least + 100 * batch);
        }
    }
}

#[test]
fn thresholds_round_half_up() {
    let thresholds = |batch, request, release| {
        let thresholds = Thresholds::read(Some(&ScalerParameters {
            release_threshold_percent: Some(release),
            ..parameters(batch, request, 250)
        }));
        (thresholds.minimum_free(), thresholds.maximum_free())
    };
    assert_eq!(thresholds(16, 50, 150), (8, 24));
    assert_eq!(thresholds(16, 100, 200), (16, 32));
    assert_eq!(thresholds(3, 50, 150), (2, 5));
    assert_eq!(thresholds(1, 50, 150), (1, 2));
    // A release threshold below the request threshold plus a batch would oscillate.
    assert_eq!(thresholds(10, 30, 100), (3, 13));
    assert_eq!(thresholds(10, -5, -5), (0, 10));
}

/// A node under the reactive rule, and a controller that carries out the spec on demand.
struct Reactive {
    thresholds: Thresholds,
    counts: Counts,
}

impl Reactive {
    fn new(batch: i64, (request, release): (i64, i64), maximum: i64, held: u32) -> Self {
        let thresholds = Thresholds::read(Some(&ScalerParameters {
            release_threshold_percent: Some(release),
            ..parameters(batch, request, maximum)
        }));
        let counts = Counts {
            held,
            requested: held,
            ..Counts::default()
        };
        Self { thresholds, counts }
    }

    fn exhausted(mut self) -> Self {
        self.thresholds = self.thresholds.exhausted();
        self
    }

    fn evaluate(&mut self, assigned: u32) -> (u32, u32) {
        self.counts.assigned = assigned;
        match decide(self.counts, self.thresholds) {
            Change::Nothing => {}
            Change::Grow(requested) => self.write(requested),
            Change::Shrink(count) => {
                self.counts.releasing += count;
                self.write(self.counts.requested - count);
            }
            Change::Clean => self.write(self.counts.requested),
        }
        (self.counts.requested, self.counts.listed)
    }

    fn write(&mut self, requested: u32) {
        self.counts.requested = requested;
        self.counts.listed = self.counts.releasing;
    }

    fn controller(&mut self) {
        self.counts.held -= self.counts.releasing;
        self.counts.releasing = 0;
        self.counts.held = self.counts.held.max(self.counts.requested);
    }
}

const USUAL: (i64, i64) = (50, 150);

#[test]
fn the_reactive_rule_grows_as_in_upstreams_table() {
    let mut typical = Reactive::new(10, USUAL, 30, 10);
    assert_eq!(typical.evaluate(8), (20, 0));
    typical.controller();
    assert_eq!(typical.evaluate(8), (20, 0));
    assert_eq!(Reactive::new(3, USUAL, 30, 10).evaluate(10), (12, 0));
    assert_eq!(
        Reactive::new(10, USUAL, 30, 10).exhausted().evaluate(8),
        (9, 1)
    );
    let mut in_progress = Reactive::new(10, (30, 150), 30, 10);
    assert_eq!(in_progress.evaluate(8), (20, 0));
    assert_eq!(in_progress.evaluate(9), (20, 0));
    assert_eq!(Reactive::new(16, USUAL, 30, 16).evaluate(9), (30, 0));
    assert_eq!(Reactive::new(50, USUAL, 30, 16).evaluate(16), (30, 0));
    let mut with_pending = Reactive::new(16, USUAL, 250, 32);
    (with_pending.counts.requested, with_pending.counts.releasing) = (16, 16);
    assert_eq!(with_pending.evaluate(16), (32, 16));
    with_pending.controller();
    assert_eq!(with_pending.evaluate(16), (32, 0));
}

#[test]
fn the_reactive_rule_shrinks_as_in_upstreams_table() {
    assert_eq!(Reactive::new(10, USUAL, 30, 20).evaluate(5), (10, 10));
    assert_eq!(Reactive::new(3, USUAL, 30, 21).evaluate(15), (18, 3));
    let mut exhausted = Reactive::new(10, USUAL, 30, 20).exhausted();
    for _ in 0..6 {
        exhausted.evaluate(15);
    }
    assert_eq!(exhausted.evaluate(15), (16, 4));
    let mut twice = Reactive::new(10, (30, 100), 30, 20);
    assert_eq!(twice.evaluate(5), (10, 10));
    assert_eq!(twice.evaluate(6), (10, 10));
    twice.controller();
    assert_eq!(twice.evaluate(6), (10, 0));
    let mut low = Reactive::new(10, (30, 100), 30, 30);
    assert_eq!(low.evaluate(23), (30, 0));
    assert_eq!(low.evaluate(3), (20, 10));
    assert_eq!(low.evaluate(3), (10, 20));
    low.controller();
    assert_eq!(low.evaluate(3), (10, 0));
    assert_eq!(Reactive::new(16, USUAL, 30, 30).evaluate(5), (16, 14));
    assert_eq!(Reactive::new(31, USUAL, 30, 30).evaluate(1), (30, 0));
    let mut pending = Reactive::new(16, USUAL, 250, 64);
    (pending.counts.requested, pending.counts.releasing) = (48, 8);
    assert_eq!(pending.evaluate(46), (64, 8));
    assert_eq!(pending.evaluate(40), (64, 8));
    assert_eq!(pending.evaluate(30), (48, 24));
}

#[test]
fn the_reactive_rule_asks_for_new_addresses_while_old_ones_are_still_pending() {
    let mut node = Reactive::new(10, USUAL, 30, 10);
    assert_eq!(node.evaluate(7), (20, 0));
    node.controller();
    assert_eq!(node.evaluate(0), (10, 10));
    assert_eq!(node.evaluate(7), (20, 10));
    assert_eq!(node.evaluate(7), (20, 10));
    node.controller();
    assert_eq!(node.evaluate(7), (20, 0));
}
