//! Help texts, compared with golden files. `WEFT_UPDATE_GOLDEN=1 cargo test -p weft-lab` rewrites
//! them.

use std::path::Path;

use weft_testkit::program::assert_help;

#[test]
fn help_of_the_program_and_of_every_command_reads_as_reviewed() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/help");
    assert_help(env!("CARGO_BIN_EXE_weft-lab"), "weft-lab", &golden);
}
