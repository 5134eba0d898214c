//! Transports of the server: protocols, sockets, network namespaces, shutdown.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, StatusCode, Version};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixStream},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, RootCertStore, pki_types::ServerName},
};
use weft_apiserver::{ApiServer, Builder, Listening, Matcher, RunConfig, User};
use weft_testkit::lab;

use crate::support::MAPS;

async fn http2<S>(stream: S) -> SendRequest<Full<Bytes>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    sender
}

/// A TLS connection that offers these protocols.
async fn tls(
    listening: &Listening,
    protocols: &[&str],
) -> tokio_rustls::client::TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    for der in listening.kube_config().root_cert.unwrap() {
        roots.add(der.into()).unwrap();
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
    let stream = TcpStream::connect(listening.https).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, stream).await.unwrap()
}

const TOKEN: &str = "of-the-administrator";

/// A server with a static token of the administrator.
fn with_token() -> Builder {
    ApiServer::builder().token(TOKEN, User::admin())
}

fn list(token: &str, query: &str) -> Request<Full<Bytes>> {
    Request::builder()
        .uri(format!("https://localhost{MAPS}{query}"))
        .header("authorization", format!("Bearer {token}"))
        .body(Full::default())
        .unwrap()
}

#[tokio::test]
async fn http1_and_http2_are_offered_and_http2_carries_many_watches() {
    let server = with_token().start().await.unwrap();
    let listening = server.listening().unwrap();
    let old = tls(listening, &["http/1.1"]).await;
    assert_eq!(old.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let stream = tls(listening, &["h2", "http/1.1"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let mut sender = http2(stream).await;
    let mut watches = Vec::new();
    for _ in 0..50 {
        sender.ready().await.unwrap();
        let watch = sender.send_request(list(TOKEN, "?watch=1")).await.unwrap();
        assert_eq!(
            (watch.status(), watch.version()),
            (StatusCode::OK, Version::HTTP_2)
        );
        watches.push(watch.into_body());
    }
    assert_eq!(server.stats().open_watches(&Matcher::any()), 50);
    let body = r#"{"metadata":{"name":"a"}}"#;
    let create = Request::builder()
        .method(Method::POST)
        .uri(format!("https://localhost{MAPS}"))
        .header("authorization", format!("Bearer {TOKEN}"))
        .body(Full::from(body))
        .unwrap();
    let made = sender.send_request(create).await.unwrap();
    assert_eq!(made.status(), StatusCode::CREATED);
    for watch in &mut watches {
        let frame = watch.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(frame.starts_with(b"{\"type\":\"ADDED\""));
    }
}

#[tokio::test]
async fn plain_http_speaks_http2_too() {
    let server = with_token().start().await.unwrap();
    let listening = server.listening().unwrap();
    let stream = TcpStream::connect(listening.http.unwrap()).await.unwrap();
    let mut sender = http2(stream).await;
    let answer = sender.send_request(list(TOKEN, "")).await.unwrap();
    assert_eq!(
        (answer.status(), answer.version()),
        (StatusCode::OK, Version::HTTP_2)
    );
}

#[tokio::test]
async fn a_peer_of_the_unix_socket_is_the_administrator() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let server = ApiServer::builder()
        .authorization_mode(weft_apiserver::AuthorizationMode::Rbac)
        .build();
    server.serve_unix(weft_listener::PrivateSocket::bind(&path).unwrap());
    let mut sender = http2(UnixStream::connect(&path).await.unwrap()).await;
    let review = Request::builder()
        .method(Method::POST)
        .uri("http://localhost/apis/authentication.k8s.io/v1/selfsubjectreviews")
        .body(Full::from("{}"))
        .unwrap();
    let answer = sender.send_request(review).await.unwrap();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&body);
    assert!(text.contains("system:masters"), "{text}");
}

#[test]
fn a_listener_of_another_namespace_is_served_there() {
    lab::inside(|lab| {
        let node = lab.namespace("node");
        let bind = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (https, http) = node.run(|| (bind(), bind()));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let server = runtime.block_on(async {
            let tokio_listener = |listener: std::net::TcpListener| {
                listener.set_nonblocking(true).unwrap();
                TcpListener::from_std(listener).unwrap()
            };
            let mut server = ApiServer::builder().build();
            let listening =
                server.listen_on(tokio_listener(https), Some(tokio_listener(http)), &[]);
            listening.unwrap();
            server
        });
        let address = server.listening().unwrap().http.unwrap();
        let version = |address: SocketAddr| {
            use std::io::{Read as _, Write as _};
            let mut stream = std::net::TcpStream::connect(address)?;
            stream.write_all(b"GET /version HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok::<_, std::io::Error>(answer)
        };
        let there = node.run(|| version(address)).unwrap();
        assert!(there.contains("v1.36.4+weft"), "{there}");
        assert!(version(address).is_err(), "no listener in this namespace");
    });
}

/// Sends the head of a POST and leaves the server waiting for the body.
async fn half_a_request(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        BODY.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 64];
    let length = stream.read(&mut answer).await.unwrap();
    assert!(
        answer[..length].starts_with(b"HTTP/1.1 100"),
        "it reads the body"
    );
    stream
}

const BODY: &str = r#"{"metadata":{"name":"late"}}"#;

#[tokio::test]
async fn requests_in_flight_are_answered_before_shutdown() {
    let server = Arc::new(with_token().start().await.unwrap());
    let address = server.listening().unwrap().http.unwrap();
    let mut request = half_a_request(address).await;
    let mut sender = http2(TcpStream::connect(address).await.unwrap()).await;
    let watch = sender.send_request(list(TOKEN, "?watch=1")).await.unwrap();
    assert_eq!(watch.status(), StatusCode::OK);
    let draining = tokio::spawn({
        let server = server.clone();
        async move { server.drain(Duration::from_secs(30)).await }
    });
    let end = watch.into_body().collect().await;
    assert_eq!(end.unwrap().to_bytes(), Bytes::new(), "watches end cleanly");
    request.write_all(BODY.as_bytes()).await.unwrap();
    let mut answer = String::new();
    request.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    assert!(draining.await.unwrap(), "all connections are closed");
    assert!(TcpStream::connect(address).await.is_err(), "no listener");
}

#[tokio::test]
async fn a_client_that_never_finishes_does_not_block_shutdown() {
    let server = ApiServer::builder().start().await.unwrap();
    let request = half_a_request(server.listening().unwrap().http.unwrap()).await;
    assert!(!server.drain(Duration::from_millis(20)).await);
    drop(request);
    assert!(server.drain(Duration::from_secs(30)).await);
}

#[tokio::test]
async fn tokens_come_from_a_file_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.csv");
    std::fs::write(&path, "s3cret,jane,1,\"system:masters,dev\"\n").unwrap();
    let mut config = RunConfig::new("127.0.0.1:0".parse().unwrap());
    config.authorization_mode = weft_apiserver::AuthorizationMode::Rbac;
    config.token_file = Some(path.clone());
    let server = weft_apiserver::start(config.clone()).await.unwrap();
    let listening = server.listening().unwrap();
    for (token, status) in [("s3cret", 200), ("wrong", 401)] {
        let mut sender = http2(tls(listening, &["h2"]).await).await;
        let answer = sender.send_request(list(token, "")).await.unwrap();
        assert_eq!(answer.status().as_u16(), status);
    }
    std::fs::write(&path, "s3cret,jane,1\nlonely\n").unwrap();
    let error = weft_apiserver::start(config).await.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("line 2"), "{cause}");
}

