//! The address daemon as a process: killed, starved of disk, asked by its tools.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read as _, Write as _},
    net::IpAddr,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use http::Method;
use kube::Client;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};
use weft_apiserver::ApiServer;
use weft_testkit::{lab, wait_until};
use weft_testserver::call;

use crate::weft::{run, weft};

const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const CONFIGS: &str =
    "/apis/ipam.weft.dev/v1alpha1/namespaces/kube-system/nodenetworkconfigs";
pub(crate) const DEFINITION: &str = include_str!("../../../../deploy/crds/nodenetworkconfigs.yaml");

/// An API server with a node that has a hundred addresses, and a place for its daemon.
struct Stage {
    runtime: tokio::runtime::Runtime,
    client: Client,
    master: String,
    directory: tempfile::TempDir,
    _server: ApiServer,
}

impl Stage {
    fn new() -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let inside = runtime.enter();
        let server = ApiServer::builder().build();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let master = format!("http://{}", listener.local_addr().unwrap());
        server.serve_http(tokio::net::TcpListener::from_std(listener).unwrap());
        let client = server.client();
        drop(inside);
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("etc/machine-id", "machine"),
            ("proc/sys/kernel/random/boot_id", "boot"),
        ] {
            let path = directory.path().join("root").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let stage = Self {
            client,
            runtime,
            master,
            directory,
            _server: server,
        };
        stage.furnish();
        stage
    }

    fn call(&self, method: Method, path: &str, body: &Value) -> Result<Value, kube::Error> {
        self.runtime
            .block_on(call(&self.client, method, path, body))
    }

    fn furnish(&self) {
        let definition: Value = serde_saphyr::from_str(DEFINITION).unwrap();
        let all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        self.call(Method::POST, all, &definition).unwrap();
        wait_until("the definition is served", PATIENCE, || {
            self.call(Method::GET, CONFIGS, &Value::Null).is_ok()
        });
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
        let node = self.call(Method::POST, "/api/v1/nodes", &node).unwrap();
        let owner = json!({
            "apiVersion": "v1", "kind": "Node", "name": "n1",
            "uid": node["metadata"]["uid"], "controller": true,
        });
        let config = json!({
            "apiVersion": "ipam.weft.dev/v1alpha1", "kind": "NodeNetworkConfig",
            "metadata": {"name": "n1", "namespace": "kube-system", "ownerReferences": [owner]},
            "spec": {"requestedIPCount": 100},
        });
        self.call(Method::POST, CONFIGS, &config).unwrap();
        let entries: Vec<Value> = (1..=100)
            .map(|last| json!({"name": format!("id-{last}"), "ip": format!("10.1.0.{last}")}))
            .collect();
        let status = json!({"status": {
            "scaler": {"batchSize": 100, "requestThresholdPercent": 50, "maxIPCount": 100},
            "networkContainers": [{
                "id": "nc", "subnetName": "pool", "subnetAddressSpace": "10.1.0.0/16",
                "ipAssignments": entries, "version": 1,
            }],
        }});
        let path = format!("{CONFIGS}/n1/status");
        self.call(Method::PATCH, &path, &status).unwrap();
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("ipam.sock")
    }

    fn control(&self) -> PathBuf {
        self.directory.path().join("control.sock")
    }

    fn start(&self) -> Daemon {
        let daemon = self.launch();
        wait_until("the daemon is ready", PATIENCE, || daemon.is_ready());
        daemon
    }

    /// Starts a daemon that may not become ready.
    fn launch(&self) -> Daemon {
        let inside = self.directory.path();
        let mut command = Command::new("sh");
        // A full disk is played by a limit of file sizes, whose signal would end the process.
        command
            .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"])
            .arg(env!("CARGO_BIN_EXE_weft"))
            .args(["ipam", "--node-name=n1", "--cooldown=0s", "--add-wait=2s"])
            .arg(format!("--master={}", self.master))
            .arg(format!("--socket={}", self.socket().display()))
            .arg(format!("--state-dir={}", inside.join("state").display()))
            .arg(format!("--cni-queue={}", inside.join("queue").display()))
            .arg(format!("--root-dir={}", inside.join("root").display()))
            .arg(format!("--control-socket={}", self.control().display()))
            .arg("--metrics-bind-address=127.0.0.1:0")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Daemon {
            child: command.spawn().unwrap(),
            socket: self.socket(),
        }
    }
}

struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks a daemon; `None` if it does not answer.
pub(crate) fn ask(socket: &Path, method: &str, path: &str, body: &Value) -> Option<Value> {
    let mut stream = UnixStream::connect(socket).ok()?;
    let body = body.to_string();
    let length = body.len();
    let request = format!("{method} {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

fn request(name: &str) -> Value {
    json!({
        "podInterfaceID": name, "infraContainerID": name, "ifname": "eth0",
        "networkName": "podnet",
        "orchestratorContext": {"podName": name, "podNamespace": "default"},
    })
}

/// The address, or the return code; `None` if there is no answer.
pub(crate) fn add(socket: &Path, name: &str) -> Option<Result<IpAddr, i64>> {
    let answer = ask(socket, "POST", "/network/requestipconfigs", &request(name))?;
    let code = answer["response"]["ReturnCode"].as_i64()?;
    if code != 0 {
        return Some(Err(code));
    }
    let address = &answer["podIPInfo"][0]["PodIPConfig"]["IPAddress"];
    Some(Ok(address.as_str()?.parse().unwrap()))
}

fn delete(socket: &Path, name: &str) -> Option<i64> {
    let answer = ask(socket, "POST", "/network/releaseipconfigs", &request(name))?;
    answer["ReturnCode"].as_i64()
}

impl Daemon {
    fn is_ready(&self) -> bool {
        let status = ask(&self.socket, "GET", "/v1/status", &Value::Null);
        status.is_some_and(|status| status["serving"] == "ready")
    }

    /// Keys and their addresses.
    fn assigned(&self) -> BTreeMap<String, IpAddr> {
        let filter = json!({"IPConfigStateFilter": ["Assigned"]});
        let answer = ask(&self.socket, "POST", "/debug/ipaddresses", &filter).unwrap();
        let all = answer["IPConfigurationStatus"].as_array().unwrap();
        all.iter()
            .map(|entry| {
                let pod = entry["PodInfo"]["podName"].as_str().unwrap().to_owned();
                (pod, entry["IPAddress"].as_str().unwrap().parse().unwrap())
            })
            .collect()
    }

    fn limit_files(&self, limit: Option<u64>) {
        let pid = Pid::from_child(&self.child);
        let limit = Rlimit {
            current: limit,
            maximum: None,
        };
        prlimit(Some(pid), Resource::Fsize, limit).unwrap();
    }
}

/// State of a pod as its client knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    Asked,
    Has(IpAddr),
    Deleting,
    Deleted,
}

type Ledger = Arc<Mutex<BTreeMap<String, Known>>>;

/// Adds and deletes until the daemon is gone, and writes down every answer.
fn storm(socket: &Path, worker: &str, ledger: &Ledger, stop: &AtomicBool) {
    let note = |name: &str, known| ledger.lock().unwrap().insert(name.to_owned(), known);
    for number in 0.. {
        if stop.load(Relaxed) {
            return;
        }
        let name = format!("{worker}-{number}");
        note(&name, Known::Asked);
        match add(socket, &name) {
            Some(Ok(address)) => note(&name, Known::Has(address)),
            Some(Err(code)) => panic!("ADD of {name}: {code}"),
            None => return,
        };
        if number % 8 != 0 {
            note(&name, Known::Deleting);
            match delete(socket, &name) {
                Some(code) => assert_eq!(code, 0),
                None => return,
            }
            note(&name, Known::Deleted);
        }
        if number > 40 {
            return;
        }
    }
}

#[test]
fn kill_9_during_a_storm_loses_and_doubles_nothing() {
    let stage = Stage::new();
    let ledger: Ledger = Arc::default();
    let mut seed = fastrand::Rng::with_seed(7);
    for round in 0..10 {
        let mut daemon = stage.start();
        check(&stage, &daemon, &ledger);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for worker in 0..6 {
                let (ledger, stop, socket) = (&ledger, &stop, stage.socket());
                let worker = format!("r{round}w{worker}");
                scope.spawn(move || storm(&socket, &worker, ledger, stop));
            }
            std::thread::sleep(Duration::from_millis(seed.u64(20..150)));
            daemon.child.kill().unwrap();
            daemon.child.wait().unwrap();
            stop.store(true, Relaxed);
        });
        // Later rounds need room.
        let daemon = stage.start();
        check(&stage, &daemon, &ledger);
        let mut ledger = ledger.lock().unwrap();
        for (name, known) in ledger.iter_mut() {
            if *known != Known::Deleted {
                assert_eq!(delete(&daemon.socket, name), Some(0));
                *known = Known::Deleted;
            }
        }
    }
    let answered = ledger.lock().unwrap().len();
    assert!(answered > 20, "only {answered} names in all storms");
}

