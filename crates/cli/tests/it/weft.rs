//! Runs the program under test.

use std::process::Command;

use weft_testkit::program::clean;
pub(crate) use weft_testkit::program::{Run, run};

/// `weft` with a clean environment.
pub(crate) fn weft(arguments: &[&str]) -> Command {
    clean(env!("CARGO_BIN_EXE_weft"), arguments)
}
