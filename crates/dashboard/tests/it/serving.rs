//! The HTTP server: addresses, link, shutdown and floods.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use weft_dashboard::{BindError, Board, DashboardServer, Pages, Reach, Token};

use crate::{access::RecordingControl, fixture};

fn pages() -> Pages {
    Pages::new(Board::new(fixture::playground(1, 2)))
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn a_remote_address_is_refused_unless_allowed() {
    for open in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let refused = DashboardServer::bind(pages(), address(open), Reach::Loopback);
        assert!(matches!(refused, Err(BindError::NotLoopback(_))), "{open}");
    }
    let meant = DashboardServer::bind(pages(), address("0.0.0.0:0"), Reach::Anywhere);
    assert_ne!(meant.unwrap().address().port(), 0);
}

#[test]
fn the_link_has_the_token_only_where_it_is_of_use() {
    let controlled = || pages().control(RecordingControl::default(), Token::random().unwrap());
    let here = DashboardServer::bind(controlled(), address("127.0.0.1:0"), Reach::Loopback);
    let here = here.unwrap();
    let (before, token) = here
        .url()
        .split_once("#token=")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    assert_eq!(before, format!("http://{}/", here.address()));
    assert_eq!(token.len(), 32);
    let there = DashboardServer::bind(controlled(), address("0.0.0.0:0"), Reach::Anywhere);
    assert!(!there.unwrap().url().contains("token"));
    let reading = DashboardServer::bind(pages(), address("127.0.0.1:0"), Reach::Loopback);
    assert!(!reading.unwrap().url().contains("token"));
}

#[tokio::test]
async fn a_server_that_is_stopped_ends_with_streams_open() {
    let server = DashboardServer::bind(pages(), address("127.0.0.1:0"), Reach::Loopback).unwrap();
    let address = server.address();
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    let serving = tokio::spawn(async move { server.serve(stopped).await });
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET /api/events HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("event: state") {
        assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0);
    }
    stop.cancel();
    let ended = timeout(Duration::from_secs(20), serving).await;
    ended.expect("still serving").unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_finish_a_request_keep_no_browser_out() {
    let server = DashboardServer::bind(pages(), address("127.0.0.1:0"), Reach::Loopback).unwrap();
    let address = server.address();
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    let serving = tokio::spawn(async move { server.serve(stopped).await });
    let flooding = move || weft_testkit::Flood::tcp(address, 2_000).unwrap();
    let mut flood = tokio::task::spawn_blocking(flooding).await.unwrap();
    let page = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    let answer = timeout(Duration::from_secs(10), page).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(flood.is_cut_to(128));
    stop.cancel();
    let ended = timeout(Duration::from_secs(20), serving).await;
    ended.expect("still serving").unwrap().unwrap();
}
