//! Number of online processors.

use std::{fs, ops::RangeInclusive, thread};

/// Online processors, whether or not this process may use them: a resource of the whole machine,
/// such as the conntrack table, must not follow the limits of one container.
pub fn online() -> u64 {
    let text = fs::read_to_string("/sys/devices/system/cpu/online").ok();
    text.as_deref().and_then(count).unwrap_or_else(|| {
        let usable = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        u64::try_from(usable).unwrap_or(1)
    })
}

/// Counts ranges like `0-3,5`.
fn count(text: &str) -> Option<u64> {
    let sizes: Option<Vec<u64>> = text
        .trim()
        .split(',')
        .map(|range| parse(range).map(|range| range.end() - range.start() + 1))
        .collect();
    Some(sizes?.iter().sum())
}

fn parse(range: &str) -> Option<RangeInclusive<u64>> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_counted() {
        let cases = [
            ("0\n", Some(1)),
            ("0-1\n", Some(2)),
            ("0-3,5,8-9", Some(7)),
            ("", None),
            ("3-1", None),
            ("all", None),
        ];
        for (text, expected) in cases {
            assert_eq!(count(text), expected, "{text:?}");
        }
        assert!(online() >= 1);
    }
}
