//! Record of the last time at which the daemon could serve, next to its socket.
//!
//! A STATUS that fails makes the node NotReady. A daemon that is being replaced is back within seconds,
//! and ADDs that come meanwhile are retried, so STATUS tolerates an absence of [`TOLERANCE`] after it
//! served. Nothing else reads the file, and a damaged one counts as none.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::regular;

/// Longest absence of a daemon that served before.
pub const TOLERANCE: Duration = Duration::from_secs(30);
/// Many times what the record needs.
const LIMIT: u64 = 256;

/// The record for a daemon's socket.
pub(crate) struct Served {
    path: PathBuf,
}

impl Served {
    pub(crate) fn new(socket: &Path) -> Self {
        Self {
            path: socket.with_extension("served"),
        }
    }

    /// Records that the daemon can serve now.
    pub(crate) fn record(&self) -> io::Result<()> {
        let (boot, uptime) = now()?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = regular::open(&self.path, &mut options)?;
        file.write_all(format!("{boot} {uptime}\n").as_bytes())
    }

    /// Records that it cannot, whatever it could before.
    pub(crate) fn forget(&self) {
        // Without a record there is nothing to forget; a record that stays expires.
        let _ = fs::remove_file(&self.path);
    }

    /// Time since the daemon could serve; none if that was longer ago than [`TOLERANCE`], before
    /// this boot, or never.
    pub(crate) fn recent(&self) -> Option<Duration> {
        let (boot, uptime) = now().ok()?;
        let mut text = String::new();
        let file = regular::open(&self.path, OpenOptions::new().read(true)).ok()?;
        file.take(LIMIT).read_to_string(&mut text).ok()?;
        let (recorded_boot, recorded) = text.trim().split_once(' ')?;
        let recorded: f64 = recorded.parse().ok().filter(|time| *time >= 0.0)?;
        let age = Duration::try_from_secs_f64(uptime - recorded).ok()?;
        (recorded_boot == boot && age < TOLERANCE).then_some(age)
    }
}

/// This boot and the seconds since it began, which no change of the wall clock affects.
fn now() -> io::Result<(String, f64)> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let uptime = fs::read_to_string("/proc/uptime")?;
    let uptime = uptime.split(' ').next().and_then(|text| text.parse().ok());
    let uptime = uptime.ok_or(io::ErrorKind::InvalidData)?;
    Ok((boot.trim().to_owned(), uptime))
}
