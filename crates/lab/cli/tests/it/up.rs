//! `weft-lab up`: the playground from the outside.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use weft_testkit::wait_until;

use crate::program::lab;

/// A playground must never take longer than this, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(280);
const PATIENCE: Duration = Duration::from_secs(30);

fn up(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = lab(&[
        "up",
        "--output=json",
        "--api-bind=127.0.0.1:0",
        "--page-bind=127.0.0.1:0",
    ]);
    // It starts programs of the system.
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
        .arg("--directory")
        .arg(directory)
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs it to its end; every line it printed.
fn report_of(directory: &Path, arguments: &[&str]) -> Vec<Value> {
    let output = up(directory, arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect();
    assert!(
        output.status.success(),
        "{}\n{text}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr),
        logs(directory),
    );
    lines
}

/// The ends of all logs, to find out why it failed.
fn logs(directory: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(directory.join("logs"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let content = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let lines: Vec<&str> = content.lines().rev().take(15).collect();
        text.push_str("--- ");
        text.push_str(&entry.file_name().to_string_lossy());
        text.push('\n');
        for line in lines.iter().rev() {
            text += line;
            text.push('\n');
        }
    }
    text
}

fn summary(lines: &[Value]) -> &Value {
    lines.last().expect("a summary")
}

fn assert_held(lines: &[Value]) {
    let failed = &summary(lines)["failed"];
    assert_eq!(*failed, serde_json::json!([]), "{lines:#?}");
}

#[test]
fn a_cluster_network_lives_through_everything_the_demo_does_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let lines = report_of(directory.path(), &["--once"]);
    let summary = summary(&lines);
    assert_held(&lines);
    assert_eq!(summary["unanswered"], 0, "{lines:#?}");
    assert!(summary["answered"].as_u64().unwrap() > 200, "{summary}");
    assert!(begun.elapsed() < LIMIT);
    assert!(
        !directory.path().join("world/netns").exists(),
        "its mounts are gone"
    );
}

#[test]
fn it_works_for_an_ordinary_user_too_while_processes_are_killed_at_random() {
    let directory = tempfile::tempdir().unwrap();
    let lines = report_of(
        directory.path(),
        &[
            "--once",
            "--rootless",
            "--nodes=2",
            "--churn=25",
            "--kill",
            "--seed=11",
        ],
    );
    assert_held(&lines);
}

#[test]
#[ignore = "takes minutes: `make endurance`"]
fn it_goes_on_without_the_api_server_for_half_a_minute() {
    let directory = tempfile::tempdir().unwrap();
    let lines = report_of(directory.path(), &["--once", "--outage=30"]);
    assert_held(&lines);
    assert_eq!(summary(&lines)["unanswered"], 0, "{lines:#?}");
}

#[test]
#[ignore = "takes minutes: `make endurance`"]
fn the_whole_demo_works_for_an_ordinary_user() {
    let directory = tempfile::tempdir().unwrap();
    let lines = report_of(directory.path(), &["--once", "--rootless"]);
    assert_held(&lines);
    assert_eq!(summary(&lines)["unanswered"], 0, "{lines:#?}");
}

#[test]
#[ignore = "takes minutes: `make endurance`"]
fn ninety_seconds_of_changes_and_crashes_end_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--once", "--churn=90", "--kill", "--seed=2026"];
    let lines = report_of(directory.path(), &arguments);
    assert_held(&lines);
}

#[test]
fn the_stand_ins_alone_change_nothing_of_the_network() {
    let directory = tempfile::tempdir().unwrap();
    let lines = report_of(directory.path(), &["--once", "--without-weft", "--nodes=2"]);
    assert_held(&lines);
}

#[test]
fn a_directory_with_files_of_the_user_is_refused_and_untouched() {
    let precious = tempfile::tempdir().unwrap();
    let files = [("thesis.tex", "years"), ("src/main.rs", "fn main() {}")];
    std::fs::create_dir(precious.path().join("src")).unwrap();
    for (name, text) in files {
        std::fs::write(precious.path().join(name), text).unwrap();
    }
    for directory in [precious.path(), Path::new(".")] {
        let mut command = up(directory, &["--once", "--without-weft", "--nodes=1"]);
        let output = command.current_dir(precious.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{said}");
        let reason = "it is not empty and was not created by weft-lab up";
        assert!(said.contains(reason), "{said}");
        for (name, text) in files {
            let path = precious.path().join(name);
            assert_eq!(std::fs::read_to_string(path).unwrap(), text, "{name}");
        }
        let left = std::fs::read_dir(precious.path()).unwrap().count();
        assert_eq!(left, 2, "nothing was added");
    }
}

/// A playground that stays, once its demo works.
pub(crate) struct Staying(Child);

impl Staying {
    pub(crate) fn start(directory: &Path, nodes: u8) -> Self {
        let nodes = format!("--nodes={nodes}");
        let mut child = up(directory, &[&nodes]).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for _ in 0..2 {
            let line = lines.next().expect("a step").unwrap();
            let step: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(step["ok"], true, "{step:#}\n{}", logs(directory));
        }
        // Whatever it says later must not stop it.
        std::thread::spawn(move || lines.for_each(drop));
        Self(child)
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Staying {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Processes whose command line or environment names a directory.
fn processes_of(directory: &Path) -> usize {
    let name = directory.display().to_string();
    let mut count = 0;
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let mut text = Vec::new();
        let file = std::fs::File::open(entry.path().join("cmdline"));
        let _ = file.and_then(|mut file| file.read_to_end(&mut text));
        let is_other = entry.file_name().to_string_lossy() != std::process::id().to_string();
        if is_other && String::from_utf8_lossy(&text).contains(&name) {
            count += 1;
        }
    }
    count
}

#[test]
fn it_ends_with_the_process_that_started_it_and_the_next_one_begins_fresh() {
    let directory = tempfile::tempdir().unwrap();
    let first = Staying::start(directory.path(), 1);
    let second = up(directory.path(), &["--once"]).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains("another playground is running"), "{said}");
    first.signal(Signal::KILL);
    wait_until("every process to be gone", PATIENCE, || {
        processes_of(directory.path()) == 0
    });
    drop(first);
    let mut third = Staying::start(directory.path(), 1);
    let kubeconfig = directory.path().join("kubeconfig");
    assert!(kubeconfig.is_file());
    third.signal(Signal::INT);
    assert_eq!(third.0.wait().unwrap().code(), Some(0));
    wait_until("every process to be gone", PATIENCE, || {
        processes_of(directory.path()) == 0
    });
}
