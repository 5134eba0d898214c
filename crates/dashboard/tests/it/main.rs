//! The page from the outside: what it is told, what it answers, what a browser makes of it.
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
