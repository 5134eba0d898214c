//! A fake daemon on a real socket: it answers what a test scripts and records the requests.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
};

use serde_json::{Value, json};

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Value,
}

/// The reply to a request.
pub(crate) enum Reply {
    /// A response with this status.
    Answer(u16, String),
    /// These bytes, then the end of the connection.
    Raw(Vec<u8>),
    /// Nothing, until the client gives up.
    Silence,
}

impl Reply {
    pub(crate) fn json(body: &Value) -> Self {
        Self::Answer(200, body.to_string())
    }
}

pub(crate) struct FakeDaemon {
    socket: PathBuf,
    received: Arc<Mutex<Vec<Received>>>,
}

impl FakeDaemon {
    /// Listens until the test ends.
    pub(crate) fn start(
        socket: &Path,
        answer: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let (remembered, answer) = (received.clone(), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (received, answer) = (remembered.clone(), answer.clone());
                thread::spawn(move || serve(stream, &received, &*answer));
            }
        });
        Self {
            socket: socket.to_owned(),
            received,
        }
    }

    /// One that assigns addresses of both families and accepts every release.
    pub(crate) fn granting(socket: &Path) -> Self {
        Self::start(socket, |received| Reply::json(&grant_all(received)))
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// Container ids of the requests to a path, oldest first.
    pub(crate) fn containers(&self, path: &str) -> Vec<String> {
        let received = self.received();
        let there = received.iter().filter(|received| received.path == path);
        there
            .map(|received| {
                received.body["infraContainerID"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            })
            .collect()
    }

    /// Removes the socket, as after a crash and a clean-up.
    pub(crate) fn leave(&self) {
        std::fs::remove_file(&self.socket).unwrap();
    }
}

pub(crate) fn grant_all(received: &Received) -> Value {
    let fine = json!({"ReturnCode": 0, "Message": ""});
    match received.path.as_str() {
        "/network/requestipconfigs" | "/v1/checkipconfigs" => {
            json!({"podIPInfo": [four("10.1.0.7"), six("fd00::7")], "response": fine})
        }
        "/v1/gc" => json!({"released": 2, "response": fine}),
        "/v1/status" => json!({"serving": "ready", "response": fine}),
        _ => json!({"response": fine, "ReturnCode": 0, "Message": ""}),
    }
}

pub(crate) fn four(address: &str) -> Value {
    json!({"PodIPConfig": {"IPAddress": address, "PrefixLength": 24},
           "NetworkContainerPrimaryIPConfig": {
               "IPSubnet": {"IPAddress": "10.1.0.4", "PrefixLength": 24},
               "GatewayIPAddress": "10.1.0.1"},
           "NICType": "InfraNIC"})
}

pub(crate) fn six(address: &str) -> Value {
    json!({"PodIPConfig": {"IPAddress": address, "PrefixLength": 64},
           "NetworkContainerPrimaryIPConfig": {
               "IPSubnet": {"IPAddress": "fd00::4", "PrefixLength": 64},
               "GatewayIPv6Address": "fd00::1"},
           "NICType": "InfraNIC"})
}

fn serve(
    stream: UnixStream,
    received: &Mutex<Vec<Received>>,
    answer: &(dyn Fn(&Received) -> Reply + Sync),
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let Some(request) = read(&mut reader) else {
        return;
    };
    received.lock().unwrap().push(request.clone());
    let mut stream = stream;
    // Some tests close the connection before the response.
    let _ = match answer(&request) {
        Reply::Answer(status, body) => write!(
            stream,
            "HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        ),
        Reply::Raw(bytes) => stream.write_all(&bytes),
        Reply::Silence => reader.read_to_end(&mut Vec::new()).map(|_| ()),
    };
}

fn read(reader: &mut BufReader<UnixStream>) -> Option<Received> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length")?;
    let mut body = vec![0; length.1.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    Some(Received {
        method,
        path,
        headers,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    })
}
