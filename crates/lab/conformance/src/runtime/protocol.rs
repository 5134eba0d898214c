//! Requests to the compared caches, one per line, and their answers.

use std::{fmt, str::FromStr};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

/// A request; `xtask/src/peers/cache.go` documents each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    Cache,
    Count,
    Consumers(u32),
    Events(u64),
    Cycle(u32),
    Controllers(u32),
    Heap,
    Tasks,
    Quit,
}

/// The answer to every request but `quit`, as one line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Answer {
    /// Time that the request took.
    Seconds(f64),
    Count(usize),
    Seen {
        updates: u64,
        /// Unix time of the last update, in seconds.
        last: f64,
    },
    Bytes(usize),
    Tasks(usize),
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cache => f.write_str("cache"),
            Self::Count => f.write_str("count"),
            Self::Consumers(count) => write!(f, "consumers {count}"),
            Self::Events(count) => write!(f, "events {count}"),
            Self::Cycle(count) => write!(f, "cycle {count}"),
            Self::Controllers(count) => write!(f, "controllers {count}"),
            Self::Heap => f.write_str("heap"),
            Self::Tasks => f.write_str("tasks"),
            Self::Quit => f.write_str("quit"),
        }
    }
}

impl FromStr for Request {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        let (word, argument) = line.split_once(' ').unwrap_or((line, ""));
        let number = || {
            argument
                .parse()
                .with_context(|| format!("cannot parse the number in {line:?}"))
        };
        Ok(match word {
            "consumers" => Self::Consumers(number()?),
            "events" => Self::Events(number()?.into()),
            "cycle" => Self::Cycle(number()?),
            "controllers" => Self::Controllers(number()?),
            "cache" if argument.is_empty() => Self::Cache,
            "count" if argument.is_empty() => Self::Count,
            "heap" if argument.is_empty() => Self::Heap,
            "tasks" if argument.is_empty() => Self::Tasks,
            "quit" if argument.is_empty() => Self::Quit,
            _ => bail!("{line:?} is not a request"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_the_same_after_writing_and_parsing() {
        for request in [
            Request::Cache,
            Request::Count,
            Request::Consumers(10),
            Request::Events(20_000),
            Request::Cycle(1000),
            Request::Controllers(7),
            Request::Heap,
            Request::Tasks,
            Request::Quit,
        ] {
            assert_eq!(request.to_string().parse::<Request>().unwrap(), request);
        }
    }

    #[test]
    fn unknown_requests_are_refused() {
        for line in ["", "cycle", "cycle x", "heap 3", "dance"] {
            assert!(line.parse::<Request>().is_err(), "{line:?}");
        }
    }

    #[test]
    fn answers_of_the_peer_are_parsed() {
        for (line, expected) in [
            (r#"{"seconds":1.5}"#, Answer::Seconds(1.5)),
            (r#"{"count":500}"#, Answer::Count(500)),
            (
                r#"{"seen":{"last":2.5,"updates":3}}"#,
                Answer::Seen {
                    updates: 3,
                    last: 2.5,
                },
            ),
            (r#"{"bytes":4096}"#, Answer::Bytes(4096)),
            (r#"{"tasks":9}"#, Answer::Tasks(9)),
        ] {
            assert_eq!(serde_json::from_str::<Answer>(line).unwrap(), expected);
        }
    }
}
