//! The stream of states, on paused time and without sockets.

use std::time::Duration;

use axum::{body::Body, http::Request};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::time::{Instant, advance, timeout};
use tower::ServiceExt as _;
use weft_dashboard::{Board, Pages, Reach};

use crate::fixture;

async fn open(board: &Board) -> Body {
    let router = Pages::new(board.clone()).router(8088, Reach::Loopback);
    let request = Request::get("/api/events").header("host", "127.0.0.1:8088");
    let answer = router
        .oneshot(request.body(Body::empty()).unwrap())
        .await
        .unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    assert_eq!(answer.headers()["cache-control"], "no-store");
    answer.into_body()
}

async fn text(body: &mut Body) -> String {
    let frame = timeout(Duration::from_secs(60), body.frame()).await;
    let frame = frame.expect("nothing came").unwrap().unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

async fn state(body: &mut Body) -> Value {
    let text = text(body).await;
    let data = text.strip_prefix("event: state\ndata: ");
    serde_json::from_str(data.unwrap_or_else(|| panic!("{text}"))).unwrap()
}

fn rename(board: &Board, name: &str) {
    board.update(|state| name.clone_into(&mut state.cluster.name));
}

#[tokio::test(start_paused = true)]
async fn a_new_stream_gets_the_whole_state_and_then_every_change() {
    let board = Board::new(fixture::playground(3, 36));
    let mut body = open(&board).await;
    let first = state(&mut body).await;
    let shown = serde_json::to_string(&without_actions(&board)).unwrap();
    assert_eq!(first, serde_json::from_str::<Value>(&shown).unwrap());
    rename(&board, "renamed");
    let second = state(&mut body).await;
    assert_eq!(second["cluster"]["name"], "renamed");
    assert_eq!(second["nodes"].as_array().unwrap().len(), 3, "whole again");
}

fn without_actions(board: &Board) -> weft_dashboard::State {
    let mut state = weft_dashboard::State::clone(&board.read());
    state
        .processes
        .iter_mut()
        .for_each(|process| process.actions.clear());
    state
}

#[tokio::test(start_paused = true)]
async fn a_burst_is_sent_once_and_a_stream_gets_at_most_four_states_a_second() {
    let board = Board::new(fixture::playground(1, 1));
    let mut body = open(&board).await;
    let begun = Instant::now();
    state(&mut body).await;
    assert_eq!(begun.elapsed(), Duration::ZERO, "the first comes at once");
    for number in 0..100 {
        rename(&board, &format!("name {number}"));
    }
    let latest = state(&mut body).await;
    assert_eq!(latest["cluster"]["name"], "name 99");
    assert_eq!(begun.elapsed(), Duration::from_millis(250));
    let mut last = Instant::now();
    for number in 0..20 {
        rename(&board, &format!("again {number}"));
        state(&mut body).await;
        assert!(last.elapsed() >= Duration::from_millis(250));
        last = Instant::now();
    }
    advance(Duration::from_secs(2)).await;
    rename(&board, "after a while");
    let asked = Instant::now();
    state(&mut body).await;
    assert_eq!(asked.elapsed(), Duration::ZERO, "no wait after a pause");
}

#[tokio::test(start_paused = true)]
async fn a_quiet_stream_is_kept_alive_every_fifteen_seconds() {
    let board = Board::new(fixture::playground(1, 1));
    let mut body = open(&board).await;
    state(&mut body).await;
    for _ in 0..3 {
        let quiet = Instant::now();
        let comment = text(&mut body).await;
        assert!(comment.starts_with(':'), "{comment:?} is not a comment");
        assert_eq!(quiet.elapsed(), Duration::from_secs(15));
    }
    board.update(|_| {});
    let comment = text(&mut body).await;
    assert!(
        comment.starts_with(':'),
        "a change without effect is not sent"
    );
}
