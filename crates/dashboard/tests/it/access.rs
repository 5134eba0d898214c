//! Access to the page: `Host`, `Origin`, token and response headers.

use std::sync::{Arc, Mutex};

use axum::{
    Router,
    body::Body,
    http::{Request, Response, StatusCode, header},
};
use futures::future::BoxFuture;
use http_body_util::BodyExt as _;
use serde_json::Value;
use tower::ServiceExt as _;
use weft_dashboard::{ActionError, Board, Control, Pages, Reach, Token, state::Action};

use crate::fixture;

const PORT: u16 = 8088;
const OURS: &str = "127.0.0.1:8088";
const STOP: &str = "/api/processes/node-1%2Fproxy/stop";

/// Records the actions it receives.
#[derive(Clone, Default)]
pub(crate) struct RecordingControl {
    received: Arc<Mutex<Vec<(String, Action)>>>,
    refuses: bool,
}

impl RecordingControl {
    pub(crate) fn received(&self) -> Vec<(String, Action)> {
        self.received.lock().unwrap().clone()
    }
}

impl Control for RecordingControl {
    fn act<'a>(
        &'a self,
        process: &'a str,
        action: Action,
    ) -> BoxFuture<'a, Result<(), ActionError>> {
        Box::pin(async move {
            self.received
                .lock()
                .unwrap()
                .push((process.to_owned(), action));
            if self.refuses {
                return Err(ActionError::Failed("the machine is on fire".into()));
            }
            Ok(())
        })
    }
}

struct TestPages {
    router: Router,
    control: RecordingControl,
    token: String,
}

impl TestPages {
    fn new() -> Self {
        Self::with(RecordingControl::default(), Reach::Loopback)
    }

    fn with(control: RecordingControl, reach: Reach) -> Self {
        let token = Token::random().unwrap();
        let text = token.reveal().to_owned();
        let board = Board::new(fixture::playground(2, 4));
        let router = Pages::new(board)
            .control(control.clone(), token)
            .router(PORT, reach);
        Self {
            router,
            control,
            token: text,
        }
    }

    async fn send(&self, request: Request<Body>) -> Response<Body> {
        self.router.clone().oneshot(request).await.unwrap()
    }

    async fn get(&self, path: &str, host: &str) -> StatusCode {
        let request = Request::get(path).header(header::HOST, host);
        self.send(request.body(Body::empty()).unwrap())
            .await
            .status()
    }

    /// A POST as the page sends it, with some headers replaced or removed.
    async fn post(&self, path: &str, other: &[(&str, Option<&str>)]) -> StatusCode {
        let usual = [
            ("host", OURS),
            ("origin", "http://127.0.0.1:8088"),
            ("x-weft-token", &self.token),
        ];
        let mut request = Request::post(path);
        for (name, value) in usual {
            let changed = other.iter().find(|(known, _)| *known == name);
            if let Some(value) = changed.map_or(Some(value), |(_, value)| *value) {
                request = request.header(name, value);
            }
        }
        self.send(request.body(Body::empty()).unwrap())
            .await
            .status()
    }
}

const FOREIGN_HOSTS: [&str; 5] = [
    "weft.attacker.example:8088",
    "127.0.0.1:9999",
    "127.0.0.1",
    "192.0.2.1:8088",
    "localhost.attacker.example:8088",
];

#[tokio::test]
async fn every_page_is_for_our_own_host_and_port_only() {
    let pages = TestPages::new();
    for path in ["/", "/main.js", "/api/state", "/api/events", "/nothing"] {
        for host in FOREIGN_HOSTS {
            let answer = pages.get(path, host).await;
            assert_eq!(answer, StatusCode::MISDIRECTED_REQUEST, "{host}{path}");
        }
        let expected = match path {
            "/nothing" => StatusCode::NOT_FOUND,
            _ => StatusCode::OK,
        };
        for host in [OURS, "localhost:8088", "[::1]:8088"] {
            assert_eq!(pages.get(path, host).await, expected, "{host}{path}");
        }
    }
}

