//! Requests to pods through `pods/proxy`.

use std::{io, net::SocketAddr};

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    net::TcpStream,
};
use weft_apiserver::{ApiServer, AuthorizationMode, PodPort, User};

use crate::support::{get, post, request, send};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A pod that echoes the request line, or answers with a given size.
async fn answer(mut stream: DuplexStream, target: PodPort) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    let line = head.lines().next().unwrap_or_default().to_owned();
    let (status, body) = if line.starts_with("GET /huge") {
        ("200 OK", "x".repeat(5 * 1024 * 1024))
    } else if line.starts_with("GET /missing") {
        ("404 Not Found", "nothing here".to_owned())
    } else {
        let PodPort {
            namespace,
            name,
            port,
        } = target;
        ("200 OK", format!("{namespace} {name} {port} {line}"))
    };
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/x-pod\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    // The server stops reading at its limit.
    let _ = stream.write_all(text.as_bytes()).await;
}

async fn dial(target: PodPort) -> io::Result<DuplexStream> {
    if target.port == 1 {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    let (ours, theirs) = tokio::io::duplex(4096);
    tokio::spawn(answer(theirs, target));
    Ok(ours)
}

async fn with_pod(server: ApiServer) -> ApiServer {
    let pod = json!({
        "metadata": {"name": "web"},
        "spec": {"containers": [
            {"name": "web", "image": "web", "ports": [{"containerPort": 8080}]},
        ]},
    });
    let made = post(&server, PODS, &pod).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    server
}

async fn server() -> ApiServer {
    with_pod(ApiServer::builder().pod_dialer(dial).build()).await
}

#[tokio::test]
async fn a_request_reaches_the_pod_and_its_answer_comes_back() {
    let server = server().await;
    for (path, said) in [
        ("web/proxy", "default web 8080 GET / HTTP/1.1"),
        ("web/proxy/", "default web 8080 GET / HTTP/1.1"),
        (
            "web:81/proxy/a%2Fb/c?x=%5B1%5D&watch=1",
            "default web 81 GET /a%2Fb/c?x=%5B1%5D&watch=1 HTTP/1.1",
        ),
    ] {
        let answer = get(&server, &format!("{PODS}/{path}")).await;
        assert_eq!(
            (answer.status, answer.text.as_str()),
            (StatusCode::OK, said),
            "{path}"
        );
        assert_eq!(answer.headers["content-type"], "text/x-pod");
    }
    let missing = get(&server, &format!("{PODS}/web/proxy/missing")).await;
    assert_eq!(
        (missing.status, missing.text.as_str()),
        (StatusCode::NOT_FOUND, "nothing here")
    );
}

#[tokio::test]
async fn a_request_that_cannot_be_forwarded_gets_a_status_with_the_reason() {
    let server = server().await;
    let why = "error trying to reach service: connection refused";
    for (path, status, message) in [
        ("gone/proxy/", 404, "pods \"gone\" not found"),
        ("web:1/proxy/", 503, why),
        (
            "web/proxy/huge",
            503,
            "error trying to reach service: the response is larger than 4194304 bytes",
        ),
        (
            "web:http/proxy/",
            400,
            "\"web:http\" is not a pod: expected NAME or NAME:PORT",
        ),
    ] {
        let answer = get(&server, &format!("{PODS}/{path}")).await;
        assert_eq!(
            (answer.status.as_u16(), answer.message().as_str()),
            (status, message)
        );
        assert_eq!(answer.at("/kind"), "Status", "{path}");
    }
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::HEAD] {
        let target = format!("{PODS}/web/proxy/");
        let answer = send(&server, request(method.clone(), &target, "")).await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method}");
    }
}

#[tokio::test]
async fn without_a_pod_dialer_the_proxy_answers_503() {
    let server = with_pod(ApiServer::builder().build()).await;
    let answer = get(&server, &format!("{PODS}/web/proxy/")).await;
    assert_eq!(
        (answer.status.as_u16(), answer.at("/reason")),
        (503, json!("ServiceUnavailable"))
    );
    assert_eq!(
        answer.message(),
        "error trying to reach service: this server has no pod dialer"
    );
}

#[tokio::test]
async fn the_right_to_read_pods_is_not_the_right_to_proxy_to_them() {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    for (resource, status) in [("pods", 403), ("pods/proxy", 200)] {
        let builder = ApiServer::builder()
            .authorization_mode(AuthorizationMode::Rbac)
            .pod_dialer(dial);
        let server = with_pod(builder.build()).await;
        let rules = json!([{"apiGroups": [""], "resources": [resource], "verbs": ["get"]}]);
        let role = json!({"metadata": {"name": "bob"}, "rules": rules});
        post(&server, &format!("{rbac}/clusterroles"), &role).await;
        let binding = json!({
            "metadata": {"name": "bob"},
            "roleRef": {"kind": "ClusterRole", "name": "bob"},
            "subjects": [{"kind": "User", "name": "bob"}],
        });
        post(&server, &format!("{rbac}/clusterrolebindings"), &binding).await;
        let path = format!("{PODS}/web:8080/proxy/ask/me");
        let answer = tower::ServiceExt::oneshot(
            server.service(User::new("bob", [])),
            request(Method::GET, &path, ""),
        )
        .await
        .unwrap();
        assert_eq!(answer.status().as_u16(), status, "{resource}");
    }
}

#[tokio::test]
async fn a_socket_is_a_stream_too() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = [0; 1024];
        let length = stream.read(&mut asked).await.unwrap();
        assert!(asked[..length].starts_with(b"GET / HTTP/1.1\r\nhost: web:8080"));
        // Without Content-Length the end of the connection ends the response.
        let answer = b"HTTP/1.1 200 OK\r\n\r\n{\"a\":1}";
        stream.write_all(answer).await.unwrap();
    });
    let builder = ApiServer::builder().pod_dialer(move |_| TcpStream::connect(address));
    let server = with_pod(builder.build()).await;
    let answer = get(&server, &format!("{PODS}/web/proxy/")).await;
    assert_eq!(answer.json(), json!({"a": 1}) as Value);
    assert_eq!(answer.headers["content-type"], "application/octet-stream");
}
