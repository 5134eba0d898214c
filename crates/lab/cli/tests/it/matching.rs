//! `weft-lab` uses a `weft` of its own build only.

use std::{fs, os::unix::fs::PermissionsExt as _};

use crate::program::{lab, run, weft_path};

/// A stand-in for `weft` that prints this as its version.
fn printing(version: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weft");
    fs::write(&path, format!("#!/bin/sh\necho '{version}'\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

fn refused(weft: &std::path::Path) -> String {
    let weft = format!("--weft={}", weft.display());
    let directory = tempfile::tempdir().unwrap();
    let directory = format!("--directory={}/up", directory.path().display());
    let run = run(&mut lab(&["up", "--once", &weft, &directory]));
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{run:?}");
    run.stderr
}

#[test]
fn a_weft_of_another_version_is_refused_with_both_versions() {
    let other = printing(r#"{"version": "9.9.9", "commit": "0123abc"}"#);
    let stderr = refused(&other.path().join("weft"));
    assert!(stderr.contains("version 9.9.9, commit 0123abc"), "{stderr}");
    let own = format!("version {}", env!("CARGO_PKG_VERSION"));
    assert!(stderr.contains(&own), "{stderr}");
}

#[test]
fn a_file_that_is_not_weft_is_refused() {
    let other = printing("hello");
    let stderr = refused(&other.path().join("weft"));
    assert!(stderr.contains("is not the program weft"), "{stderr}");
    let stderr = refused(&other.path().join("missing"));
    assert!(stderr.contains("cannot run"), "{stderr}");
}

#[test]
fn the_weft_beside_it_is_of_the_same_build() {
    let release = |command: &mut std::process::Command| {
        let text = run(command.args(["version", "--output=json"])).stdout;
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        (value["version"].clone(), value["commit"].clone())
    };
    let weft = release(&mut std::process::Command::new(weft_path()));
    assert_eq!(release(&mut lab(&[])), weft);
}
