//! Runs the programs under test.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use weft_testkit::program::clean;
pub(crate) use weft_testkit::program::run;

/// `weft-lab` with a clean environment.
pub(crate) fn lab(arguments: &[&str]) -> Command {
    clean(env!("CARGO_BIN_EXE_weft-lab"), arguments)
}

/// `weft` with a clean environment.
pub(crate) fn weft(arguments: &[&str]) -> Command {
    clean(weft_path(), arguments)
}

/// The path of `weft`: cargo puts it beside `weft-lab` when it builds the workspace.
pub(crate) fn weft_path() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_weft-lab")).with_file_name("weft")
}
