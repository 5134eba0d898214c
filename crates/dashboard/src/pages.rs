//! HTTP routes of the page: the page, its assets, its state and its actions.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Path, State as Shared},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header},
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use tokio_util::sync::CancellationToken;

use weft_listener::HostCheck;
use weft_runtime::refuse_other_hosts;

use crate::{
    Board, Control, Reach, Token, assets, origin,
    state::{Action, State},
    stream,
};

/// Request header that carries the token.
const TOKEN_HEADER: &str = "x-weft-token";

/// Nothing from other origins, nothing inline, no framing.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; object-src 'none'";

const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// The routes and their state.
#[derive(Clone)]
pub struct Pages {
    board: Board,
    controls: Option<Controls>,
    stop: CancellationToken,
}

/// The actions and the token that allows them.
#[derive(Clone)]
struct Controls {
    control: Arc<dyn Control>,
    token: Token,
}

impl Pages {
    /// Read-only pages of a board.
    pub fn new(board: Board) -> Self {
        Self {
            board,
            controls: None,
            stop: CancellationToken::new(),
        }
    }

    /// Lets clients with the token start and stop processes.
    #[must_use]
    pub fn control(mut self, control: impl Control, token: Token) -> Self {
        let control = Arc::new(control);
        self.controls = Some(Controls { control, token });
        self
    }

    /// Removes the actions unless the page is served on loopback.
    pub(crate) fn seen(mut self, reach: Reach) -> Self {
        if reach == Reach::Anywhere {
            self.controls = None;
        }
        self
    }

    pub(crate) fn token(&self) -> Option<&Token> {
        self.controls.as_ref().map(|controls| &controls.token)
    }

    /// Ends open streams when cancelled.
    pub(crate) fn until(mut self, stop: CancellationToken) -> Self {
        self.stop = stop;
        self
    }

    /// The router for a server at this port. Requests must name an accepted host and this port.
    pub fn router(self, port: u16, reach: Reach) -> Router {
        let pages = self.seen(reach);
        let check = HostCheck {
            port: Some(port),
            reach,
        };
        let mut router = assets::router()
            .route("/api/state", get(state))
            .route("/api/events", get(events));
        if pages.controls.is_some() {
            router = router.route("/api/processes/{name}/{action}", post(act));
        }
        router
            .with_state(pages)
            .layer(middleware::from_fn_with_state(check, refuse_other_hosts))
            .layer(middleware::map_response(harden))
    }

    /// The state as the page reads it; without a [`Control`] no process has actions.
    fn render(&self, state: &State) -> String {
        let rendered = if self.controls.is_some() {
            serde_json::to_string(state)
        } else {
            let mut state = state.clone();
            for process in &mut state.processes {
                process.actions.clear();
            }
            serde_json::to_string(&state)
        };
        rendered.expect("all map keys are strings and all numbers are finite")
    }
}

async fn harden(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

async fn state(Shared(pages): Shared<Pages>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, pages.render(&pages.board.read())).into_response()
}

async fn events(Shared(pages): Shared<Pages>) -> impl IntoResponse {
    let (states, stop) = (pages.board.subscribe(), pages.stop.clone());
    let events = stream::events(states, stop, move |state| pages.render(state));
    ([(header::CACHE_CONTROL, "no-store")], events)
}

async fn act(
    Shared(pages): Shared<Pages>,
    Path((name, action)): Path<(String, String)>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let refused = |code: StatusCode, text: &str| (code, format!("{text}\n")).into_response();
    let Some(controls) = &pages.controls else {
        return StatusCode::NOT_FOUND.into_response();
    };
    if !origin::is_from_our_page(&uri, &headers) {
        return refused(StatusCode::FORBIDDEN, "refused: Origin is not this page");
    }
    let token = headers.get(TOKEN_HEADER).map(HeaderValue::as_bytes);
    if !token.is_some_and(|token| controls.token.is(token)) {
        let text =
            "refused: token is missing or wrong, open the page by the link printed at the start";
        return refused(StatusCode::FORBIDDEN, text);
    }
    let Ok(action) = action.parse::<Action>() else {
        return refused(StatusCode::NOT_FOUND, "unknown action");
    };
    let state = pages.board.read();
    let mut processes = state.processes.iter();
    let Some(process) = processes.find(|process| process.name == name) else {
        return refused(StatusCode::NOT_FOUND, "unknown process");
    };
    if !process.actions.contains(&action) {
        return refused(
            StatusCode::CONFLICT,
            "the process does not allow this action now",
        );
    }
    tracing::info!(process = name, %action, "action requested by the page");
    match controls.control.act(&name, action).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => refused(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}