/// Sends a request on a new connection and returns the status line.
fn exchange(address: SocketAddr, request: &str) -> String {
    use std::io::{BufRead as _, Write as _};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut line = String::new();
    std::io::BufReader::new(stream)
        .read_line(&mut line)
        .unwrap();
    line
}

#[test]
fn reads_are_answered_during_a_heavy_write() {
    // One thread serves all connections: a write that blocked it would delay the reads.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let server = runtime.block_on(ApiServer::builder().start()).unwrap();
    let address = server.listening().unwrap().http.unwrap();
    let containers = vec!["{}"; 100_000].join(",");
    let body =
        format!("{{\"metadata\":{{\"name\":\"p\"}},\"spec\":{{\"containers\":[{containers}]}}}}");
    let head = "Host: localhost\r\nConnection: close\r\nContent-Length";
    let write = format!(
        "POST /api/v1/namespaces/default/pods HTTP/1.1\r\n{head}: {}\r\n\r\n{body}",
        body.len()
    );
    let heavy = std::thread::spawn(move || exchange(address, &write));
    let mut answered = 0;
    while !heavy.is_finished() {
        let read = format!("GET /readyz HTTP/1.1\r\n{head}: 0\r\n\r\n");
        assert_eq!(exchange(address, &read), "HTTP/1.1 200 OK\r\n");
        answered += 1;
    }
    let refused = heavy.join().unwrap();
    assert_eq!(refused, "HTTP/1.1 422 Unprocessable Entity\r\n");
    assert!(answered > 20, "{answered} reads were answered meanwhile");
}

