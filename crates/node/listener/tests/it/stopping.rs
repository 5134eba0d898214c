//! Shutdown: a stop frees the port and finishes requests in progress.

use std::time::Instant;

use tokio::net::TcpListener;

use crate::clients::{LIMITS, PATIENCE, Server, read_to_end};

#[tokio::test]
async fn a_stop_frees_the_port_and_finishes_requests_in_progress() {
    let server = Server::start(LIMITS).await;
    let request = b"GET /wait HTTP/1.1\r\nHost: test\r\n\r\n";
    let stream = server.send(request).await;
    server.until_open(1).await;
    server.stop.cancel();
    let free = async {
        while TcpListener::bind(server.address).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, free).await.unwrap();
    server.release.cancel();
    let answer = read_to_end(stream).await;
    assert!(answer.ends_with("released"), "{answer:?}");
    server.task.await.unwrap();
}

#[tokio::test]
async fn a_stop_does_not_wait_for_clients_that_send_nothing() {
    let server = Server::start(LIMITS).await;
    let silent = server.send(b"").await;
    let half = server
        .send(b"GET /wait HTTP/1.1\r\nHost: test\r\n\r\n")
        .await;
    server.until_open(2).await;
    let stopped = Instant::now();
    server.stop.cancel();
    tokio::time::timeout(PATIENCE, server.task)
        .await
        .unwrap()
        .unwrap();
    assert!(stopped.elapsed() < PATIENCE);
    drop((silent, half));
}
