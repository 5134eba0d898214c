//! Sets the commit, its date, the compiler and the target as variables of the build.
//!
//! Everything is optional. A source archive without git builds too, and reports "unknown".

use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    set("WEFT_BUILD_TARGET", env::var("TARGET").ok());
    set("WEFT_BUILD_RUSTC", rustc_version());
    let inside_own_checkout = belongs_to_this_source();
    let git = |arguments: &[&str]| inside_own_checkout.then(|| git(arguments)).flatten();
    set("WEFT_BUILD_COMMIT", git(&["rev-parse", "HEAD"]));
    set(
        "WEFT_BUILD_DATE",
        git(&["show", "--no-patch", "--format=%cI", "HEAD"]),
    );
    // The log of HEAD grows with each commit, checkout and reset, also in a worktree.
    if let Some(path) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={path}");
    }
}

fn set(variable: &str, value: Option<String>) {
    if let Some(value) = value {
        println!("cargo::rustc-env={variable}={value}");
    }
}

/// True if git's checkout is this source tree, and not a repository that contains it.
fn belongs_to_this_source() -> bool {
    let manifest = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let workspace = Path::new(&manifest)
        .ancestors()
        .nth(2)
        .and_then(|path| path.canonicalize().ok());
    let checkout = git(&["rev-parse", "--show-toplevel"])
        .and_then(|path| Path::new(&path).canonicalize().ok());
    workspace.is_some() && workspace == checkout
}

fn git(arguments: &[&str]) -> Option<String> {
    output(Command::new("git").args(arguments))
}

fn rustc_version() -> Option<String> {
    let text = output(Command::new(env::var_os("RUSTC")?).arg("--version"))?;
    text.split_whitespace().nth(1).map(str::to_owned)
}

fn output(command: &mut Command) -> Option<String> {
    let output = command
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
