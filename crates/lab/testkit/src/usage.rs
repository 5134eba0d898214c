//! Processor time and memory of other processes, read from `/proc`.

use std::{fs, io, time::Duration};

/// The unit of processor time in `/proc/PID/stat`, independent of the frequency of the kernel's own
/// clock.
const TICK: Duration = Duration::from_millis(10);

/// A process and its processor time, user and system together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Process ID.
    pub process: u32,
    /// Process ID of the parent.
    pub parent: u32,
    /// Processor time of all its threads.
    pub own: Duration,
    /// Processor time of its children that have ended and were waited for, and of their children.
    pub ended_children: Duration,
}

impl Usage {
    /// Reads the usage of one process.
    pub fn of(process: u32) -> io::Result<Self> {
        let file = format!("/proc/{process}/stat");
        let usage = Self::parse(&read(&file)?).ok_or_else(|| unexpected(&file))?;
        // The scheduler counts in nanoseconds, but forgets threads that have ended.
        let own = usage.own.max(threads_time(process));
        Ok(Self { own, ..usage })
    }

    /// Reads the usage of all processes that this one can see.
    pub fn of_all() -> io::Result<Vec<Self>> {
        let mut all = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let process = name.to_str().and_then(|name| name.parse().ok());
            // A process that has ended meanwhile has no entry any more.
            all.extend(process.and_then(|process| Self::of(process).ok()));
        }
        Ok(all)
    }

    fn parse(stat: &str) -> Option<Self> {
        let process = stat.split_whitespace().next()?.parse().ok()?;
        // The second field is the program's name, which may have any characters.
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let ticks = |index: usize| fields.get(index)?.parse::<u32>().ok();
        Some(Self {
            process,
            parent: fields.get(1)?.parse().ok()?,
            own: TICK * (ticks(11)? + ticks(12)?),
            ended_children: TICK * (ticks(13)? + ticks(14)?),
        })
    }
}

/// Processor time of the threads that a process has now; zero where the kernel does not say.
fn threads_time(process: u32) -> Duration {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else {
        return Duration::ZERO;
    };
    let times = threads.flatten().filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse().ok()
    });
    times.map(Duration::from_nanos).sum()
}

/// Memory of a process that is not backed by files (`RssAnon`), in megabytes.
pub fn anonymous_megabytes(process: u32) -> io::Result<f64> {
    let file = format!("/proc/{process}/status");
    anonymous(&read(&file)?).ok_or_else(|| unexpected(&file))
}

/// Reads a line like `RssAnon: 1234 kB`, whose unit is 1024 bytes.
fn anonymous(status: &str) -> Option<f64> {
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kibibytes: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1.024 / 1000.0)
}

fn read(file: &str) -> io::Result<String> {
    fs::read_to_string(file)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot read {file}: {error}")))
}

fn unexpected(file: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("cannot parse {file}: a field is missing or not a number"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_after_any_program_name() {
        let text = "17 (a b) c) S 4 17 17 0 -1 4194560 1 2 0 0 100 20 3 4 20 0 9 0 53 1 2 3\n";
        let expected = Usage {
            process: 17,
            parent: 4,
            own: Duration::from_millis(1200),
            ended_children: Duration::from_millis(70),
        };
        assert_eq!(Usage::parse(text), Some(expected));
        assert_eq!(Usage::parse("17 (a) S 4"), None);
    }

    #[test]
    fn memory_is_the_anonymous_part() {
        let status = "Name:\tweft\nVmRSS:\t  90000 kB\nRssAnon:\t   50000 kB\nRssFile:\t 1 kB\n";
        assert_eq!(anonymous(status), Some(51.2));
        assert_eq!(anonymous("Name:\tkthreadd\n"), None);
    }

    #[test]
    fn this_process_is_listed_with_its_parent_and_its_memory() {
        let own = std::process::id();
        let found = Usage::of_all().unwrap();
        let found = found.iter().find(|usage| usage.process == own).unwrap();
        assert_eq!(found.parent, std::os::unix::process::parent_id());
        assert!(anonymous_megabytes(own).unwrap() > 0.0);
        // Finer than the kernel's clock ticks.
        let nanoseconds = threads_time(own).as_nanos();
        assert!(!nanoseconds.is_multiple_of(TICK.as_nanos()));
        assert!(Usage::of(u32::MAX).is_err());
    }
}
