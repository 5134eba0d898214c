//! Results on stdout; logs and errors go to stderr.

use std::io::{self, Write as _};

use anyhow::Context as _;
use serde::Serialize;

/// Writes text that ends its own last line.
pub fn text(text: &str) -> anyhow::Result<()> {
    write(text.as_bytes())
}

/// Writes a value as indented JSON.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut bytes = serde_json::to_vec_pretty(value).context("cannot encode the result as JSON")?;
    bytes.push(b'\n');
    write(&bytes)
}

fn write(bytes: &[u8]) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .context("cannot write to stdout")
}
