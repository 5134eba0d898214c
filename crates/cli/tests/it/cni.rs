//! `weft cni`: what lands on a node, and when.

mod bridge;
mod staying;
mod version;

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::{fs::PermissionsExt as _, net::UnixListener},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
};

use serde_json::{Value, json};
use weft_cni::{Command, NetworkConfig};

use crate::weft::{Run, run, weft};

/// A node's root directory with the plugins of the CNI project, and a plugin to install.
struct Node {
    root: tempfile::TempDir,
}

/// The answer of a daemon, until the test changes it.
#[derive(Clone)]
struct Status(Arc<Mutex<Value>>);

impl Status {
    fn set(&self, change: &Value) {
        let mut status = self.0.lock().unwrap();
        for (key, value) in change.as_object().unwrap() {
            status[key] = value.clone();
        }
    }
}

impl Node {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for directory in ["opt/cni/bin", "run/weft"] {
            fs::create_dir_all(root.path().join(directory)).unwrap();
        }
        for program in ["bridge", "ptp", "portmap"] {
            fs::write(root.path().join("opt/cni/bin").join(program), "").unwrap();
        }
        fs::write(root.path().join("plugin"), "the plugin").unwrap();
        Self { root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn conflist(&self) -> PathBuf {
        self.path("etc/cni/net.d/10-weft.conflist")
    }

    fn program(&self) -> PathBuf {
        self.path("opt/cni/bin/weft-cni")
    }

    /// The configuration as a runtime on the node reads it: links lead to the node's own files.
    fn configuration(&self) -> Option<Value> {
        let path = match fs::read_link(self.conflist()) {
            Ok(target) => self.path(target.strip_prefix("/").unwrap().to_str().unwrap()),
            Err(_) => self.conflist(),
        };
        let text = fs::read(path).ok()?;
        Some(serde_json::from_slice(&text).unwrap_or(Value::Null))
    }

    /// A reboot: what is in memory is gone, and so are all processes.
    fn reboot(&self) {
        fs::remove_dir_all(self.path("run")).unwrap();
        fs::create_dir_all(self.path("run/weft")).unwrap();
    }

    /// A daemon that says these, one after the other, and the last for ever.
    fn daemon(&self, servings: &'static [&'static str]) -> Status {
        let listener = UnixListener::bind(self.path("run/weft/ipam.sock")).unwrap();
        let status = Status(Arc::new(Mutex::new(
            json!({"reason": "no addresses", "response": {"ReturnCode": 0, "Message": ""}}),
        )));
        let answered = status.clone();
        thread::spawn(move || {
            let last = servings.last().unwrap();
            let mut servings = servings.iter().chain(std::iter::repeat(last));
            for stream in listener.incoming() {
                let mut reader = BufReader::new(stream.unwrap());
                let mut line = String::new();
                while reader.read_line(&mut line).unwrap() > 2 {
                    line.clear();
                }
                let mut body = answered.0.lock().unwrap().clone();
                if body["serving"].is_null() {
                    body["serving"] = json!(servings.next().unwrap());
                }
                let body = body.to_string();
                let length = body.len();
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}");
                reader.into_inner().write_all(answer.as_bytes()).unwrap();
            }
        });
        status
    }

    fn call(&self, verb: &str, arguments: &[&str]) -> Run {
        let mut command = weft(&["cni", verb]);
        command.arg("--root-dir").arg(self.root.path());
        run(command.args(arguments))
    }

    fn install(&self, arguments: &[&str]) -> Run {
        let plugin = self.path("plugin");
        let usual = ["--binary", plugin.to_str().unwrap(), "--wait", "0"];
        let all: Vec<&str> = usual.into_iter().chain(arguments.iter().copied()).collect();
        self.call("install", &all)
    }
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The outcome that each line reports for its file.
fn outcomes(run: &Run) -> Vec<&str> {
    let lines = run.stdout.lines();
    lines
        .map(|line| line.rsplit(": ").next().unwrap())
        .collect()
}

