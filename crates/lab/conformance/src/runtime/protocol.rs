//! What both caches are told, a line each, and what they answer.

use std::{fmt, str::FromStr};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

/// An order; `xtask/src/peers/cache.go` says what each means.
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

/// What is answered to all orders but the last, as one line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Answer {
    /// How long obeying took.
    Seconds(f64),
    Count(usize),
    Seen {
        updates: u64,
        /// Unix time of the last one.
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
        let number = || argument.parse().with_context(|| format!("in {line:?}"));
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
            _ => bail!("no such order: {line:?}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_as_they_are_written() {
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
    fn what_is_no_order_is_refused() {
        for line in ["", "cycle", "cycle x", "heap 3", "dance"] {
            assert!(line.parse::<Request>().is_err(), "{line:?}");
        }
    }

    #[test]
    fn answers_are_what_the_peer_writes() {
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
