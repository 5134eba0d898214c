//! Who gets how much when there is too little.

use crate::NodeName;

/// What a node lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) node: NodeName,
    /// For pods that are there.
    pub(super) pods: u64,
    /// For pods to come.
    pub(super) buffer: u64,
}

/// Shares what is free: pods before any buffer, small needs before large ones. The result is in
/// the order of the needs.
pub(super) fn share(needs: &[Need], free: u64) -> Vec<u64> {
    let mut left = free;
    let mut shares = vec![0; needs.len()];
    let parts: [fn(&Need) -> u64; 2] = [|need| need.pods, |need| need.buffer];
    for part in parts {
        let mut order: Vec<usize> = (0..needs.len()).collect();
        order.sort_by_key(|index| (part(&needs[*index]), needs[*index].node.clone()));
        for index in order {
            let given = part(&needs[index]).min(left);
            shares[index] += given;
            left -= given;
        }
    }
    shares
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
    fn everybody_gets_everything_if_there_is_enough() {
        assert_eq!(share(&[need("a", 5, 3), need("b", 0, 8)], 16), [8, 8]);
    }

    #[test]
    fn pods_come_before_buffers_and_small_needs_before_large_ones() {
        let needs = [need("a", 10, 5), need("b", 2, 5), need("c", 0, 5)];
        assert_eq!(share(&needs, 12), [10, 2, 0]);
        assert_eq!(share(&needs, 14), [12, 2, 0]);
        assert_eq!(share(&needs, 9), [7, 2, 0]);
        assert_eq!(share(&needs, 0), [0, 0, 0]);
    }
}
