//! Description of the machine on which a comparison ran.

use std::{fs, thread};

/// Processors, memory and kernel of this machine in one line.
pub(crate) fn describe() -> String {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let processors = thread::available_parallelism().map_or(1, usize::from);
    summary(
        processors,
        &read("/proc/cpuinfo"),
        &read("/proc/meminfo"),
        &read("/proc/sys/kernel/osrelease"),
    )
}

fn summary(processors: usize, cpuinfo: &str, meminfo: &str, release: &str) -> String {
    // Not every architecture has the field.
    let model = value(cpuinfo, "model name").unwrap_or("processors of unknown model");
    let memory = value(meminfo, "MemTotal").and_then(|value| {
        let kilobytes: u64 = value.split_whitespace().next()?.parse().ok()?;
        Some(format!(", {} GiB", (kilobytes + (1 << 19)) >> 20))
    });
    let memory = memory.unwrap_or_default();
    format!("{processors} × {model}{memory}, Linux {}", release.trim())
}

fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(name, _)| name.trim() == key)?;
    Some(value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_described_by_processors_memory_and_kernel() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A fast one\n\nprocessor\t: 1\nmodel name\t: A fast one\n";
        let meminfo = "MemTotal:       25000000 kB\nMemFree:        1 kB\n";
        let expected = "2 × A fast one, 24 GiB, Linux 6.18.1";
        assert_eq!(summary(2, cpuinfo, meminfo, "6.18.1\n"), expected);
        let expected = "4 × processors of unknown model, Linux 6.18.1";
        assert_eq!(summary(4, "", "", "6.18.1"), expected);
    }
}
