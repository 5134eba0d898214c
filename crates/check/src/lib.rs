//! `weft check`: tests the network of a cluster with probes.
//!
//! Probes run as pods on nodes and are asked, through the API server, to send requests to one
//! another: [`Echo`] is the server in them, [`Question`] a request. The list of checks ([`plan`])
//! and the judgement of the answers ([`verdict`]) are pure; [`run()`] does the I/O.

mod cluster;
mod echo;
mod objects;
pub mod plan;
mod question;
mod run;
pub mod verdict;

pub use echo::{Echo, EchoAnswer};
pub use question::{Attempts, Outcome, ProbeProtocol, Question, QuestionError, Try, ask};
pub use run::{CheckError, CheckOptions, run};
