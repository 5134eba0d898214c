//! Fair sharing of scarce addresses between nodes.

use crate::NodeName;

/// The addresses a node lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) node: NodeName,
    /// For existing pods.
    pub(super) pods: u64,
    /// For future pods.
    pub(super) buffer: u64,
}

/// Max-min fair share of the free addresses: pods before any buffer, and an equal share for every
/// node that lacks some, so that small needs are met before large ones. The indivisible remainder
/// rotates: it goes to nodes from `turn` on, which moves with every claim. The result is in the
/// order of the needs.
pub(super) fn share(needs: &[Need], free: u64, turn: u64) -> Vec<u64> {
    let mut left = free;
    let mut shares = vec![0; needs.len()];
    let parts: [fn(&Need) -> u64; 2] = [|need| need.pods, |need| need.buffer];
    for part in parts {
        let lacking: Vec<u64> = needs.iter().map(part).collect();
        let (level, mut rest) = level(&lacking, left);
        for (share, lacks) in shares.iter_mut().zip(&lacking) {
            *share += level.min(*lacks);
            left -= level.min(*lacks);
        }
        let mut waiting: Vec<usize> = (0..needs.len())
            .filter(|index| lacking[*index] > level)
            .collect();
        if !waiting.is_empty() {
            let first = turn % waiting.len() as u64;
            waiting.rotate_left(usize::try_from(first).unwrap_or_default());
        }
        for index in waiting {
            let given = rest.min(1);
            shares[index] += given;
            rest -= given;
            left -= given;
        }
    }
    shares
}

/// The equal share of every node that lacks at least that much, and the remainder, which is smaller
/// than the number of nodes that lack more.
fn level(lacking: &[u64], free: u64) -> (u64, u64) {
    let mut sorted = lacking.to_vec();
    sorted.sort_unstable();
    let (mut level, mut left) = (0, free);
    for (met, lacks) in sorted.iter().enumerate() {
        let waiting = (sorted.len() - met) as u64;
        let step = (lacks - level).min(left / waiting);
        level += step;
        left -= step * waiting;
        if level < *lacks {
            break;
        }
    }
    (level, left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(node: &str, pods: u64, buffer: u64) -> Need {
        Need {
            node: node.into(),
            pods,
            buffer,
        }
    }

    #[test]
    fn all_needs_are_met_if_there_is_enough() {
        assert_eq!(share(&[need("a", 5, 3), need("b", 0, 8)], 16, 7), [8, 8]);
    }

    #[test]
    fn pods_come_before_buffers_and_small_needs_before_large_ones() {
        let needs = [need("a", 10, 5), need("b", 2, 5), need("c", 0, 5)];
        assert_eq!(share(&needs, 12, 0), [10, 2, 0]);
        assert_eq!(share(&needs, 14, 0), [11, 3, 0]);
        assert_eq!(share(&needs, 15, 0), [11, 3, 1]);
        assert_eq!(share(&needs, 9, 0), [7, 2, 0]);
        assert_eq!(share(&needs, 0, 0), [0, 0, 0]);
        assert_eq!(share(&[], 5, 3), [0; 0]);
    }

    #[test]
    fn the_remainder_rotates() {
        let needs = [need("a", 9, 0), need("b", 9, 0), need("c", 1, 0)];
        assert_eq!(share(&needs, 6, 0), [3, 2, 1]);
        assert_eq!(share(&needs, 6, 1), [2, 3, 1]);
        assert_eq!(share(&needs, 6, 2), [3, 2, 1]);
        assert_eq!(share(&needs, 1, 2), [0, 0, 1]);
        assert_eq!(share(&needs, 2, 4), [0, 1, 1]);
        assert_eq!(share(&needs, u64::MAX, u64::MAX), [9, 9, 1]);
    }
}