#[tokio::test]
async fn a_request_with_no_host_or_two_is_refused() {
    let pages = TestPages::new();
    let nameless = Request::get("/api/state").body(Body::empty()).unwrap();
    let answer = pages.send(nameless).await.status();
    assert_eq!(answer, StatusCode::MISDIRECTED_REQUEST);
    let two = Request::get("/api/state")
        .header("host", OURS)
        .header("host", "evil.example:8088");
    let answer = pages.send(two.body(Body::empty()).unwrap()).await.status();
    assert_eq!(answer, StatusCode::MISDIRECTED_REQUEST);
    // Absolute form of a request, whose URL takes precedence over the header.
    let full = Request::get("http://evil.example:8088/api/state").header("host", OURS);
    let answer = pages.send(full.body(Body::empty()).unwrap()).await.status();
    assert_eq!(answer, StatusCode::MISDIRECTED_REQUEST);
}

#[tokio::test]
async fn our_page_with_the_token_may_act() {
    let pages = TestPages::new();
    assert_eq!(pages.post(STOP, &[]).await, StatusCode::NO_CONTENT);
    assert_eq!(
        pages.control.received(),
        [("node-1/proxy".to_owned(), Action::Stop)]
    );
}

#[tokio::test]
async fn an_action_under_a_foreign_host_is_refused() {
    let pages = TestPages::new();
    for host in FOREIGN_HOSTS {
        let origin = format!("http://{host}");
        let answer = pages
            .post(STOP, &[("host", Some(host)), ("origin", Some(&origin))])
            .await;
        assert_eq!(answer, StatusCode::MISDIRECTED_REQUEST, "{host}");
    }
    assert_eq!(pages.control.received(), []);
}

#[tokio::test]
async fn an_action_from_a_foreign_page_is_refused() {
    let pages = TestPages::new();
    for origin in [
        None,
        Some("null"),
        Some("http://evil.example"),
        Some("https://127.0.0.1:8088"),
        Some("http://127.0.0.1:9999"),
        Some("http://127.0.0.1:8088.evil.example"),
        // Another server may listen there, on the loopback of the other family.
        Some("http://localhost:8088"),
        Some("127.0.0.1:8088"),
    ] {
        let answer = pages.post(STOP, &[("origin", origin)]).await;
        assert_eq!(answer, StatusCode::FORBIDDEN, "{origin:?}");
    }
    assert_eq!(pages.control.received(), []);
}

#[tokio::test]
async fn an_action_without_the_token_is_refused() {
    let pages = TestPages::new();
    let short = &pages.token[..31].to_owned();
    let long = &format!("{}0", pages.token);
    let other = Token::random().unwrap();
    for token in [
        None,
        Some(""),
        Some(short.as_str()),
        Some(long),
        Some(other.reveal()),
    ] {
        let answer = pages.post(STOP, &[("x-weft-token", token)]).await;
        assert_eq!(answer, StatusCode::FORBIDDEN, "{token:?}");
    }
    assert_eq!(pages.control.received(), []);
}

#[tokio::test]
async fn only_offered_actions_are_accepted() {
    let pages = TestPages::new();
    for (path, expected) in [
        ("/api/processes/node-9%2Fproxy/stop", StatusCode::NOT_FOUND),
        (
            "/api/processes/node-1%2Fproxy/explode",
            StatusCode::NOT_FOUND,
        ),
        ("/api/processes/node-1%2Fproxy/start", StatusCode::CONFLICT),
        ("/api/processes/stand-in/stop", StatusCode::CONFLICT),
    ] {
        assert_eq!(pages.post(path, &[]).await, expected, "{path}");
    }
    assert_eq!(pages.control.received(), []);
    let get = pages.get(STOP, OURS).await;
    assert_eq!(get, StatusCode::METHOD_NOT_ALLOWED, "links do nothing");
}

