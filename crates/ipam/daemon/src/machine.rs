//! Which machine this is, which of its lives, and how long that has lasted.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use thiserror::Error;
use weft_ipam::pool::Identity;
use weft_model::{Moment, SharedStr};

/// A file that says who we are and cannot be read.
#[derive(Debug, Error)]
#[error("read {path}")]
pub struct IdentityError {
    /// The file.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

/// Reads machine id and boot id below a root directory, which is `/` but for tests.
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
            let reason = "it is empty, but must tell this machine from others";
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        Ok(SharedStr::new(word))
    });
    text.map_err(|source| IdentityError { path, source })
}

/// Counts moments.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// Since the machine was started, the time it was suspended included: what records are kept by.
    Boot,
    /// Tokio's, from a beginning; tests can pause it.
    Runtime {
        /// What it was then.
        from: Moment,
        /// When.
        at: tokio::time::Instant,
    },
}

impl Clock {
    /// Tokio's clock, beginning with this moment.
    pub fn runtime(from: Moment) -> Self {
        Self::Runtime {
            from,
            at: tokio::time::Instant::now(),
        }
    }

    /// The present moment.
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
