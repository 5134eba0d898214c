//! One page and one Markdown file of all outcomes.

use std::{fs, path::Path};

use anyhow::{Context as _, ensure};

use crate::Outcome;

mod figure;
mod markdown;

/// Reads every outcome in a directory and writes `report.md` beside them.
pub(crate) fn write(directory: &Path) -> anyhow::Result<()> {
    let outcomes = read(directory)?;
    ensure!(
        !outcomes.is_empty(),
        "no outcome in {}: run `make conformance` first",
        directory.display()
    );
    let file = directory.join("report.md");
    fs::write(&file, markdown::of(&outcomes))
        .with_context(|| format!("write {}", file.display()))?;
    Ok(())
}

fn read(directory: &Path) -> anyhow::Result<Vec<Outcome>> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let file = entry?.path();
        if file
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            files.push(file);
        }
    }
    files.sort();
    files.iter().map(|file| Outcome::read(file)).collect()
}
