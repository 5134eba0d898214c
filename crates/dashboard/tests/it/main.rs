//! Integration tests of the page: feed, HTTP server and browser.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may unwrap as tests do"
)]

mod access;
mod browser;
mod chromium;
mod feeding;
mod fixture;
mod objects;
mod serving;
mod shape;
mod streaming;
