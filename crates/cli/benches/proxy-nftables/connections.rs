//! New connections through random Services, by two proxies in turns.

use std::time::Duration;

use weft_testkit::lab::Namespace;

use crate::{objects::front, ping::connection_time, statistics::milliseconds};

/// Connections before it is the other's turn.
const BLOCK: usize = 20;

/// Times of connections in milliseconds, one list for each namespace.
pub(crate) fn measure(namespaces: &[&Namespace], count: usize, size: usize) -> Vec<Vec<f64>> {
    let mut random = fastrand::Rng::with_seed(u64::try_from(size).unwrap());
    let mut times = vec![Vec::new(); namespaces.len()];
    // The first ones of each fill caches and are not counted.
    for block in 0..=count.div_ceil(BLOCK) {
        let services: Vec<usize> = (0..BLOCK).map(|_| random.usize(0..size)).collect();
        let mut turns: Vec<usize> = (0..namespaces.len()).collect();
        if block % 2 == 1 {
            turns.reverse();
        }
        for turn in turns {
            let connect = || {
                let all = services.iter().map(|index| connection_time(front(*index)));
                all.collect::<Option<Vec<Duration>>>()
            };
            let took = namespaces[turn].run(connect).unwrap();
            if block > 0 {
                times[turn].extend(took.into_iter().map(milliseconds));
            }
        }
    }
    times
}