/// Compares the daemon, what it answered, and the NodeNetworkConfig.
fn check(stage: &Stage, daemon: &Daemon, ledger: &Ledger) {
    let assigned = daemon.assigned();
    let addresses: BTreeSet<IpAddr> = assigned.values().copied().collect();
    assert_eq!(
        addresses.len(),
        assigned.len(),
        "an address has two owners: {assigned:?}"
    );
    for (name, known) in ledger.lock().unwrap().iter() {
        match known {
            Known::Has(address) => {
                assert_eq!(assigned.get(name), Some(address), "{name} was answered");
                assert_eq!(
                    add(&daemon.socket, name),
                    Some(Ok(*address)),
                    "{name}, again"
                );
            }
            Known::Deleted => assert_eq!(assigned.get(name), None, "{name} was deleted"),
            Known::Asked | Known::Deleting => {}
        }
    }
    let path = format!("{CONFIGS}/n1");
    let config = stage.call(Method::GET, &path, &Value::Null).unwrap();
    let listed = config["spec"]["ipsNotInUse"].as_array();
    let offered: Vec<&str> = listed
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let containers = config["status"]["networkContainers"].as_array().unwrap();
    let entries = containers
        .iter()
        .flat_map(|container| container["ipAssignments"].as_array().unwrap());
    let ours: BTreeSet<IpAddr> = entries
        .map(|entry| entry["ip"].as_str().unwrap().parse().unwrap())
        .collect();
    assert!(
        addresses.is_subset(&ours),
        "{:?} are not this node's",
        addresses.difference(&ours)
    );
    for address in addresses {
        let name = format!("id-{}", address.to_string().rsplit('.').next().unwrap());
        assert!(
            !offered.contains(&name.as_str()),
            "{address} is a pod's and offered"
        );
    }
}

#[test]
fn a_full_disk_closes_add_leaves_del_open_and_is_got_over() {
    let stage = Stage::new();
    let daemon = stage.start();
    let socket = stage.socket();
    let kept = add(&socket, "kept").unwrap().unwrap();
    assert!(add(&socket, "going").unwrap().is_ok());
    daemon.limit_files(Some(512));
    assert_eq!(
        add(&socket, "new"),
        Some(Err(32)),
        "nothing can be remembered"
    );
    assert_eq!(delete(&socket, "going"), Some(0));
    assert!(!daemon.is_ready());
    daemon.limit_files(None);
    wait_until("the disk is written again", PATIENCE, || daemon.is_ready());
    let new = add(&socket, "new").unwrap().unwrap();
    drop(daemon);
    let daemon = stage.start();
    let expected = BTreeMap::from([("kept".to_owned(), kept), ("new".to_owned(), new)]);
    assert_eq!(daemon.assigned(), expected);
}

