//! Machine id, boot id and the boot-time clock.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use thiserror::Error;
use weft_ipam::pool::Identity;
use weft_model::{Moment, SharedStr};

/// A file with an id that cannot be read.
#[derive(Debug, Error)]
#[error("cannot read {path}")]
pub struct IdentityError {
    /// Path of the file.
    pub path: PathBuf,
    /// The error of the operating system.
    pub source: io::Error,
}

/// Reads machine id and boot id below a root directory, which is `/` except in tests.
pub fn identity(root: &Path) -> Result<Identity, IdentityError> {
    Ok(Identity {
        machine: word(root.join("etc/machine-id"))?,
        boot: word(root.join("proc/sys/kernel/random/boot_id"))?,
    })
}

fn word(path: PathBuf) -> Result<SharedStr, IdentityError> {
    let text = fs::read_to_string(&path).and_then(|text| {
        let word = text.trim();
        if word.is_empty() {
            let reason = "the file is empty: expected an id that is unique to this machine or boot";
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        Ok(SharedStr::new(word))
    });
    text.map_err(|source| IdentityError { path, source })
}

/// Source of the current time.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// Time since the machine booted, including suspension; the clock of stored records.
    Boot,
    /// Tokio's clock, which tests can pause.
    Runtime {
        /// Time at the start.
        from: Moment,
        /// Tokio's time at the start.
        at: tokio::time::Instant,
    },
}

impl Clock {
    /// Tokio's clock, starting at this time.
    pub fn runtime(from: Moment) -> Self {
        Self::Runtime {
            from,
            at: tokio::time::Instant::now(),
        }
    }

    /// The current time.
    pub fn now(self) -> Moment {
        match self {
            Self::Boot => {
                let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
                Moment::after_start(time.try_into().unwrap_or_default())
            }
            Self::Runtime { from, at } => from + at.elapsed(),
        }
    }
}
