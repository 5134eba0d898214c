//! Runs the program as a container runtime does.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_weft-cni");

/// Output and exit status of a call.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) succeeded: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Standard output, which is JSON or nothing.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error} in {:?}", self.stdout))
    }

    /// The code of the error object that it has to be.
    pub(crate) fn code(&self) -> u64 {
        assert!(!self.succeeded, "{self:?}");
        let object = self.json();
        assert!(object["cniVersion"].is_string(), "{object}");
        assert!(!object["msg"].as_str().unwrap().is_empty(), "{object}");
        object["code"].as_u64().unwrap()
    }

    /// That it worked without a word to the runtime.
    pub(crate) fn assert_silent_success(&self) {
        assert_eq!((self.succeeded, &*self.stdout), (true, ""), "{self:?}");
    }
}

/// A node's directory with socket, queue and log.
pub(crate) struct Node {
    pub(crate) directory: tempfile::TempDir,
}

impl Node {
    pub(crate) fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("ipam.sock")
    }

    pub(crate) fn config(&self, version: &str) -> Value {
        json!({"cniVersion": version, "name": "podnet", "type": "ptp",
               "ipam": {"type": "weft-cni", "socket": self.socket(),
                        "queue": self.path("queue"), "log": self.path("log")}})
    }

    /// Calls a command for a container with the configuration of CNI 1.1.0.
    pub(crate) fn call(&self, command: &str, container: &str) -> Ended {
        self.call_with(command, container, &self.config("1.1.0"))
    }

    pub(crate) fn call_with(&self, command: &str, container: &str, config: &Value) -> Ended {
        let mut program = Command::new(PROGRAM);
        program.current_dir(self.directory.path()).envs([
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", container),
            ("CNI_NETNS", "/run/netns/pod"),
            ("CNI_IFNAME", "eth0"),
            (
                "CNI_ARGS",
                "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p0;K8S_POD_UID=u-1",
            ),
        ]);
        run(&mut program, config.to_string().as_bytes())
    }

    /// The releases that wait on disk.
    pub(crate) fn queued(&self) -> Vec<String> {
        let files = files(&self.path("queue"));
        let read = |path: &PathBuf| -> Value {
            serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
        };
        let contents = files.iter().map(read);
        contents
            .map(|content| {
                content["request"]["infraContainerID"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            })
            .collect()
    }
}

/// Files of a directory, sorted by name; empty if it does not exist.
pub(crate) fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Runs a plugin with this on standard input.
pub(crate) fn run(program: &mut Command, input: &[u8]) -> Ended {
    let mut child = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        // It need not read all of it.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().unwrap()
    });
    Ended {
        succeeded: output.status.success(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
