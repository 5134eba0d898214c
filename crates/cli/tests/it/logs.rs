//! Log lines: on stderr, in the format asked for, filtered as asked for.

use serde_json::Value;

use crate::weft::{run, weft};

#[test]
fn text_lines_have_no_colour_codes_off_a_terminal() {
    let run = run(&mut weft(&["config", "--log-level", "debug"]));
    assert!(run.stderr.contains("DEBUG"), "{}", run.stderr);
    assert!(
        run.stderr.contains("configuration resolved"),
        "{}",
        run.stderr
    );
    assert!(!run.stderr.contains('\u{1b}'), "{:?}", run.stderr);
    assert!(
        !run.stdout.contains("configuration resolved"),
        "a log line on stdout"
    );
}

#[test]
fn json_lines_are_one_object_each() {
    let run = run(&mut weft(&[
        "--log-format",
        "json",
        "--log-level",
        "debug",
        "config",
    ]));
    let lines: Vec<Value> = run
        .stderr
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(!lines.is_empty());
    assert_eq!(lines[0]["message"], "configuration resolved");
    assert_eq!(lines[0]["level"], "DEBUG");
    assert!(lines[0]["timestamp"].is_string());
}

#[test]
fn a_filter_can_single_out_a_part_of_the_program() {
    let loud = run(weft(&["config"]).env("WEFT_LOG_LEVEL", "off,weft::commands=debug"));
    assert!(
        loud.stderr.contains("configuration resolved"),
        "{}",
        loud.stderr
    );
    let quiet = run(&mut weft(&["config"]));
    assert_eq!(quiet.stderr, "");
}