#[test]
fn releases_that_waited_are_done_before_the_first_question_is_answered() {
    let stage = Stage::new();
    let mut daemon = stage.start();
    let kept = add(&stage.socket(), "kept").unwrap().unwrap();
    assert!(add(&stage.socket(), "gone").unwrap().is_ok());
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    let queue = weft_cni::Queue::new(stage.directory.path().join("queue"));
    let gone = serde_json::from_value(request("gone")).unwrap();
    queue.push(&gone).unwrap();
    let daemon = stage.start();
    assert_eq!(
        daemon.assigned(),
        BTreeMap::from([("kept".to_owned(), kept)])
    );
    assert!(queue.is_empty().unwrap());
}

#[test]
fn orders_stop_the_daemon_and_start_it_again_in_the_same_process() {
    let stage = Stage::new();
    let daemon = stage.start();
    let kept = add(&stage.socket(), "kept");
    let control = format!("--control-socket={}", stage.control().display());
    let order = |word: &str| {
        let answer = run(&mut weft(&["node", word, "ipam", &control]));
        assert_eq!(answer.code, Some(0), "{}", answer.stderr);
        answer.stdout
    };
    assert_eq!(order("stop"), "ipam: stopped\n");
    assert_eq!(add(&stage.socket(), "kept"), None, "no daemon answers");
    order("start");
    wait_until("the daemon is ready again", PATIENCE, || daemon.is_ready());
    assert_eq!(add(&stage.socket(), "kept"), kept);
}

#[test]
fn a_read_only_state_directory_closes_add_leaves_del_open_and_is_got_over() {
    lab::inside(|lab| {
        let stage = Stage::new();
        let socket = stage.socket();
        let state = stage.directory.path().join("state");
        fs::create_dir(&state).unwrap();
        let state = state.to_str().unwrap();
        lab.program("mount", &["-t", "tmpfs", "tmpfs", state]);
        let daemon = stage.start();
        let kept = add(&socket, "kept").unwrap().unwrap();
        assert!(add(&socket, "going").unwrap().is_ok());
        drop(daemon);
        lab.program("mount", &["-o", "remount,ro", state]);
        let daemon = stage.launch();
        wait_until("deletions go on", PATIENCE, || {
            delete(&socket, "going") == Some(0)
        });
        assert_eq!(add(&socket, "new"), Some(Err(32)));
        assert!(!daemon.is_ready());
        lab.program("mount", &["-o", "remount,rw", state]);
        wait_until("the disk is written again", PATIENCE, || daemon.is_ready());
        let expected = BTreeMap::from([("kept".to_owned(), kept)]);
        assert_eq!(daemon.assigned(), expected);
    });
}

#[test]
fn status_and_explain_ask_the_running_daemon() {
    let stage = Stage::new();
    let socket = format!("--socket={}", stage.socket().display());
    let away = run(&mut weft(&["ipam", "status", &socket]));
    assert_eq!(away.code, Some(1));
    assert!(
        away.stderr.contains("cannot reach the daemon"),
        "{}",
        away.stderr
    );
    let _daemon = stage.start();
    let address = add(&stage.socket(), "web-0").unwrap().unwrap();
    let status = run(&mut weft(&["ipam", "status", &socket]));
    assert_eq!(status.code, Some(0), "{}", status.stderr);
    let counts: Vec<&str> = status.stdout.split_whitespace().take(7).collect();
    assert_eq!(
        counts,
        ["ready", "addresses", "IPv4", "assigned", "1", "free", "99"]
    );
    let explained = run(&mut weft(&["ipam", "explain", "web-0", &socket]));
    let line = format!("has {address} (assigned) as podnet/web-0/eth0");
    assert!(explained.stdout.contains(&line), "{}", explained.stdout);
    let wrong = run(&mut weft(&["ipam", "explain", "No Name", &socket]));
    assert_eq!(wrong.code, Some(2), "{}", wrong.stderr);
    let open = run(&mut weft(&[
        "ipam",
        "--loopback-bind-address=0.0.0.0:1",
        &socket,
    ]));
    assert_eq!(open.code, Some(2), "{}", open.stderr);
}
