//! A raw HTTP client, and a manager without a cluster.

use std::{convert::Infallible, net::SocketAddr};

use kube::{Client, client::Body};
use prometheus_client::registry::Registry;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use weft_runtime::{Cluster, Manager};

/// A parsed response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: String,
    headers: Vec<(String, String)>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name)?;
        Some(&found.1)
    }
}

/// Requests a page over a new connection.
pub(crate) async fn get(address: SocketAddr, path: &str) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap();
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.to_ascii_lowercase(), value.to_owned())
    });
    Answer {
        code: status.split(' ').nth(1).unwrap().parse().unwrap(),
        body: body.to_owned(),
        headers: headers.collect(),
    }
}

/// A manager whose cluster never responds.
pub(crate) fn manager(registry: Registry) -> Manager {
    let silent = tower::service_fn(|_: http::Request<Body>| {
        std::future::pending::<Result<http::Response<Body>, Infallible>>()
    });
    let cluster = Cluster::new("nowhere", Client::new(silent, "default"));
    let builder = Manager::builder("proxy", cluster).registry(registry);
    builder.build().unwrap()
}
