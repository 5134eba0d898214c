//! The address daemon as a process, and how plugins ask it.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{process::Running, stage::NODE};

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Daemon {
    pub(crate) process: Running,
    pub(crate) socket: PathBuf,
    pages: SocketAddr,
}

impl Daemon {
    /// Starts it, and does not wait.
    pub(crate) fn start(directory: &Path, master: SocketAddr) -> Self {
        let socket = directory.join("ipam.sock");
        // No earlier daemon answers in its place.
        let _ = std::fs::remove_file(&socket);
        let pages = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let mut command = Running::weft();
        command
            .args(["ipam", &format!("--node-name={NODE}")])
            .arg(format!("--master=http://{master}"))
            .arg(format!("--socket={}", socket.display()))
            .arg(format!("--state-dir={}", state(directory).display()))
            .arg(format!("--root-dir={}", directory.join("root").display()))
            .arg(format!("--metrics-bind-address={pages}"));
        Self {
            process: Running::start(&mut command),
            socket,
            pages,
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        let status = ask(&self.socket, "GET", "/v1/status", &Value::Null);
        status.is_some_and(|status| status["serving"] == "ready")
    }

    pub(crate) fn until_ready(&self) {
        until("the daemon is ready", || self.is_ready());
    }

    /// The value of a series.
    pub(crate) fn count(&self, series: &str) -> f64 {
        let mut stream = TcpStream::connect(self.pages).unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
            .unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        let mut lines = page.lines();
        let value = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value
            .unwrap_or_else(|| panic!("no {series}"))
            .parse()
            .unwrap()
    }
}

/// Directory of a daemon's state.
pub(crate) fn state(directory: &Path) -> PathBuf {
    directory.join("state")
}

pub(crate) fn until(what: &str, test: impl Fn() -> bool) {
    let begun = Instant::now();
    while !test() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Asks a daemon as the plugin does, with a connection for each request; `None` if it does not
/// answer.
pub(crate) fn ask(socket: &Path, method: &str, path: &str, body: &Value) -> Option<Value> {
    let mut stream = UnixStream::connect(socket).ok()?;
    let request = request(method, path, &body.to_string());
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

/// A request that ends its connection.
pub(crate) fn request(method: &str, path: &str, body: &str) -> String {
    let length = body.len();
    format!("{method} {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}")
}

/// The plugin's request for a pod.
pub(crate) fn add_request(pod: &str) -> Value {
    json!({
        "podInterfaceID": container(pod), "infraContainerID": container(pod), "ifname": "eth0",
        "networkName": "podnet",
        "orchestratorContext": {"podName": pod, "podNamespace": "default"},
    })
}

/// The address that a pod gets; `None` without an answer.
pub(crate) fn add(socket: &Path, pod: &str) -> Option<IpAddr> {
    let answer = ask(
        socket,
        "POST",
        "/network/requestipconfigs",
        &add_request(pod),
    )?;
    let code = answer["response"]["ReturnCode"].as_i64()?;
    assert_eq!(code, 0, "ADD of {pod}: {answer}");
    let address = answer["podIPInfo"][0]["PodIPConfig"]["IPAddress"].as_str()?;
    Some(address.parse().unwrap())
}

/// As long as those of container runtimes.
pub(crate) fn container(pod: &str) -> String {
    format!("{pod:0>64}")
}
