//! Commit counter: the number of the newest acknowledged commit, in a file next to the database.
//!
//! If its newest commit does not verify, the database opens the one before, since that is what a
//! power cut in the middle of a commit leaves. The counter distinguishes damage from that: a
//! database behind it has lost something that was acknowledged.
//!
//! It is written after the database has synced a commit and before the replies leave, and is not
//! synced itself. Within one boot the page cache keeps it, whatever happens to the process. A
//! reboot may lose it, and ends every sandbox that it covered. So it contains its boot id, and
//! counts in no other boot. On disk it is never ahead of the database, so a power cut raises no
//! alarm.
//!
//! # Format
//! `weft-commits 1 <boot id> <20 digits>`, in two equal lines: a flipped bit makes them differ.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// Magic string with the version of the format.
const PREFIX: &str = "weft-commits 1 ";
/// Maximum length in bytes. A boot id is 36 bytes long, so two lines are far shorter.
const LONGEST: u64 = 4096;

/// Content of a counter file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Count {
    Absent,
    /// Cut off, damaged, or of another format.
    Unreadable,
    Of {
        boot: String,
        commits: u64,
    },
}

/// An open counter file.
#[derive(Debug)]
pub(super) struct Counter {
    file: File,
    boot: String,
}

/// Path of the counter file in a state directory.
pub fn counter_file(directory: &Path) -> PathBuf {
    directory.join("addresses.commits")
}

/// Reads the counter of a directory. Only failures that say nothing about its content are errors.
pub(super) fn read(directory: &Path) -> io::Result<Count> {
    let mut bytes = Vec::new();
    let opened = weft_cni::open_regular(&counter_file(directory), OpenOptions::new().read(true));
    match opened {
        Ok(file) => file.take(LONGEST).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Count::Absent),
        Err(error) => return Err(error),
    };
    Ok(parse(&bytes).unwrap_or(Count::Unreadable))
}

fn parse(bytes: &[u8]) -> Option<Count> {
    let (line, copy) = bytes.split_at_checked(bytes.len() / 2)?;
    let line = (line == copy).then(|| str::from_utf8(line).ok())??;
    let (rest, commits) = line.strip_suffix('\n')?.rsplit_once(' ')?;
    let boot = rest.strip_prefix(PREFIX)?.to_owned();
    let commits = commits.parse().ok()?;
    // Accepts only the exact text that would be written.
    let is_ours = bytes == render(&boot, commits).as_bytes();
    is_ours.then_some(Count::Of { boot, commits })
}

/// Always of the same length within a boot, so that the number is replaced in place.
fn render(boot: &str, commits: u64) -> String {
    format!("{PREFIX}{boot} {commits:020}\n").repeat(2)
}

impl Counter {
    /// Creates or replaces the counter of a directory. It survives a power cut once the directory
    /// is synced.
    pub(super) fn create(directory: &Path, boot: &str, commits: u64) -> io::Result<Self> {
        let path = counter_file(directory);
        let unfinished = path.with_extension("commits.new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&unfinished)?;
        file.write_all(render(boot, commits).as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, &path)?;
        let boot = boot.to_owned();
        Ok(Self { file, boot })
    }

    /// Opens a counter that was read and is of this boot.
    pub(super) fn open(directory: &Path, boot: &str) -> io::Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .open(counter_file(directory))?;
        let boot = boot.to_owned();
        Ok(Self { file, boot })
    }

    /// Raises the number. Replies that depend on this commit may be sent afterwards.
    pub(super) fn advance(&self, commits: u64) -> io::Result<()> {
        let text = render(&self.boot, commits);
        self.file.write_all_at(text.as_bytes(), 0)
    }
}
