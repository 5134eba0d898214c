//! Start-up time of the plugin, which runs once for every pod.

use std::process::{Command, Stdio};

use weft_testkit::bench::{median, run_times};

use crate::plugin::PROGRAM;

#[test]
fn starting_costs_next_to_nothing() {
    let times = run_times(51, || {
        let mut program = Command::new(PROGRAM);
        program
            .env_clear()
            .env("CNI_COMMAND", "VERSION")
            .stdin(Stdio::null());
        program
    });
    let middle = median(times);
    // Ten times what is promised of the optimised program on an idle machine: this finds a
    // runtime that crept in, not a busy neighbour.
    assert!(middle < 50.0, "{middle} ms");
}
