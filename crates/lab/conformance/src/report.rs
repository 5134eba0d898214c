//! The report: one HTML page and one Markdown file from all outcomes.

use std::{fs, path::Path};

use anyhow::{Context as _, ensure};

use crate::{Outcome, outcome::Verdict};

mod escape;
pub(crate) mod figure;
mod markdown;
mod page;
mod plot;

/// Reads every outcome in a directory and writes `report.html` and `report.md` next to them.
///
/// Fails after writing if a target was missed or a part did not run to its end.
pub(crate) fn write(directory: &Path) -> anyhow::Result<()> {
    let outcomes = read(directory)?;
    ensure!(
        !outcomes.is_empty(),
        "cannot find an outcome in {}: run `make conformance` first",
        directory.display()
    );
    let write = |name: &str, text: String| {
        let file = directory.join(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    };
    write("report.md", markdown::of(&outcomes))?;
    write("report.html", page::of(&outcomes))?;
    let incomplete = outcomes.iter().filter(|outcome| outcome.incomplete);
    let incomplete: Vec<&str> = incomplete.map(|outcome| outcome.part.as_str()).collect();
    ensure!(
        incomplete.is_empty(),
        "incomplete parts: {}",
        incomplete.join(", ")
    );
    let missed: Vec<&str> = outcomes
        .iter()
        .flat_map(|outcome| &outcome.claims)
        .filter(|claim| claim.verdict() == Some(Verdict::Missed))
        .map(|claim| claim.name.as_str())
        .collect();
    ensure!(missed.is_empty(), "missed targets: {}", missed.join("; "));
    Ok(())
}

fn read(directory: &Path) -> anyhow::Result<Vec<Outcome>> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
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
