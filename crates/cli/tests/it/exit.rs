//! The documented exit codes, each reached at least once.

use std::{fs::File, io, process::Stdio};

use crate::weft::{run, weft};

#[test]
fn success_is_zero() {
    assert_eq!(run(&mut weft(&["version"])).code, Some(0));
}

#[test]
fn a_failure_is_one_and_printed_once() {
    // Writing there always fails for lack of space.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = weft(&["version"])
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = output.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let expected =
        "error: cannot write to stdout\n  cause: No space left on device (os error 28)\n";
    assert_eq!(stderr, expected);
}

#[test]
fn a_wrong_command_line_is_two() {
    for arguments in [
        &["--no-such-flag"][..],
        &["no-such-verb"],
        &[],
        &["config", "-o", "xml"],
    ] {
        let run = run(&mut weft(arguments));
        assert_eq!(
            (run.code, run.stdout.as_str()),
            (Some(2), ""),
            "{arguments:?}"
        );
        assert!(!run.stderr.is_empty());
    }
}

#[test]
fn a_reader_who_left_is_no_failure() {
    for arguments in [
        &["version"][..],
        &["config"],
        &["completions", "bash"],
        &["--help"],
    ] {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let child = weft(arguments)
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), stderr.as_str()),
            (Some(0), ""),
            "{arguments:?}"
        );
    }
}
