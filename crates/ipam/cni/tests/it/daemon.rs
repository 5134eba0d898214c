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
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Value,
}

/// The reply to a request.
pub(crate) enum Say {
    /// A response with this status.
    Answer(u16, String),
    /// These bytes, then the end of the connection.
    Raw(Vec<u8>),
    /// Nothing, until the client gives up.
    Silence,
}

impl Say {
    pub(crate) fn json(body: &Value) -> Self {
        Self::Answer(200, body.to_string())
    }
}

pub(crate) struct FakeDaemon {
    socket: PathBuf,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl FakeDaemon {
    /// Listens until the test ends.
    pub(crate) fn start(
        socket: &Path,
        answer: impl Fn(&Asked) -> Say + Send + Sync + 'static,
    ) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (remembered, answer) = (asked.clone(), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (asked, answer) = (remembered.clone(), answer.clone());
                thread::spawn(move || serve(stream, &asked, &*answer));
            }
        });
        Self {
            socket: socket.to_owned(),
            asked,
        }
    }

    /// One that assigns addresses of both families and accepts every release.
    pub(crate) fn generous(socket: &Path) -> Self {
        Self::start(socket, |asked| Say::json(&generous(asked)))
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// Container ids of the requests to a path, oldest first.
    pub(crate) fn containers(&self, path: &str) -> Vec<String> {
        let asked = self.asked();
        let there = asked.iter().filter(|asked| asked.path == path);
        there
            .map(|asked| asked.body["infraContainerID"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Removes the socket, as after a crash and a clean-up.
    pub(crate) fn leave(&self) {
        std::fs::remove_file(&self.socket).unwrap();
    }
}

pub(crate) fn generous(asked: &Asked) -> Value {
    let fine = json!({"ReturnCode": 0, "Message": ""});
    match asked.path.as_str() {
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

fn serve(stream: UnixStream, asked: &Mutex<Vec<Asked>>, answer: &(dyn Fn(&Asked) -> Say + Sync)) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let Some(request) = read(&mut reader) else {
        return;
    };
    asked.lock().unwrap().push(request.clone());
    let mut stream = stream;
    // Some tests close the connection before the response.
    let _ = match answer(&request) {
        Say::Answer(status, body) => write!(
            stream,
            "HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        ),
        Say::Raw(bytes) => stream.write_all(&bytes),
        Say::Silence => reader.read_to_end(&mut Vec::new()).map(|_| ()),
    };
}

fn read(reader: &mut BufReader<UnixStream>) -> Option<Asked> {
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
    Some(Asked {
        method,
        path,
        headers,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    })
}
