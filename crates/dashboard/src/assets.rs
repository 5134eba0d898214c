//! Assets of the page, compiled into the program.

use axum::{
    Router,
    http::header::{CACHE_CONTROL, CONTENT_TYPE},
    routing::get,
};

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const DRAWING: &str = "image/svg+xml";

macro_rules! asset {
    ($path:literal, $kind:expr, $file:literal) => {
        ($path, $kind, include_str!(concat!("../page/", $file)))
    };
}

const ASSETS: &[(&str, &str, &str)] = &[
    asset!("/", HTML, "index.html"),
    asset!("/icon.svg", DRAWING, "icon.svg"),
    asset!("/style.css", STYLE, "style.css"),
    asset!("/network.css", STYLE, "network.css"),
    asset!("/theme.js", SCRIPT, "theme.js"),
    asset!("/main.js", SCRIPT, "main.js"),
    asset!("/dom.js", SCRIPT, "dom.js"),
    asset!("/format.js", SCRIPT, "format.js"),
    asset!("/apps.js", SCRIPT, "apps.js"),
    asset!("/stream.js", SCRIPT, "stream.js"),
    asset!("/summary.js", SCRIPT, "summary.js"),
    asset!("/nodes.js", SCRIPT, "nodes.js"),
    asset!("/pods.js", SCRIPT, "pods.js"),
    asset!("/threads.js", SCRIPT, "threads.js"),
    asset!("/routes.js", SCRIPT, "routes.js"),
    asset!("/services.js", SCRIPT, "services.js"),
    asset!("/timeline.js", SCRIPT, "timeline.js"),
    asset!("/processes.js", SCRIPT, "processes.js"),
];

/// Every asset under its path.
pub(crate) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let mut router = Router::new();
    for &(path, kind, text) in ASSETS {
        // Another version of the program may serve the next page from the same address.
        let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-cache")];
        router = router.route(path, get(move || async move { (headers, text) }));
    }
    router
}