#[test]
fn requests_are_answered_while_large_answers_are_rendered() {
    // One thread serves all connections: rendering that blocked it would delay the others.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let server = runtime.block_on(ApiServer::builder().start()).unwrap();
    let address = server.listening().unwrap().http.unwrap();
    let head = "Host: localhost\r\nConnection: close\r\n";
    let data: Vec<String> = (0..30_000).map(|key| format!("\"k{key}\":\"v\"")).collect();
    let data = data.join(",");
    for number in 0..4 {
        let body = format!("{{\"metadata\":{{\"name\":\"m{number}\"}},\"data\":{{{data}}}}}");
        let write = format!(
            "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\n{head}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        assert_eq!(exchange(address, &write), "HTTP/1.1 201 Created\r\n");
    }
    for asked in [
        "?pretty=1 HTTP/1.1\r\n",
        " HTTP/1.1\r\nAccept: application/yaml\r\n",
        "?includeObject=Object HTTP/1.1\r\nAccept: application/json;as=Table;v=v1;g=meta.k8s.io\r\n",
    ] {
        let read = format!("GET /api/v1/configmaps{asked}{head}\r\n");
        // More than are rendered at once.
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let read = read.clone();
                std::thread::spawn(move || exchange(address, &read))
            })
            .collect();
        let mut answered = 0;
        while readers.iter().any(|reader| !reader.is_finished()) {
            let probe = format!("GET /readyz HTTP/1.1\r\n{head}\r\n");
            assert_eq!(exchange(address, &probe), "HTTP/1.1 200 OK\r\n");
            answered += 1;
        }
        for reader in readers {
            assert_eq!(reader.join().unwrap(), "HTTP/1.1 200 OK\r\n");
        }
        assert!(
            answered > 20,
            "{answered} probes were answered meanwhile: {asked}"
        );
    }
}

#[tokio::test]
async fn a_server_that_allows_everything_stays_on_loopback() {
    use weft_apiserver::{AuthorizationMode, ListenError};
    let anywhere = |address: &str| -> SocketAddr { address.parse().unwrap() };
    let loopback = anywhere("127.0.0.1:0");
    let any = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let mut server = ApiServer::builder().build();
    for (https, http) in [
        (anywhere("0.0.0.0:0"), None),
        (anywhere("[::]:0"), None),
        (anywhere("192.0.2.1:0"), None),
        (loopback, Some(anywhere("0.0.0.0:0"))),
    ] {
        let error = server.listen(https, http, &[]).await.unwrap_err();
        assert!(
            matches!(error, ListenError::UnauthenticatedRemote(_)),
            "{https}: {error}"
        );
    }
    let error = server.listen_on(any, None, &[]).unwrap_err();
    assert!(
        matches!(error, ListenError::UnauthenticatedRemote(_)),
        "{error}"
    );
    for address in [loopback, anywhere("[::ffff:127.0.0.1]:0")] {
        server.listen(address, Some(loopback), &[]).await.unwrap();
    }
    for builder in [
        ApiServer::builder().allow_unauthenticated_remote(true),
        ApiServer::builder().authorization_mode(AuthorizationMode::Rbac),
    ] {
        let mut server = builder.build();
        server
            .listen(anywhere("0.0.0.0:0"), None, &[])
            .await
            .unwrap();
    }
}
