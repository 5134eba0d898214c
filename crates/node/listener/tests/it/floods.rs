//! Floods: idle clients, half requests, garbage, and clients that do not read.

use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use crate::clients::{LIMITS, PATIENCE, Server, read_to_end};

/// Limits so long that only eviction can help.
fn patient() -> weft_listener::Limits {
    weft_listener::Limits {
        header: Duration::from_secs(3600),
        idle: Duration::from_secs(3600),
        ..LIMITS
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_send_nothing_or_half_a_header_do_not_keep_others_out() {
    let server = Server::start(patient()).await;
    let mut clients = Vec::new();
    for number in 0..300 {
        let bytes: &[u8] = match number % 3 {
            0 => b"",
            1 => b"GET / HTTP/1.1\r\nHost: te",
            _ => b"\x16\x03\x01\x02\x00\x01\x00garbage",
        };
        clients.push(server.send(bytes).await);
    }
    let answer = tokio::time::timeout(PATIENCE, server.get("/")).await;
    assert!(answer.unwrap().ends_with("hello"));
    let stats = server.pool.stats();
    assert!(stats.open <= LIMITS.connections, "{stats:?}");
    assert!(stats.evicted >= 150, "{stats:?}");
}

#[tokio::test]
async fn half_a_header_is_closed_when_its_time_is_up() {
    let server = Server::start(LIMITS).await;
    let started = Instant::now();
    let stream = server.send(b"GET / HTTP/1.1\r\nHo").await;
    assert_eq!(read_to_end(stream).await, "");
    assert!(
        started.elapsed() >= LIMITS.header,
        "{:?}",
        started.elapsed()
    );
    assert_eq!(server.pool.stats().timed_out, 1);
}

#[tokio::test]
async fn an_idle_connection_is_closed_when_its_time_is_up() {
    let server = Server::start(LIMITS).await;
    let stream = server.send(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n").await;
    let answer = read_to_end(stream).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(server.pool.stats().timed_out, 1);
}

#[tokio::test]
async fn a_body_that_does_not_arrive_ends_its_request() {
    let server = Server::start(LIMITS).await;
    let request = b"GET /body HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\nhalf";
    let answer = read_to_end(server.send(request).await).await;
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_dropped() {
    let server = Server::start(LIMITS).await;
    let stream = server
        .send(b"GET /large HTTP/1.1\r\nHost: test\r\n\r\n")
        .await;
    server.until_open(1).await;
    server.until_open(0).await;
    drop(stream);
}

#[tokio::test]
async fn requests_in_progress_are_never_evicted_and_new_ones_wait_for_them() {
    let server = Server::start(patient()).await;
    let mut busy: Vec<TcpStream> = Vec::new();
    for _ in 0..LIMITS.connections {
        let request = b"GET /wait HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
        busy.push(server.send(request).await);
    }
    server.until_open(LIMITS.connections).await;
    let next = server.get("/");
    tokio::pin!(next);
    let early = tokio::time::timeout(Duration::from_millis(300), next.as_mut()).await;
    assert!(early.is_err(), "the pool is still full");
    server.release.cancel();
    assert!(next.await.ends_with("hello"));
    for stream in busy {
        let answer = read_to_end(stream).await;
        assert!(answer.ends_with("released"), "{answer:?}");
    }
}

/// An HTTP/2 connection whose client allows no bytes of any body: preface, SETTINGS with
/// INITIAL_WINDOW_SIZE 0, and HEADERS of a GET in HPACK's static table and literals.
fn without_window(path: &str) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0]);
    // :method GET, :scheme http, :path and :authority as literals without indexing.
    let mut headers = vec![0x82, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
    headers.extend(path.as_bytes());
    headers.extend([0x01, 4]);
    headers.extend(b"test");
    let length = u8::try_from(headers.len()).unwrap();
    bytes.extend([0, 0, length, 1, 5, 0, 0, 0, 1]);
    bytes.extend(headers);
    bytes
}

#[tokio::test]
async fn clients_that_take_no_response_or_send_half_a_body_do_not_keep_others_out() {
    let limits = weft_listener::Limits {
        body: Duration::from_secs(3600),
        stall: Duration::from_secs(3600),
        ..patient()
    };
    let half = b"GET /body HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\nhalf";
    for bytes in [without_window("/large"), half.to_vec()] {
        let server = Server::start(limits).await;
        let mut clients = Vec::new();
        for _ in 0..LIMITS.connections {
            clients.push(server.send(&bytes).await);
        }
        server.until_open(LIMITS.connections).await;
        // A connection whose request has not begun is idle anyway.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let answer = tokio::time::timeout(PATIENCE, server.get("/")).await;
        assert!(answer.unwrap().ends_with("hello"));
        assert_eq!(server.pool.stats().evicted, 1);
    }
}

#[tokio::test]
async fn clients_that_send_a_body_in_parts_and_stop_do_not_keep_others_out() {
    let limits = weft_listener::Limits {
        body: Duration::from_secs(3600),
        ..patient()
    };
    let server = Server::start(limits).await;
    let head = b"GET /body HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\n";
    let mut clients = Vec::new();
    for _ in 0..LIMITS.connections {
        clients.push(server.send(head).await);
    }
    server.until_open(LIMITS.connections).await;
    for part in [b"one", b"two"] {
        // The server has to wait for each part before it arrives.
        tokio::time::sleep(Duration::from_millis(200)).await;
        for client in &mut clients {
            tokio::io::AsyncWriteExt::write_all(client, part)
                .await
                .unwrap();
        }
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let answer = tokio::time::timeout(PATIENCE, server.get("/")).await;
    assert!(answer.unwrap().ends_with("hello"));
    assert_eq!(server.pool.stats().evicted, 1);
}

#[tokio::test]
async fn a_response_that_its_client_never_takes_ends_with_the_stall_limit() {
    let server = Server::start(LIMITS).await;
    let stream = server.send(&without_window("/large")).await;
    server.until_open(1).await;
    server.until_open(0).await;
    drop(stream);
}

#[tokio::test]
async fn a_stream_that_waits_for_the_server_is_neither_evicted_nor_timed_out() {
    let server = Server::start(LIMITS).await;
    let request = b"GET /stream HTTP/1.1\r\nHost: test\r\n\r\n";
    let mut watch = server.send(request).await;
    let mut head = [0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut watch, &mut head)
        .await
        .unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    let mut clients = Vec::new();
    for _ in 0..LIMITS.connections * 2 {
        clients.push(server.send(b"").await);
    }
    // Longer than every limit: the idle ones are gone, and the watch is not.
    server.until_open(1).await;
    let mut rest = Vec::new();
    let reading = tokio::io::AsyncReadExt::read_to_end(&mut watch, &mut rest);
    let closed = tokio::time::timeout(LIMITS.idle, reading).await;
    assert!(closed.is_err(), "the server closed the stream");
}
