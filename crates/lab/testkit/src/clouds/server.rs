//! The HTTP server that all doubles share: calls, faults, counters and the control API.

use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

use super::{
    counters::Counters,
    fault::{Fault, FaultKind, Faults},
};

/// A received request with its whole body.
#[derive(Debug)]
pub(super) struct ApiCall {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) query: Vec<(String, String)>,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl ApiCall {
    async fn read(request: Request<Incoming>) -> Result<Self, hyper::Error> {
        let (head, body) = request.into_parts();
        let query = head.uri.query().unwrap_or_default();
        Ok(Self {
            path: head.uri.path().to_owned(),
            query: pairs(query.as_bytes()),
            method: head.method,
            headers: head.headers,
            body: body.collect().await?.to_bytes(),
        })
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The first value of a query parameter.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        let mut named = self.query.iter().filter(|(key, _)| key == name);
        named.next().map(|(_, value)| value.as_str())
    }
}

/// Name and value pairs of a form or a query.
pub(super) fn pairs(text: &[u8]) -> Vec<(String, String)> {
    form_urlencoded::parse(text).into_owned().collect()
}

/// A response to a call.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) content_type: &'static str,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: String,
    /// The result under which the call is counted: `ok` or an error code.
    pub(super) result: String,
}

impl Reply {
    pub(super) fn json(status: StatusCode, body: &Value) -> Self {
        Self {
            status,
            content_type: "application/json",
            headers: Vec::new(),
            body: body.to_string(),
            result: "ok".to_owned(),
        }
    }

    pub(super) fn counted_as(mut self, result: &str) -> Self {
        result.clone_into(&mut self.result);
        self
    }

    fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::builder()
            .status(self.status)
            .header(header::CONTENT_TYPE, self.content_type);
        for (name, value) in self.headers {
            response = response.header(name, value);
        }
        let body = Full::new(Bytes::from(self.body));
        response.body(body).expect("our own headers are valid")
    }
}

/// The API of one cloud.
pub(super) trait Cloud: Send + Sync + 'static {
    /// The name under which a call is counted.
    fn endpoint(&self, call: &ApiCall) -> &'static str;
    /// Time that a call takes.
    fn latency(&self, endpoint: &str) -> Duration;
    /// Executes a call.
    fn answer(&self, endpoint: &str, call: &ApiCall, fault: Option<&FaultKind>) -> Reply;
    /// An error response with a code.
    fn refuse(&self, code: &str) -> Reply;
    /// Current routes.
    fn table(&self) -> Value;
    /// Replaces the machines.
    fn put_machines(&self, machines: &[u8]) -> Result<(), serde_json::Error>;
    /// Restores the initial routes.
    fn reset(&self);
}

/// A cloud with the parts that all doubles share: counters, faults and the control API.
#[derive(Debug)]
pub(super) struct Double<C> {
    pub(super) cloud: C,
    counters: Mutex<Counters>,
    faults: Mutex<Faults>,
}

/// Closes the connection without a response.
#[derive(Debug, thiserror::Error)]
#[error("connection closed by an injected fault")]
struct Cut;

impl<C: Cloud> Double<C> {
    pub(super) fn new(cloud: C) -> Self {
        Self {
            cloud,
            counters: Mutex::default(),
            faults: Mutex::default(),
        }
    }

    pub(super) fn counters(&self) -> MutexGuard<'_, Counters> {
        self.counters.lock()
    }

    pub(super) fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock()
    }

    pub(super) fn reset(&self) {
        self.cloud.reset();
        self.faults().clear();
        *self.counters() = Counters::default();
    }

    async fn serve(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Cut> {
        let call = ApiCall::read(request).await.map_err(|_| Cut)?;
        if let Some(control) = call.path.strip_prefix("/_double/") {
            return Ok(self.control(control, &call).into_response());
        }
        let endpoint = self.cloud.endpoint(&call);
        let fault = self.faults().take(endpoint);
        let reply = self.reply(endpoint, &call, fault.as_ref()).await;
        let result = reply.as_ref().map_or("cut", |reply| &reply.result);
        self.counters().count(endpoint, result);
        Ok(reply?.into_response())
    }

    async fn reply(
        &self,
        endpoint: &'static str,
        call: &ApiCall,
        fault: Option<&FaultKind>,
    ) -> Result<Reply, Cut> {
        if fault == Some(&FaultKind::DropBefore) {
            return Err(Cut);
        }
        let delay = self.cloud.latency(endpoint) + fault.map(FaultKind::delay).unwrap_or_default();
        if delay > Duration::ZERO {
            tokio::time::sleep(delay).await;
        }
        if let Some(FaultKind::Fail { code }) = fault {
            return Ok(self.cloud.refuse(code));
        }
        let reply = self.cloud.answer(endpoint, call, fault);
        match fault {
            Some(FaultKind::DropAfter) => Err(Cut),
            Some(FaultKind::Garbage) => Ok(garbage()),
            _ => Ok(reply),
        }
    }

    fn control(&self, what: &str, call: &ApiCall) -> Reply {
        let done = match (call.method.as_str(), what) {
            ("GET", "counters") => Ok(self.counters().to_json()),
            ("GET", "table") => Ok(self.cloud.table()),
            ("POST", "faults") => self.add_faults(&call.body),
            ("DELETE", "faults") => {
                self.faults().clear();
                Ok(json!({}))
            }
            ("PUT", "machines") => self.cloud.put_machines(&call.body).map(|()| json!({})),
            ("POST", "reset") => {
                self.reset();
                Ok(json!({}))
            }
            _ => {
                let body = json!({"error": "no such control"});
                return Reply::json(StatusCode::NOT_FOUND, &body);
            }
        };
        match done {
            Ok(body) => Reply::json(StatusCode::OK, &body),
            Err(error) => {
                let body = json!({"error": error.to_string()});
                Reply::json(StatusCode::BAD_REQUEST, &body)
            }
        }
    }

    fn add_faults(&self, body: &[u8]) -> Result<Value, serde_json::Error> {
        let one = serde_json::from_slice::<Fault>(body).map(|fault| vec![fault]);
        let faults: Vec<Fault> = one.or_else(|_| serde_json::from_slice(body))?;
        let mut all = self.faults();
        for fault in faults {
            all.add(fault);
        }
        Ok(json!({}))
    }
}

fn garbage() -> Reply {
    Reply {
        status: StatusCode::OK,
        content_type: "text/html",
        headers: Vec::new(),
        body: "<!doctype html><p>It works!".to_owned(),
        result: "garbage".to_owned(),
    }
}

/// A running server; dropping it stops the server.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) address: SocketAddr,
    task: JoinHandle<Infallible>,
}

impl Running {
    /// Serves on loopback; port 0 takes a free one.
    pub(super) async fn start<C: Cloud>(port: u16, double: Arc<Double<C>>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        Ok(Self {
            address: listener.local_addr()?,
            task: tokio::spawn(accept(listener, double)),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept<C: Cloud>(listener: TcpListener, double: Arc<Double<C>>) -> Infallible {
    // Connections end with this task.
    let mut connections = JoinSet::new();
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve_connection(stream, double.clone()));
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn serve_connection<C: Cloud>(stream: TcpStream, double: Arc<Double<C>>) {
    let service = service_fn(|request| double.serve(request));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // The client sees a broken connection; here it is often an injected fault.
    connection.await.ok();
}
