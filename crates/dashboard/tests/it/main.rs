//! Integration tests of the page: feed, HTTP server and browser.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may unwrap as tests do"
)]

mod browser;
mod chromium;
mod doors;
mod feeding;
mod fixture;
mod objects;
mod serving;
mod shape;
mod streaming;
