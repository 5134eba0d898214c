//! Help texts, compared with golden files. `WEFT_UPDATE_GOLDEN=1 cargo test -p weft` rewrites them.

use std::path::Path;

use weft_testkit::program::assert_help;

use crate::weft::{run, weft};

#[test]
fn help_of_the_program_and_of_every_command_reads_as_reviewed() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/help");
    assert_help(env!("CARGO_BIN_EXE_weft"), "weft", &golden);
}

#[test]
fn every_shell_gets_a_completion_script() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let run = run(&mut weft(&["completions", shell]));
        assert_eq!(run.code, Some(0));
        assert!(
            run.stdout.contains("completions"),
            "{shell}: {}",
            run.stdout
        );
    }
}
