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
use weft_dashboard::{Board, Control, DashboardServer, Pages, Reach, State, Token, state::Action};

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
        Some(directory) => pictures(&directory).await,
    }
}

/// Refuses every action.
struct Idle;

impl Control for Idle {
    fn act<'a>(&'a self, process: &'a str, action: Action) -> BoxFuture<'a, Result<(), String>> {
        let refusal = format!("cannot {action} {process}: this network is an example");
        Box::pin(async move { Err(refusal) })
    }
}

fn pages(state: State) -> Result<Pages, AnyError> {
    Ok(Pages::new(Board::new(state)).control(Idle, Token::random()?))
}

async fn serve(state: State, address: &str) -> Result<(), AnyError> {
    let pages = pages(state)?;
    let server = DashboardServer::bind(pages, address.parse()?, Reach::Loopback)?;
    eprintln!("{}", server.url());
    server.serve(std::future::pending()).await?;
    Ok(())
}

/// One screenshot: name, state, size and colour scheme.
struct Picture {
    name: &'static str,
    state: State,
    size: (u32, u32),
    dark: bool,
    /// Script to run in the page first.
    before: &'static str,
}

async fn pictures(directory: &Path) -> Result<(), AnyError> {
    fs::create_dir_all(directory)?;
    let picture = |name, state, size, dark| Picture {
        name,
        state,
        size,
        dark,
        before: "",
    };
    let small = || fixture::playground(3, 36);
    let light_up = "document.querySelector('[data-service=\"default/web\"]').focus()";
    let point = "document.querySelector('[data-node=\"node-2\"]').focus()";
    for picture in [
        picture("dashboard-light", small(), (1400, 1000), false),
        picture("dashboard-dark", small(), (1400, 1000), true),
        picture("narrow", small(), (420, 3000), false),
        picture("big", fixture::playground(20, 300), (1400, 1400), false),
        picture("alone", fixture::playground(1, 4), (1400, 1000), true),
        picture("trouble", fixture::troubled(), (1400, 1250), false),
        picture("trouble-dark", fixture::troubled(), (1400, 1250), true),
        Picture {
            before: light_up,
            ..picture("lit", small(), (1400, 1000), false)
        },
        Picture {
            before: point,
            ..picture("pointed", small(), (1400, 1000), false)
        },
        Picture {
            before: point,
            ..picture(
                "big-pointed",
                fixture::playground(20, 300),
                (1400, 1000),
                true,
            )
        },
    ] {
        take(picture, directory).await?;
    }
    Ok(())
}

async fn take(picture: Picture, directory: &Path) -> Result<(), AnyError> {
    let chromium = chromium::find().ok_or("chromium is not installed")?;
    let pages = pages(picture.state)?;
    let server = DashboardServer::bind(pages, "127.0.0.1:0".parse()?, Reach::Loopback)?;
    let url = server.url();
    let serving = tokio::spawn(async move { server.serve(std::future::pending()).await });
    let mut browser = Browser::open(chromium, &url, picture.size).await;
    let scheme = if picture.dark { "dark" } else { "light" };
    let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
    browser.call("Emulation.setEmulatedMedia", features).await;
    browser.drawn().await;
    browser.value(picture.before).await;
    let taken = browser.call("Page.captureScreenshot", json!({})).await;
    let data = BASE64_STANDARD.decode(taken["data"].as_str().unwrap_or_default())?;
    fs::write(directory.join(format!("{}.png", picture.name)), data)?;
    browser.close().await;
    serving.abort();
    Ok(())
}
