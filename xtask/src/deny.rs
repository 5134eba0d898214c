//! `cargo deny`: licences, sources and bans of all dependencies, and advisories where a database is given.
//!
//! The pinned cargo-deny is built once into the cache directory of the peers, so that a fresh clone
//! finds it again.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};

use crate::{
    peers,
    process::{self, cargo},
    workspace,
};

const VERSION: &str = "0.20.2";

/// Names a git repository with advisories in RustSec's format. CI may have no way to the public one.
const DATABASE: &str = "WEFT_ADVISORY_DB";

/// Stands for that repository in cargo-deny's configuration; nothing is ever fetched from there.
const URL: &str = "https://advisories.invalid/advisory-db";

/// Checks everything that `deny.toml` is about.
pub(crate) fn run() -> anyhow::Result<()> {
    let program = program()?;
    let config = workspace::root().join("deny.toml");
    process::run(&mut check(
        &program,
        &config,
        &["bans", "licenses", "sources"],
    ))?;
    let Some(database) = env::var_os(DATABASE).filter(|value| !value.is_empty()) else {
        eprintln!(
            "advisories not checked: no advisory database (set {DATABASE} to a clone of \
             https://github.com/rustsec/advisory-db)"
        );
        return Ok(());
    };
    check_advisories(&program, Path::new(&database))
}

fn check(program: &Path, config: &Path, what: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(workspace::root())
        // Warnings are about duplicates, which are rarely ours to resolve.
        .args(["--locked", "--log-level", "error", "--config"])
        .arg(config)
        .args(["check", "--hide-inclusion-graph"])
        .args(what);
    command
}

/// Advisories out of a repository on this machine. cargo-deny takes URLs with a host only, and fetches
/// them with git: so git is configured to read this URL from that repository.
fn check_advisories(program: &Path, repository: &Path) -> anyhow::Result<()> {
    let repository = fs::canonicalize(repository)
        .with_context(|| format!("{DATABASE}: cannot find {}", repository.display()))?;
    let newest = ["log", "-1", "--format=%cs"];
    let date = process::output(Command::new("git").arg("-C").arg(&repository).args(newest));
    let date = date.with_context(|| format!("{DATABASE} is not a git repository"))?;
    eprintln!("advisories as of {}", date.trim());
    let directory = workspace::target().join("deny");
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let text = fs::read_to_string(workspace::root().join("deny.toml"));
    let text = pointed_at(
        &text.context("cannot read deny.toml")?,
        &directory.join("database"),
    )?;
    let config = directory.join("deny.toml");
    fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
    let mut command = check(program, &config, &["advisories"]);
    command
        .env("GIT_CONFIG_COUNT", "1")
        .env(
            "GIT_CONFIG_KEY_0",
            format!("url.file://{}.insteadOf", repository.display()),
        )
        .env("GIT_CONFIG_VALUE_0", URL);
    process::run(&mut command)
}

/// A copy of `deny.toml` that has one database, kept in a directory of its own.
fn pointed_at(text: &str, cache: &Path) -> anyhow::Result<String> {
    const SECTION: &str = "[advisories]\n";
    ensure!(
        text.contains(SECTION),
        "deny.toml has no section for advisories"
    );
    let cache = cache.display().to_string();
    let settings = format!("{SECTION}db-urls = [{URL:?}]\ndb-path = {cache:?}\n");
    Ok(text.replacen(SECTION, &settings, 1))
}

/// The pinned cargo-deny: an installed one, the one in the cache, or one that is built now.
fn program() -> anyhow::Result<PathBuf> {
    let root = peers::cache()?.join(format!("cargo-deny-{VERSION}"));
    let cached = root.join("bin/cargo-deny");
    let candidates = process::find("cargo-deny")
        .into_iter()
        .chain([cached.clone()]);
    for candidate in candidates {
        if is_pinned(&candidate) {
            return Ok(candidate);
        }
    }
    eprintln!("building cargo-deny {VERSION}; the first time takes minutes");
    let mut install = cargo();
    install
        .args([
            "install",
            "--locked",
            "--force",
            "--version",
            VERSION,
            "--root",
        ])
        .arg(&root)
        .arg("cargo-deny")
        // Not among our own: another toolchain or another set of features would build those again.
        .env("CARGO_TARGET_DIR", root.join("target"))
        // It runs for seconds, and optimising it would take longer than that.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    process::run(&mut install)?;
    fs::remove_dir_all(root.join("target")).context("cannot remove what the build left")?;
    ensure!(is_pinned(&cached), "{} does not run", cached.display());
    Ok(cached)
}

fn is_pinned(program: &Path) -> bool {
    let version = process::output(Command::new(program).arg("--version"));
    version.is_ok_and(|text| text.split_whitespace().any(|word| word == VERSION))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_is_the_given_one() {
        let text = "[graph]\n[advisories]\nyanked = \"deny\"\n";
        let pointed = pointed_at(text, Path::new("/cache")).unwrap();
        let expected = format!(
            "[graph]\n[advisories]\ndb-urls = [\"{URL}\"]\ndb-path = \"/cache\"\nyanked = \"deny\"\n"
        );
        assert_eq!(pointed, expected);
        assert!(pointed_at("", Path::new("/cache")).is_err());
    }
}
