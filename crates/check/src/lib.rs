//! `weft check`: does the network of a cluster do what it should?
//!
//! Probes are put on nodes as pods and asked, through the API server, to ask one another:
//! [`Echo`] is what runs in them, [`Question`] what they are asked. Which questions there are
//! ([`plan`]) and what the answers mean ([`verdict`]) is decided apart from the talking ([`run()`]).

mod cluster;
mod echo;
mod objects;
pub mod plan;
mod question;
mod run;
pub mod verdict;

pub use echo::{Answer, Echo};
pub use question::{Asked, Outcome, Protocol, Question, QuestionError, Try, ask};
pub use run::{CheckError, Options, run};