#[test]
fn plugin_and_configuration_come_and_go() {
    let node = Node::new();
    node.daemon(&["ready"]);
    let installed = node.install(&["--ip-masq", "--mtu", "1450"]);
    assert_eq!(
        (installed.code, outcomes(&installed)),
        (Some(0), vec!["written"; 2])
    );
    assert_eq!(fs::read_to_string(node.program()).unwrap(), "the plugin");
    let mode = fs::metadata(node.program()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    assert_eq!(
        node.configuration().unwrap(),
        json!({"cniVersion": "1.0.0", "name": "weft", "plugins": [
            {"type": "ptp", "ipMasq": true, "mtu": 1450,
             "ipam": {"type": "weft-cni", "socket": "/run/weft/ipam.sock",
                      "queue": "/var/lib/weft/cni-queue"}},
            {"type": "portmap", "capabilities": {"portMappings": true}}]})
    );
    let again = node.install(&["--ip-masq", "--mtu", "1450"]);
    assert_eq!(outcomes(&again), ["unchanged"; 2]);
    let changed = node.install(&[]);
    assert_eq!(outcomes(&changed), ["unchanged", "written"]);
    let kept = node.call("uninstall", &["--keep-binary"]);
    assert_eq!((kept.code, outcomes(&kept)), (Some(0), vec!["removed"]));
    assert!(node.program().exists() && !node.conflist().is_symlink());
    assert_eq!(
        outcomes(&node.call("uninstall", &[])),
        ["not there", "removed"]
    );
    assert_eq!(outcomes(&node.call("uninstall", &[])), ["not there"; 2]);
    let left = fs::read_dir(node.conflist().parent().unwrap()).unwrap();
    assert_eq!(left.count(), 0, "nothing half written is left");
    let left = fs::read_dir(node.path("run/weft")).unwrap();
    assert_eq!(left.count(), 1, "only the socket is left");
}

#[test]
fn a_plugin_that_needs_the_nodes_libraries_is_pointed_out() {
    let node = Node::new();
    node.daemon(&["ready"]);
    let built = env!("CARGO_BIN_EXE_weft");
    let installed = node.call("install", &["--binary", built]);
    assert_eq!(installed.code, Some(0), "{}", installed.stderr);
    let says = installed.stdout.contains("is dynamically linked");
    // By the program loader that it names.
    let program = fs::read(built).unwrap();
    let dynamic = program.windows(8).any(|bytes| bytes == b"/ld-linu");
    assert_eq!(says, dynamic, "{}", installed.stdout);
    assert!(!node.install(&[]).stdout.contains("dynamically linked"));
}

#[test]
fn nothing_appears_while_the_daemon_cannot_serve() {
    let node = Node::new();
    let away = node.install(&[]);
    assert_eq!(away.code, Some(1));
    assert!(away.stderr.contains("is not ready"), "{}", away.stderr);
    node.daemon(&["unavailable"]);
    let unready = node.install(&[]);
    assert_eq!(unready.code, Some(1));
    assert!(
        unready.stderr.contains("no addresses"),
        "{}",
        unready.stderr
    );
    assert!(!node.program().exists() && node.configuration().is_none());
    assert!(!node.conflist().is_symlink());
}

#[test]
fn it_waits_until_the_daemon_can_serve() {
    let node = Node::new();
    node.daemon(&["unavailable", "unavailable", "ready"]);
    let plugin = node.path("plugin");
    let installed = node.call("install", &["--binary", plugin.to_str().unwrap()]);
    assert_eq!(installed.code, Some(0), "{}", installed.stderr);
    assert!(node.configuration().is_some());
}

#[test]
fn a_bridge_is_configured_as_asked_and_our_plugin_understands_it() {
    let node = Node::new();
    let printed = node.install(&[
        "--print",
        "--main-plugin",
        "bridge",
        "--bridge",
        "pods0",
        "--no-portmap",
        "--network-name",
        "podnet",
        "--cni-version",
        "1.1.0",
        "--plugin-log",
        "/var/log/cni",
    ]);
    let conflist: Value = serde_json::from_str(&printed.stdout).unwrap();
    assert_eq!(
        conflist["plugins"],
        json!([{"type": "bridge", "bridge": "pods0", "isGateway": true, "forceAddress": true,
                "hairpinMode": true, "ipMasq": false,
                "ipam": {"type": "weft-cni", "socket": "/run/weft/ipam.sock",
                         "queue": "/var/lib/weft/cni-queue", "log": "/var/log/cni"}}])
    );
    assert!(!node.conflist().is_symlink(), "printing changes nothing");
    // As a runtime does it: one plugin's part with the list's name and version.
    let mut config = conflist["plugins"][0].clone();
    config["name"] = conflist["name"].clone();
    config["cniVersion"] = conflist["cniVersion"].clone();
    let parsed = NetworkConfig::parse(config.to_string().as_bytes(), Command::Gc).unwrap();
    assert_eq!(
        (&*parsed.name, parsed.ipam.log),
        ("podnet", Some("/var/log/cni".into()))
    );
}

#[test]
fn no_flag_can_smuggle_structure_into_the_configuration() {
    let node = Node::new();
    let odd = "/run/\"},{\"type\":\"evil\"}\\\n";
    let printed = node.install(&["--print", "--socket", odd]);
    let conflist: Value = serde_json::from_str(&printed.stdout).unwrap();
    assert_eq!(conflist["plugins"][0]["ipam"]["socket"], odd);
    assert_eq!(conflist["plugins"].as_array().unwrap().len(), 2);
}

#[test]
fn flags_that_make_no_sense_are_refused() {
    let node = Node::new();
    for flag in [
        ["--network-name", "a\",\"b"],
        ["--network-name", ""],
        ["--bridge", "a/b"],
        ["--main-plugin", "ipvlan"],
        ["--mtu", "500"],
        ["--mtu", "70000"],
        ["--cni-version", "0.2.0"],
        ["--socket", "ipam.sock"],
        ["--queue", "/var/../etc"],
        ["--conf-name", "../10-weft.conflist"],
        ["--conf-name", "10-weft.txt"],
        ["--bin-dir", "bin"],
    ] {
        let refused = node.call("install", &flag);
        assert_eq!(refused.code, Some(2), "{flag:?}: {}", refused.stderr);
        assert!(refused.stderr.contains(flag[0]), "{}", refused.stderr);
    }
}

#[test]
fn what_is_somebody_elses_stays() {
    let node = Node::new();
    node.daemon(&["ready"]);
    fs::create_dir_all(node.conflist().parent().unwrap()).unwrap();
    let theirs = json!({"name": "theirs", "plugins": [{"type": "ptp", "ipam": {"type": "dhcp"}}]});
    fs::write(node.conflist(), theirs.to_string()).unwrap();
    for refused in [node.install(&[]), node.call("uninstall", &[])] {
        assert_eq!(refused.code, Some(1));
        assert!(refused.stderr.contains("is not ours"), "{}", refused.stderr);
    }
    assert_eq!(read(&node.conflist()), theirs);
    assert!(!node.program().exists());
}

#[test]
fn a_configuration_that_runtimes_prefer_is_pointed_out() {
    let node = Node::new();
    node.daemon(&["ready"]);
    let other = node.path("etc/cni/net.d/05-other.conf");
    fs::create_dir_all(other.parent().unwrap()).unwrap();
    fs::write(&other, "{}").unwrap();
    let installed = node.install(&[]);
    assert_eq!(installed.code, Some(0));
    assert!(
        installed.stdout.contains("05-other.conf instead"),
        "{}",
        installed.stdout
    );
}

#[test]
fn a_missing_program_is_named_before_anything_changes() {
    let node = Node::new();
    node.daemon(&["ready"]);
    fs::remove_file(node.path("opt/cni/bin/portmap")).unwrap();
    let refused = node.install(&[]);
    assert_eq!(refused.code, Some(1));
    assert!(
        refused.stderr.contains("portmap is not in"),
        "{}",
        refused.stderr
    );
    let refused = node.call("install", &["--binary", "/nowhere/weft-cni"]);
    assert!(
        refused.stderr.contains("/nowhere/weft-cni is not there"),
        "{}",
        refused.stderr
    );
    assert!(!node.program().exists() && node.configuration().is_none());
    assert!(!node.conflist().is_symlink());
}
