//! What a process costs, as the kernel tells it from outside.

use std::fs;

use anyhow::Context as _;

/// Processor time of a process so far, in seconds, of all its threads.
pub(super) fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("process {pid} is not there"))?;
    let ticks = ticks(&text).with_context(|| format!("what the kernel says: {text:?}"))?;
    // The unit of that file is fixed for user space since Linux 2.6.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a process does not run for ages"
    )]
    Ok(ticks as f64 / 100.0)
}

/// User and system time. The name of the program before them may hold anything, so what follows
/// its closing parenthesis is counted.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(number(11)? + number(12)?)
}

/// Memory of a process that is its own, in bytes: resident and not backed by files.
pub(super) fn anonymous_memory(pid: u32) -> anyhow::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid} is not there"))?;
    rss_anon(&text).context("the kernel tells no RssAnon")
}

fn rss_anon(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_add_up() {
        let stat = "4242 (a (strange) name) S 1 4242 4242 0 -1 4194560 900 0 3 0 150 25 0 0 20 0 9 0 77 1 2";
        assert_eq!(ticks(stat), Some(175));
        assert_eq!(ticks("4242 (short) S 1"), None);
    }

    #[test]
    fn own_memory_is_told_in_bytes() {
        let status = "VmRSS:\t   9000 kB\nRssAnon:\t    4096 kB\nRssFile:\t    4904 kB\n";
        assert_eq!(rss_anon(status), Some(4 << 20));
        assert_eq!(rss_anon("VmRSS:\t 9000 kB\n"), None);
    }

    #[test]
    fn this_process_has_a_cost() {
        let pid = std::process::id();
        assert!(cpu_seconds(pid).unwrap() >= 0.0);
        assert!(anonymous_memory(pid).unwrap() > 0);
    }
}
