//! The plugin's log: a JSON line for each call.
//!
//! It must be a regular file. Root writes to it, so a link in its place is not followed.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::Serialize;

use crate::regular;

/// The file moves aside when it is longer; one older file is kept.
const LONGEST: u64 = 4 << 20;

/// One call.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Line<'a> {
    pub(crate) command: &'a str,
    pub(crate) network: &'a str,
    #[serde(rename = "containerID")]
    pub(crate) container_id: &'a str,
    pub(crate) ifname: &'a str,
    pub(crate) pod: Option<String>,
    pub(crate) outcome: &'a str,
}

/// Appends a line, whole or not at all.
pub(crate) fn append(path: &Path, line: &Line<'_>, took: Duration) -> io::Result<()> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Stamped<'a> {
        unix_time: f64,
        milliseconds: u128,
        #[serde(flatten)]
        line: &'a Line<'a>,
    }
    if fs::symlink_metadata(path).is_ok_and(|data| data.len() > LONGEST) {
        let mut older = path.as_os_str().to_owned();
        older.push(".1");
        fs::rename(path, older)?;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut text = serde_json::to_vec(&Stamped {
        unix_time: now.unwrap_or_default().as_secs_f64(),
        milliseconds: took.as_millis(),
        line,
    })?;
    text.push(b'\n');
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    regular::open(path, &mut options)?.write_all(&text)
}
