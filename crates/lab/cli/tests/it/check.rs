//! `weft check` against a playground.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    program::{run, weft},
    up::Staying,
};

fn check(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = weft(&["check"]);
    command
        .arg("--kubeconfig")
        .arg(directory.join("kubeconfig"))
        .args(arguments);
    command
}

/// Starts one and interrupts it once it has begun to make things; what it said.
fn interrupted(directory: &Path) -> String {
    let mut child = check(directory, &[])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut text = String::new();
    while !text.contains("probes are ready") {
        let length = stderr.read_line(&mut text).unwrap();
        assert!(length > 0, "it ended early: {text}");
    }
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    stderr.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{text}");
    text
}

#[test]
fn a_playground_of_two_nodes_holds_every_check_and_is_left_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let _cluster = Staying::start(directory.path(), 2);

    let said = interrupted(directory.path());
    assert!(
        said.contains("removing namespace weft-check") && said.contains("error: interrupted"),
        "{said}"
    );

    let kept = run(&mut check(directory.path(), &["--output=json", "--keep"]));
    assert_eq!(kept.code, Some(0), "{}{}", kept.stdout, kept.stderr);
    assert!(
        !kept.stderr.contains("an earlier check"),
        "the interrupted one left nothing: {}",
        kept.stderr
    );
    let report: Value = serde_json::from_str(&kept.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 9, "{report:#}");
    for row in rows {
        assert_eq!(row["verdict"], "ok", "{report:#}");
        assert!(row["milliseconds"].as_f64().unwrap() > 0.0, "{row}");
    }

    let again = run(&mut check(directory.path(), &[]));
    assert_eq!(again.code, Some(0), "{}{}", again.stdout, again.stderr);
    assert!(
        again.stderr.contains("an earlier check"),
        "{}",
        again.stderr
    );
    assert!(
        again
            .stdout
            .ends_with("9 ok, 0 failed, 0 not applicable, on node-1 and node-2\n"),
        "{}",
        again.stdout
    );

    let foreign = run(&mut check(directory.path(), &["--namespace=default"]));
    assert_eq!((foreign.code, foreign.stdout.as_str()), (Some(1), ""));
    assert!(
        foreign.stderr.contains("was not created by a check"),
        "{}",
        foreign.stderr
    );
}

#[test]
fn a_probe_has_to_be_told_who_it_is() {
    let run = run(&mut weft(&["check", "probe", "--port=0"]));
    assert_eq!(run.code, Some(1));
    assert!(run.stderr.contains("read POD_NAME"), "{}", run.stderr);
}
