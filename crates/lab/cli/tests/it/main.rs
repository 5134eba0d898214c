//! Integration tests of the program `weft-lab`, and of `weft check` in a playground.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may unwrap as tests do"
)]

mod apiserver;
mod check;
mod help;
mod matching;
mod program;
mod testkit;
mod up;
