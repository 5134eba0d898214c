//! The checkout as the checks see it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// The root of the checkout.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A file of the checkout.
pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file below a directory, relative to the root, without what is built or hidden by git.
pub(crate) fn files(below: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join(below)];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name();
            if name == "target" || name == ".git" {
                continue;
            }
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
            } else {
                found.push(entry.path().strip_prefix(root()).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// The directories of the crates, relative to `crates/`: `proxy/core`, `runtime`.
pub(crate) fn crate_directories() -> Vec<String> {
    let manifests = files(Path::new("crates")).into_iter();
    let directories = manifests
        .filter(|file| file.file_name().is_some_and(|name| name == "Cargo.toml"))
        .filter_map(|file| {
            file.parent()?
                .strip_prefix("crates")
                .ok()?
                .to_str()
                .map(str::to_owned)
        });
    directories.collect()
}

/// The metadata of cargo; with the resolved dependencies unless `no_deps`.
pub(crate) fn metadata(no_deps: bool) -> Value {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(root())
        .args(["metadata", "--format-version", "1", "--locked"]);
    if no_deps {
        cargo.arg("--no-deps");
    } else {
        // Without a platform, cargo would fetch the crates of all others.
        cargo.args(["--filter-platform", &host()]);
    }
    let output = cargo.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

fn host() -> String {
    let output = Command::new("rustc").arg("-vV").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .find_map(|line| line.strip_prefix("host: "))
        .unwrap()
        .to_owned()
}
