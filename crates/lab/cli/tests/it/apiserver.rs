//! `weft-lab apiserver` as a process: starts, serves, listens to signals, stops.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::TcpListener,
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
    time::Duration,
};

use k8s_openapi::api::{
    authentication::v1::SelfSubjectReview,
    core::v1::{ConfigMap, Namespace, Service},
};
use kube::{
    Api, Client, Config,
    api::{ListParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};

use weft_testkit::Flood;

use crate::program::{lab, run};

/// A running server; killed if a test forgets to stop it.
struct Server {
    child: Child,
    /// Until a test closes it.
    log: Option<BufReader<ChildStderr>>,
}

impl Server {
    fn start(kubeconfig: &Path) -> Self {
        Self::start_with(kubeconfig, &[])
    }

    fn start_with(kubeconfig: &Path, flags: &[&str]) -> Self {
        let mut server = Self::launch(kubeconfig, "info", flags);
        server.wait_for_line("serving the Kubernetes API");
        server
    }

    /// With the usual number of file descriptors of a service, and no way to raise it.
    fn launch_limited(kubeconfig: &Path, flags: &[&str]) -> Self {
        let mut command = Command::new("prlimit");
        command.args(["--nofile=1024:1024", env!("CARGO_BIN_EXE_weft-lab")]);
        command.args(["apiserver", "--bind", "127.0.0.1:0", "--log-level", "info"]);
        Self::spawn(command, kubeconfig, flags)
    }

    fn launch(kubeconfig: &Path, log_level: &str, flags: &[&str]) -> Self {
        let command = lab(&[
            "apiserver",
            "--bind",
            "127.0.0.1:0",
            "--log-level",
            log_level,
        ]);
        Self::spawn(command, kubeconfig, flags)
    }

    fn spawn(mut command: Command, kubeconfig: &Path, flags: &[&str]) -> Self {
        command.arg("--kubeconfig").arg(kubeconfig).args(flags);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = child.stderr.take().map(BufReader::new);
        Self { child, log }
    }

    /// Reads the log up to a line that holds the text, and returns it.
    fn wait_for_line(&mut self, text: &str) -> String {
        let log = self.log.as_mut().unwrap();
        let mut read = String::new();
        loop {
            let start = read.len();
            let length = log.read_line(&mut read).unwrap();
            assert_ne!(length, 0, "the log ended without {text:?}:\n{read}");
            if read[start..].contains(text) {
                return read.split_off(start);
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for its end, but not for ever.
    fn exit_code(mut self) -> Option<i32> {
        let process = pidfd_open(self.pid(), PidfdFlags::empty()).unwrap();
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        let limit = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        assert_eq!(
            poll(&mut ended, Some(&limit)).unwrap(),
            1,
            "it does not end"
        );
        self.child.wait().unwrap().code()
    }

    fn pid(&self) -> Pid {
        i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails when it has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn client(kubeconfig: &Path) -> Client {
    // The library does not know of the provider that the program installs.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .unwrap();
    Client::try_from(config).unwrap()
}

async fn namespaces(kubeconfig: &Path) -> Vec<String> {
    let api = Api::<Namespace>::all(client(kubeconfig).await);
    let list = api.list(&ListParams::default()).await.unwrap();
    list.items
        .into_iter()
        .filter_map(|namespace| namespace.metadata.name)
        .collect()
}

#[tokio::test]
async fn the_kubeconfig_it_writes_leads_a_client_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let server = Server::start(&kubeconfig);
    let mode = fs::metadata(&kubeconfig).unwrap().permissions().mode();
    assert_eq!(
        mode & 0o777,
        0o600,
        "others can read an administrator's key"
    );
    let namespaces = namespaces(&kubeconfig).await;
    assert!(
        namespaces.iter().any(|name| name == "kube-system"),
        "{namespaces:?}"
    );
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_finish_a_request_keep_no_other_client_out() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let socket = directory.path().join("socket");
    let mut server =
        Server::launch_limited(&kubeconfig, &["--unix-socket", socket.to_str().unwrap()]);
    server.wait_for_line("serving the Kubernetes API");
    let config = Kubeconfig::read_from(&kubeconfig).unwrap();
    let url = config.clusters[0].cluster.as_ref().unwrap().server.clone();
    let address = url
        .unwrap()
        .strip_prefix("https://")
        .unwrap()
        .parse()
        .unwrap();
    let flooding =
        move || [Flood::tcp(address, 2_000), Flood::unix(&socket, 2_000)].map(Result::unwrap);
    let floods = tokio::task::spawn_blocking(flooding).await.unwrap();
    let listed = tokio::time::timeout(Duration::from_secs(20), namespaces(&kubeconfig)).await;
    assert!(!listed.expect("an answer").is_empty());
    // Half of the descriptors, for both listeners together.
    for mut flood in floods {
        assert!(flood.is_cut_to(512));
    }
    server.signal(Signal::TERM);
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn a_unix_socket_deletes_no_file_and_is_its_owners_only() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let precious = directory.path().join("precious");
    fs::write(&precious, "data").unwrap();
    let flags = ["--unix-socket", precious.to_str().unwrap()];
    let server = Server::launch(&kubeconfig, "info", &flags);
    assert_ne!(server.exit_code(), Some(0), "the path is taken by a file");
    assert_eq!(fs::read_to_string(&precious).unwrap(), "data");
    let socket = directory.path().join("socket");
    let _server = Server::start_with(&kubeconfig, &["--unix-socket", socket.to_str().unwrap()]);
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn every_write_it_acknowledged_survives_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let data = directory.path().join("data");
    let flags = ["--data-dir", data.to_str().unwrap()];
    let server = Server::start_with(&kubeconfig, &flags);
    let maps = Api::<ConfigMap>::default_namespaced(client(&kubeconfig).await);
    let (acknowledge, mut acknowledged) = tokio::sync::mpsc::unbounded_channel();
    for writer in 0..4 {
        let (maps, acknowledge) = (maps.clone(), acknowledge.clone());
        tokio::spawn(async move {
            for number in 0.. {
                let mut map = ConfigMap::default();
                map.metadata.name = Some(format!("map-{writer}-{number}"));
                match maps.create(&PostParams::default(), &map).await {
                    Ok(made) => acknowledge.send(made.metadata).unwrap(),
                    Err(_) => return,
                }
            }
        });
    }
    drop(acknowledge);
    let mut known = Vec::new();
    while known.len() < 40 {
        known.push(acknowledged.recv().await.unwrap());
    }
    server.signal(Signal::KILL);
    assert_eq!(server.exit_code(), None, "killed in the middle of writing");
    while let Some(made) = acknowledged.recv().await {
        known.push(made);
    }
    let server = Server::start_with(&kubeconfig, &flags);
    let maps = Api::<ConfigMap>::default_namespaced(client(&kubeconfig).await);
    let list = maps.list(&ListParams::default()).await.unwrap();
    let kept: Vec<_> = list.items.into_iter().map(|map| map.metadata).collect();
    for made in &known {
        assert!(
            kept.contains(made),
            "{:?} of {} is lost",
            made.name,
            known.len()
        );
    }
    drop(server);
}

#[tokio::test]
async fn its_flags_have_the_names_and_effects_of_upstreams() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let tokens = directory.path().join("tokens.csv");
    fs::write(&tokens, "s3cret,jane,1,\"system:masters\"\n").unwrap();
    let server = Server::start_with(
        &kubeconfig,
        &[
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.7.0.0/16,fd07::/112",
            "--token-auth-file",
            tokens.to_str().unwrap(),
        ],
    );
    let services = Api::<Service>::default_namespaced(client(&kubeconfig).await);
    let own = services.get("kubernetes").await.unwrap().spec.unwrap();
    assert_eq!(own.cluster_ip.as_deref(), Some("10.7.0.1"));
    let mut config = Config::from_custom_kubeconfig(
        Kubeconfig::read_from(&kubeconfig).unwrap(),
        &KubeConfigOptions::default(),
    )
    .await
    .unwrap();
    config.auth_info = kube::config::AuthInfo {
        token: Some("s3cret".to_owned().into()),
        ..Default::default()
    };
    let jane = Api::<SelfSubjectReview>::all(Client::try_from(config).unwrap());
    let review = jane
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .unwrap();
    let user = review.status.unwrap().user_info.unwrap();
    assert_eq!(user.username.as_deref(), Some("jane"));
    drop(server);
}

#[test]
fn both_signals_to_stop_end_it_cleanly() {
    let directory = tempfile::tempdir().unwrap();
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = Server::start(&directory.path().join("kubeconfig"));
        server.signal(signal);
        server.wait_for_line("stopping");
        assert_eq!(server.exit_code(), Some(0));
    }
}

#[test]
fn a_signal_to_stop_is_obeyed_while_requests_are_worked_on() {
    use std::io::Write as _;
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let flags = ["--unix-socket", socket.to_str().unwrap()];
    let mut server = Server::start_with(&directory.path().join("kubeconfig"), &flags);
    // As many as fit: longer work than the server may take to stop.
    let containers = vec!["{}"; 1_040_000].join(",");
    let body =
        format!("{{\"metadata\":{{\"name\":\"p\"}},\"spec\":{{\"containers\":[{containers}]}}}}");
    let request = format!(
        "POST /api/v1/namespaces/default/pods HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let requests: Vec<UnixStream> = (0..3)
        .map(|_| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    server.signal(Signal::TERM);
    server.wait_for_line("stopping");
    assert_eq!(server.exit_code(), Some(0));
    drop(requests);
}

#[test]
fn a_second_signal_to_stop_ends_it_at_once() {
    // A pipe without a reader holds the start up, so that a clean stop cannot come first.
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("kubeconfig");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let mut server = Server::launch(&pipe, "debug", &[]);
    server.wait_for_line("listening to signals");
    server.signal(Signal::TERM);
    server.wait_for_line("stopping");
    server.signal(Signal::TERM);
    server.wait_for_line("ending at once");
    assert_eq!(server.exit_code(), Some(3));
}

#[test]
fn every_flag_is_a_setting_that_config_prints() {
    let help = run(&mut lab(&["apiserver", "--help"])).stdout;
    let own = help.split("Global options:").next().unwrap();
    let flags = own
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("--"));
    let flags = flags
        .map(|flag| flag.split(['[', '=', ':', ';', ',']).next().unwrap())
        .filter(|f| *f != "help");
    let mut expected: Vec<String> = flags.map(camel_case).collect();
    let printed = run(&mut lab(&["config", "--output", "json"])).stdout;
    let rows: Vec<serde_json::Value> = serde_json::from_str(&printed).unwrap();
    let mut keys: Vec<&str> = rows
        .iter()
        .filter(|row| row["section"] == "apiserver")
        .map(|row| row["key"].as_str().unwrap())
        .collect();
    // The help of one flag may name another.
    expected.sort();
    expected.dedup();
    keys.sort_unstable();
    assert_eq!(keys, expected);
    assert!(keys.contains(&"dataDir"));
}

fn camel_case(flag: &str) -> String {
    let mut words = flag.split('-');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| {
        name + &word[..1].to_uppercase() + &word[1..]
    })
}

#[test]
fn the_log_level_changes_while_it_runs() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(&directory.path().join("kubeconfig"));
    server.signal(Signal::USR1);
    let raised = server.wait_for_line("log filter changed");
    assert!(raised.contains("filter=debug"), "{raised}");
    server.signal(Signal::USR2);
    let restored = server.wait_for_line("log filter changed");
    assert!(restored.contains("filter=info"), "{restored}");
}

#[test]
fn a_log_without_a_reader_does_no_harm() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(&directory.path().join("kubeconfig"));
    server.log = None;
    // Both are logged, to a pipe without reader.
    server.signal(Signal::USR1);
    server.signal(Signal::TERM);
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn a_taken_port_is_a_failure_with_its_cause() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let run = run(&mut lab(&["apiserver", "--bind", &address]));
    assert_eq!(run.code, Some(1));
    assert_eq!(
        run.stderr,
        format!(
            "error: cannot run the API server\n  cause: cannot listen\n  cause: cannot bind {address}\n  \
             cause: Address already in use (os error 98)\n"
        )
    );
}

#[test]
fn an_address_that_other_machines_reach_needs_rights_or_a_flag() {
    let refused = run(&mut lab(&["apiserver", "--bind", "0.0.0.0:0"]));
    assert_eq!(refused.code, Some(1));
    let cause = "cause: cannot listen on 0.0.0.0:0 with AlwaysAllow";
    assert!(refused.stderr.contains(cause), "{}", refused.stderr);
    // Past the guard the next thing that fails is the kubeconfig.
    let kubeconfig = "--kubeconfig=/absent/kubeconfig";
    for more in [
        "--allow-unauthenticated-remote",
        "--authorization-mode=RBAC",
    ] {
        let passed = run(&mut lab(&[
            "apiserver",
            "--bind=0.0.0.0:0",
            more,
            kubeconfig,
        ]));
        assert_eq!(passed.code, Some(1));
        assert!(
            passed.stderr.contains("cannot write kubeconfig"),
            "{}",
            passed.stderr
        );
    }
}

#[test]
fn an_invalid_signing_key_is_an_error() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let flag = "--service-account-signing-key-file";
    let run = run(&mut lab(&["apiserver", "--bind=127.0.0.1:0", flag, path]));
    assert_eq!(run.code, Some(1));
    let cause = "cause: signing key is not a PEM private key";
    assert!(run.stderr.contains(cause), "{}", run.stderr);
}

#[test]
fn a_kubeconfig_that_cannot_be_written_is_a_failure() {
    let run = run(&mut lab(&[
        "apiserver",
        "--bind",
        "127.0.0.1:0",
        "--kubeconfig",
        "/proc/no",
    ]));
    assert_eq!(run.code, Some(1));
    let cause = "cause: cannot write kubeconfig /proc/no\n";
    assert!(run.stderr.contains(cause), "{}", run.stderr);
}
