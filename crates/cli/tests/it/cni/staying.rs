//! `weft cni install --stay`: repairs, restarts and reboots.

use std::{
    fs,
    io::Read as _,
    process::{Child, Stdio},
    time::{Duration, Instant, SystemTime},
};

use serde_json::{Value, json};

use super::Node;
use crate::weft::weft;

/// Many times the interval at which the installer looks again.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn until(what: &str, test: impl Fn() -> bool) {
    let begun = Instant::now();
    while !test() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An installer that stays.
pub(super) struct Staying(Child);

impl Staying {
    pub(super) fn start(node: &Node, arguments: &[&str]) -> Self {
        let mut command = weft(&["cni", "install", "--stay"]);
        command
            .arg("--root-dir")
            .arg(node.root.path())
            .arg("--binary")
            .arg(node.path("plugin"))
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// Ends it as a kubelet does, and returns its log.
    pub(super) fn stop(mut self) -> String {
        let id = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        let mut log = String::new();
        let mut stderr = self.0.stderr.take().unwrap();
        stderr.read_to_string(&mut log).unwrap();
        assert_eq!(self.0.wait().unwrap().code(), Some(0), "{log}");
        log
    }
}

impl Drop for Staying {
    fn drop(&mut self) {
        // It has ended already, unless the test fails.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the installer has looked at everything once more: the plugin comes first.
fn rounds(node: &Node) {
    for _ in 0..2 {
        fs::remove_file(node.program()).unwrap();
        until("another look", || node.program().exists());
    }
}

#[test]
fn a_removed_or_changed_configuration_is_written_again() {
    let node = Node::new();
    node.daemon(&["ready"]);
    let staying = Staying::start(&node, &["--mtu", "1450"]);
    until("installed", || node.configuration().is_some());
    let right = node.configuration();
    let is_right = || node.configuration() == right;
    fs::remove_file(node.conflist()).unwrap();
    until("written after a removal", is_right);
    let mut changed = right.clone().unwrap();
    changed["plugins"][0]["mtu"] = json!(9000);
    fs::remove_file(node.conflist()).unwrap();
    fs::write(node.conflist(), changed.to_string()).unwrap();
    until("written after a change", is_right);
    fs::remove_file(node.conflist()).unwrap();
    fs::write(node.conflist(), "{\"cniVersion\": \"1.").unwrap();
    until("written after damage", is_right);
    rounds(&node);
    let log = staying.stop();
    let repairs: Vec<&str> = (log.lines())
        .filter(|line| line.contains("CNI configuration repaired"))
        .collect();
    assert_eq!(repairs.len(), 3, "{log}");
    assert!(repairs[2].contains("repairs=3"), "{log}");
    assert!(is_right(), "it stays when the installer ends");
}

#[test]
fn a_removed_or_changed_plugin_is_written_again() {
    let node = Node::new();
    node.daemon(&["ready"]);
    let staying = Staying::start(&node, &[]);
    until("installed", || node.configuration().is_some());
    let is_right =
        || fs::read_to_string(node.program()).is_ok_and(|content| content == "the plugin");
    assert!(is_right());
    fs::remove_file(node.program()).unwrap();
    until("written after a removal", is_right);
    // Of the same length, so that only its content differs.
    fs::write(node.program(), "not plugin").unwrap();
    until("written after a change", is_right);
    rounds(&node);
    let log = staying.stop();
    assert!(log.contains("CNI plugin repaired"), "{log}");
    assert!(log.contains("repairs=3"), "{log}");
}

#[test]
fn another_programs_configuration_and_additions_stay() {
    let node = Node::new();
    node.daemon(&["ready"]);
    let staying = Staying::start(&node, &[]);
    until("installed", || node.configuration().is_some());
    // A program that chains a plugin after ours, as service meshes do.
    let mut longer = node.configuration().unwrap();
    let plugins = longer["plugins"].as_array_mut().unwrap();
    plugins.push(json!({"type": "mesh"}));
    fs::remove_file(node.conflist()).unwrap();
    fs::write(node.conflist(), longer.to_string()).unwrap();
    rounds(&node);
    assert_eq!(node.configuration(), Some(longer));
    let theirs = json!({"name": "theirs", "plugins": [{"type": "ptp", "ipam": {"type": "dhcp"}}]});
    fs::write(node.conflist(), theirs.to_string()).unwrap();
    rounds(&node);
    assert_eq!(node.configuration(), Some(theirs));
    let log = staying.stop();
    assert!(!log.contains("CNI configuration repaired"), "{log}");
    let warned = log.matches("belongs to another installation").count();
    assert_eq!(warned, 1, "once, not in every round: {log}");
}

#[test]
fn after_a_reboot_the_configuration_appears_when_the_daemon_serves() {
    let node = Node::new();
    node.daemon(&["ready"]);
    assert_eq!(node.install(&[]).code, Some(0));
    let before = node.configuration();
    assert!(before.is_some());
    node.reboot();
    assert_eq!(
        node.configuration(),
        None,
        "before any program of ours runs"
    );
    let early = node.install(&[]);
    assert_eq!(early.code, Some(1), "no daemon yet");
    assert_eq!(node.configuration(), None);
    node.daemon(&["ready"]);
    assert_eq!(node.install(&[]).code, Some(0));
    assert_eq!(node.configuration(), before);
    let changed = fs::symlink_metadata(node.conflist()).unwrap().modified();
    let age = changed.unwrap().elapsed().unwrap_or_default();
    assert!(
        age < Duration::from_secs(20),
        "runtimes watch the directory, not the file that a link leads to"
    );
}

/// A configuration of ours in a file that survives reboots, changed at this time.
fn leave_on_disk(node: &Node, changed: SystemTime) -> Value {
    let printed = node.install(&["--print"]);
    fs::create_dir_all(node.conflist().parent().unwrap()).unwrap();
    fs::write(node.conflist(), &printed.stdout).unwrap();
    let file = fs::File::options().write(true).open(node.conflist());
    file.unwrap().set_modified(changed).unwrap();
    serde_json::from_str(&printed.stdout).unwrap()
}

#[test]
fn a_configuration_from_before_the_boot_is_removed_at_the_start() {
    let node = Node::new();
    leave_on_disk(
        &node,
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000),
    );
    assert_eq!(node.install(&[]).code, Some(1), "no daemon yet");
    assert_eq!(node.configuration(), None);
    assert!(!node.conflist().exists());
}

#[test]
fn a_short_absence_of_the_daemon_removes_nothing() {
    let node = Node::new();
    let left = leave_on_disk(&node, SystemTime::now());
    let refused = node.install(&[]);
    assert_eq!(refused.code, Some(1), "no daemon yet");
    assert_eq!(node.configuration(), Some(left), "of this boot");
}

#[test]
fn a_configuration_can_be_a_plain_file() {
    let node = Node::new();
    node.daemon(&["ready"]);
    assert_eq!(node.install(&["--persistent"]).code, Some(0));
    assert!(fs::symlink_metadata(node.conflist()).unwrap().is_file());
    assert_eq!(node.call("uninstall", &[]).code, Some(0));
    assert!(!node.conflist().exists());
}
