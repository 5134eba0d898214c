//! One page and one Markdown file of all outcomes.

use std::{fs, path::Path};

use anyhow::{Context as _, ensure};

use crate::{Outcome, outcome::Verdict};

mod escape;
pub(crate) mod figure;
mod markdown;
mod page;
mod plot;

/// Reads every outcome in a directory and writes `report.html` and `report.md` beside them.
///
/// A promise that does not hold and a part that did not end are failures, after everything was written.
pub(crate) fn write(directory: &Path) -> anyhow::Result<()> {
    let outcomes = read(directory)?;
    ensure!(
        !outcomes.is_empty(),
        "no outcome in {}: run `make conformance` first",
        directory.display()
    );
    let write = |name: &str, text: String| {
        let file = directory.join(name);
        fs::write(&file, text).with_context(|| format!("write {}", file.display()))
    };
    write("report.md", markdown::of(&outcomes))?;
    write("report.html", page::of(&outcomes))?;
    let incomplete = outcomes.iter().filter(|outcome| outcome.incomplete);
    let incomplete: Vec<&str> = incomplete.map(|outcome| outcome.part.as_str()).collect();
    ensure!(
        incomplete.is_empty(),
        "not measured to the end: {}",
        incomplete.join(", ")
    );
    let missed: Vec<&str> = outcomes
        .iter()
        .flat_map(|outcome| &outcome.claims)
        .filter(|claim| claim.verdict() == Some(Verdict::Missed))
        .map(|claim| claim.name.as_str())
        .collect();
    ensure!(
        missed.is_empty(),
        "promises that do not hold: {}",
        missed.join("; ")
    );
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
