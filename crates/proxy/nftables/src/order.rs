//! The order in which the endpoints of a list are numbered.

use std::{collections::HashSet, net::SocketAddr};

/// Numbers endpoints so that as few as possible get another number than before: those that stay keep
/// theirs, new ones take the numbers of those that go, and of what is missing then the last moves.
pub(crate) fn order(previous: &[SocketAddr], desired: &[SocketAddr]) -> Vec<SocketAddr> {
    let wanted: HashSet<&SocketAddr> = desired.iter().collect();
    let mut kept: HashSet<SocketAddr> = HashSet::with_capacity(previous.len());
    let mut places: Vec<Option<SocketAddr>> = previous
        .iter()
        .map(|endpoint| (wanted.contains(endpoint) && kept.insert(*endpoint)).then_some(*endpoint))
        .collect();
    let mut fresh = desired.iter().filter(|endpoint| !kept.contains(*endpoint));
    for place in &mut places {
        if place.is_none() {
            *place = fresh.next().copied();
        }
    }
    places.extend(fresh.map(|endpoint| Some(*endpoint)));
    let mut hole = 0;
    while let Some(last) = places.pop() {
        let Some(last) = last else {
            continue;
        };
        while places.get(hole).is_some_and(Option::is_some) {
            hole += 1;
        }
        if hole >= places.len() {
            places.push(Some(last));
            break;
        }
        places[hole] = Some(last);
    }
    places.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(numbers: &[u16]) -> Vec<SocketAddr> {
        let address = |port: &u16| SocketAddr::from(([10, 0, 0, 1], *port));
        numbers.iter().map(address).collect()
    }

    fn ports(ordered: &[SocketAddr]) -> Vec<u16> {
        ordered.iter().map(SocketAddr::port).collect()
    }

    #[test]
    fn one_that_goes_is_replaced_by_the_last_and_a_new_one_takes_a_hole() {
        let before = endpoints(&[1, 2, 3, 4, 5]);
        let order = |desired: &[u16]| ports(&order(&before, &endpoints(desired)));
        assert_eq!(order(&[1, 2, 3, 4, 5]), [1, 2, 3, 4, 5]);
        assert_eq!(order(&[1, 3, 4, 5]), [1, 5, 3, 4]);
        assert_eq!(order(&[1, 2, 3, 4]), [1, 2, 3, 4]);
        assert_eq!(order(&[0, 1, 3, 4, 5]), [1, 0, 3, 4, 5]);
        assert_eq!(order(&[0, 1, 2, 3, 4, 5]), [1, 2, 3, 4, 5, 0]);
        assert_eq!(order(&[3]), [3]);
        assert_eq!(order(&[]), [0; 0]);
        assert_eq!(order(&[8, 9]), [8, 9]);
    }

    #[test]
    fn it_is_the_same_set_and_moves_no_more_than_it_must() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            let mut some = |most: u16| {
                let mut all: Vec<u16> = (0..12).collect();
                random.shuffle(&mut all);
                all.truncate(usize::from(random.u16(0..=most)));
                endpoints(&all)
            };
            let (before, desired) = (some(12), some(12));
            let ordered = order(&before, &desired);
            let set = |list: &[SocketAddr]| list.iter().copied().collect::<HashSet<_>>();
            assert_eq!(set(&ordered), set(&desired));
            assert_eq!(ordered.len(), desired.len());
            let stay = before.iter().filter(|e| desired.contains(*e)).count();
            let same = before.iter().zip(&ordered).filter(|(a, b)| a == b).count();
            // Only those beyond the new end move.
            let beyond = before.iter().skip(desired.len());
            let beyond = beyond.filter(|e| desired.contains(*e)).count();
            assert_eq!(same, stay - beyond, "{before:?} {desired:?} {ordered:?}");
        }
    }

    #[test]
    fn an_endpoint_that_was_there_twice_keeps_one_number() {
        let before = endpoints(&[1, 1, 2]);
        assert_eq!(ports(&order(&before, &endpoints(&[1, 2]))), [1, 2]);
    }
}
