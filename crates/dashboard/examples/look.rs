//! Serves the page with a made-up network, for working on the page.
//!
//! `cargo run -p weft-dashboard --example look` serves it; with a directory behind `--` it writes
//! screenshots of the page into that directory instead.

use std::{
    fs,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::future::BoxFuture;
use serde_json::json;
use weft_dashboard::{
    ActionError, Board, Control, DashboardServer, Pages, Reach, State, Token, state::Action,
};

#[path = "../tests/it/chromium.rs"]
#[expect(
    dead_code,
    clippy::unwrap_used,
    reason = "made for tests, which use all of it"
)]
mod chromium;
#[path = "../tests/it/fixture.rs"]
#[expect(
    dead_code,
    clippy::unwrap_used,
    reason = "made for tests, which use all of it"
)]
mod fixture;

use chromium::Browser;

type AnyError = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    match std::env::args_os().nth(1).map(PathBuf::from) {
        None => serve(fixture::playground(3, 36), "127.0.0.1:8088").await,
        Some(directory) => screenshots(&directory).await,
    }
}

/// Refuses every action.
struct NoControl;

impl Control for NoControl {
    fn act<'a>(
        &'a self,
        process: &'a str,
        action: Action,
    ) -> BoxFuture<'a, Result<(), ActionError>> {
        let refusal = format!("cannot {action} {process}: this network is an example");
        Box::pin(async move { Err(ActionError::Failed(refusal.into())) })
    }
}

fn pages(state: State) -> Result<Pages, AnyError> {
    Ok(Pages::new(Board::new(state)).control(NoControl, Token::random()?))
}

async fn serve(state: State, address: &str) -> Result<(), AnyError> {
    let pages = pages(state)?;
    let server = DashboardServer::bind(pages, address.parse()?, Reach::Loopback)?;
    eprintln!("{}", server.url());
    server.serve(std::future::pending()).await?;
    Ok(())
}

/// One screenshot: name, state, size and colour scheme.
struct Screenshot {
    name: &'static str,
    state: State,
    size: (u32, u32),
    dark: bool,
    /// Script to run in the page first.
    before: &'static str,
}

async fn screenshots(directory: &Path) -> Result<(), AnyError> {
    fs::create_dir_all(directory)?;
    let screenshot = |name, state, size, dark| Screenshot {
        name,
        state,
        size,
        dark,
        before: "",
    };
    let small = || fixture::playground(3, 36);
    let light_up = "document.querySelector('[data-service=\"default/web\"]').focus()";
    let point = "document.querySelector('[data-node=\"node-2\"]').focus()";
    for screenshot in [
        screenshot("dashboard-light", small(), (1400, 1000), false),
        screenshot("dashboard-dark", small(), (1400, 1000), true),
        screenshot("narrow", small(), (420, 3000), false),
        screenshot("big", fixture::playground(20, 300), (1400, 1400), false),
        screenshot("alone", fixture::playground(1, 4), (1400, 1000), true),
        screenshot("trouble", fixture::troubled(), (1400, 1250), false),
        screenshot("trouble-dark", fixture::troubled(), (1400, 1250), true),
        Screenshot {
            before: light_up,
            ..screenshot("lit", small(), (1400, 1000), false)
        },
        Screenshot {
            before: point,
            ..screenshot("pointed", small(), (1400, 1000), false)
        },
        Screenshot {
            before: point,
            ..screenshot(
                "big-pointed",
                fixture::playground(20, 300),
                (1400, 1000),
                true,
            )
        },
    ] {
        take(screenshot, directory).await?;
    }
    Ok(())
}

async fn take(screenshot: Screenshot, directory: &Path) -> Result<(), AnyError> {
    let chromium = chromium::find().ok_or("chromium is not installed")?;
    let pages = pages(screenshot.state)?;
    let server = DashboardServer::bind(pages, "127.0.0.1:0".parse()?, Reach::Loopback)?;
    let url = server.url();
    let serving = tokio::spawn(async move { server.serve(std::future::pending()).await });
    let mut browser = Browser::open(chromium, &url, screenshot.size).await;
    let scheme = if screenshot.dark { "dark" } else { "light" };
    let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
    browser.call("Emulation.setEmulatedMedia", features).await;
    browser.drawn().await;
    browser.value(screenshot.before).await;
    let taken = browser.call("Page.captureScreenshot", json!({})).await;
    let data = BASE64_STANDARD.decode(taken["data"].as_str().unwrap_or_default())?;
    fs::write(directory.join(format!("{}.png", screenshot.name)), data)?;
    browser.close().await;
    serving.abort();
    Ok(())
}
