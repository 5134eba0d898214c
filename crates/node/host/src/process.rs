//! Processor time and memory of this process and its children.

use std::{fs, io, time::Duration};

use thiserror::Error;

use crate::raw;

/// Failure to read a figure.
#[derive(Debug, Error)]
pub enum UsageError {
    /// The system call or file failed.
    #[error("cannot read the usage of this process")]
    Read(#[source] io::Error),
    /// `/proc/self/status` does not contain the figure.
    #[error("/proc/self/status has no RssAnon")]
    NoFigure,
}

/// Processor time of this process, all threads, user and system together.
pub fn own_processor_time() -> Result<Duration, UsageError> {
    raw::usage(raw::Who::Process).map_err(UsageError::Read)
}

/// Processor time of all children that have ended and were waited for.
pub fn children_processor_time() -> Result<Duration, UsageError> {
    raw::usage(raw::Who::Children).map_err(UsageError::Read)
}

/// Anonymous memory in bytes: heap and stacks, without mapped files.
pub fn anonymous_memory() -> Result<u64, UsageError> {
    let status = fs::read_to_string("/proc/self/status").map_err(UsageError::Read)?;
    anonymous(&status).ok_or(UsageError::NoFigure)
}

/// Makes glibc return large freed blocks to the system at once, from now on.
///
/// glibc takes a large freed block for a sign of more to come: it raises its thresholds and then
/// keeps up to twice that size at the end of each arena. A process that handles one text of 16 MB
/// at its start may thus hold some 10 MB for ever. This fixes the threshold at its initial value.
/// Other allocators, such as musl's, do not adapt in this way.
pub fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    {
        const FIRST_LIMIT: i32 = 128 << 10;
        if !raw::fix_mapped_size(FIRST_LIMIT) {
            tracing::debug!("mallopt(M_MMAP_THRESHOLD) failed");
        }
    }
}

/// Parses a line like `RssAnon: 1234 kB`.
fn anonymous(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use std::{env, hint::black_box, process::Command};

    use super::*;

    #[test]
    fn processor_time_grows_with_work_and_excludes_that_of_children() {
        let own = own_processor_time().unwrap();
        let mut sum = 0_u64;
        while own_processor_time().unwrap() < own + Duration::from_millis(20) {
            sum = black_box(sum.wrapping_add(1));
        }

        let children = children_processor_time().unwrap();
        let script = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        let status = Command::new("/bin/sh").args(["-c", script]).status();
        assert!(status.unwrap().success());
        let grown = children_processor_time().unwrap().saturating_sub(children);
        assert!(grown > Duration::from_millis(5), "{grown:?}");
    }

    #[test]
    fn memory_grows_by_what_is_touched() {
        let before = anonymous_memory().unwrap();
        let pages = black_box(vec![1_u8; 64 << 20]);
        let grown = anonymous_memory().unwrap().saturating_sub(before);
        // Other tests of this process may free memory at the same time.
        assert!(grown > 32 << 20, "{grown} bytes");
        drop(pages);
    }

    #[test]
    fn large_blocks_that_were_freed_are_returned() {
        const ALONE: &str = "WEFT_TEST_ALONE";
        const NAME: &str = "process::tests::large_blocks_that_were_freed_are_returned";
        // Memory is counted for a whole process, and the other tests use some.
        if env::var_os(ALONE).is_none() {
            let alone = Command::new(env::current_exe().unwrap())
                .args(["--exact", NAME])
                .env(ALONE, "1")
                .output()
                .unwrap();
            assert!(alone.status.success(), "{alone:?}");
            return;
        }
        return_freed_memory();
        let before = anonymous_memory().unwrap();
        // The first block would raise the threshold for the second.
        for _ in 0..2 {
            drop(black_box(vec![1_u8; 16 << 20]));
        }
        let kept = anonymous_memory().unwrap().saturating_sub(before);
        assert!(kept < 4 << 20, "{kept} bytes");
    }

    #[test]
    fn the_figure_is_in_bytes() {
        assert_eq!(
            anonymous("VmRSS:\t 9 kB\nRssAnon:\t    1234 kB\n"),
            Some(1_263_616)
        );
        assert_eq!(anonymous("VmRSS:\t 9 kB\n"), None);
    }
}