#[tokio::test]
async fn a_failed_action_returns_its_error() {
    let control = RecordingControl {
        refuses: true,
        ..RecordingControl::default()
    };
    let pages = TestPages::with(control, Reach::Loopback);
    let request = Request::post(STOP)
        .header("host", OURS)
        .header("origin", "http://127.0.0.1:8088")
        .header("x-weft-token", &pages.token);
    let answer = pages.send(request.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(&*body, b"the machine is on fire\n");
}

async fn actions(router: Router) -> usize {
    let request = Request::get("/api/state").header("host", OURS);
    let request = request.body(Body::empty()).unwrap();
    let answer = router.oneshot(request).await.unwrap();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let state: Value = serde_json::from_slice(&body).unwrap();
    let processes = state["processes"].as_array().unwrap();
    processes
        .iter()
        .map(|process| process["actions"].as_array().unwrap().len())
        .sum()
}

#[tokio::test]
async fn without_control_there_are_no_actions() {
    let pages = TestPages::new();
    assert!(actions(pages.router.clone()).await > 0);
    let board = Board::new(fixture::playground(2, 4));
    let reading = TestPages {
        router: Pages::new(board).router(PORT, Reach::Loopback),
        ..pages
    };
    assert_eq!(actions(reading.router.clone()).await, 0);
    assert_eq!(reading.post(STOP, &[]).await, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_remote_page_is_read_only() {
    let pages = TestPages::with(RecordingControl::default(), Reach::Anywhere);
    assert_eq!(pages.get("/", "192.0.2.1:8088").await, StatusCode::OK);
    let named = pages.get("/", "weft.attacker.example:8088").await;
    assert_eq!(
        named,
        StatusCode::MISDIRECTED_REQUEST,
        "names can be rebound"
    );
    assert_eq!(actions(pages.router.clone()).await, 0);
    assert_eq!(pages.post(STOP, &[]).await, StatusCode::NOT_FOUND);
    assert_eq!(pages.control.received(), []);
}

#[tokio::test]
async fn every_answer_forbids_what_the_page_does_not_need() {
    let pages = TestPages::new();
    for (path, host) in [
        ("/", OURS),
        ("/main.js", OURS),
        ("/api/state", OURS),
        ("/api/events", OURS),
        ("/nothing", OURS),
        ("/", "evil.example:8088"),
    ] {
        let request = Request::get(path)
            .header("host", host)
            .header("origin", "http://evil.example");
        let answer = pages.send(request.body(Body::empty()).unwrap()).await;
        let header = |name: &str| {
            answer
                .headers()
                .get(name)
                .map(|value| value.to_str().unwrap())
        };
        let policy = header("content-security-policy").unwrap_or_default();
        assert!(
            policy.starts_with("default-src 'self';"),
            "{path}: {policy}"
        );
        assert!(
            policy.contains("frame-ancestors 'none'"),
            "{path}: {policy}"
        );
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(header("x-frame-options"), Some("DENY"), "{path}");
        assert_eq!(header("referrer-policy"), Some("no-referrer"), "{path}");
        let mut names = answer.headers().keys();
        let shared = names.find(|name| name.as_str().starts_with("access-control-"));
        assert_eq!(shared, None, "{path}: other sites may not read this");
    }
}

#[tokio::test]
async fn a_browser_that_asks_before_a_foreign_page_posts_is_refused() {
    let pages = TestPages::new();
    let request = Request::options(STOP)
        .header("host", OURS)
        .header("origin", "http://evil.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "x-weft-token");
    let answer = pages.send(request.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert!(!answer.headers().contains_key("access-control-allow-origin"));
}

#[test]
fn the_page_has_nothing_in_line_and_nothing_from_elsewhere() {
    let page = include_str!("../../page/index.html");
    for (index, _) in page.match_indices("<script") {
        let tag = &page[index..];
        let tag = &tag[..tag.find("</script>").unwrap()];
        assert!(tag.contains(" src=\"/") && tag.ends_with('>'), "{tag}");
    }
    for forbidden in [
        "<style",
        " style=",
        " onclick=",
        "http://",
        "https://",
        "//cdn",
    ] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
}

#[test]
fn scripts_write_texts_and_never_markup() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/page");
    let mut scripts = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "js") {
            continue;
        }
        scripts += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        for forbidden in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ] {
            assert!(!text.contains(forbidden), "{}: {forbidden}", path.display());
        }
    }
    assert!(scripts > 5);
}
