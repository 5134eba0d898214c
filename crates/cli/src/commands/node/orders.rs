//! Commands to a running `weft node`, over its control socket.

use std::{fmt::Write as _, path::Path};

use anyhow::Context as _;
use clap::Subcommand;
use serde::{Deserialize, Serialize};
use weft_runtime::{socket_get, socket_post};

use weft_program::{config::ConfigError, output};

const PAGE: &str = "/debug/controllers";

#[derive(Debug, Subcommand)]
pub(super) enum Order {
    /// Show the parts of the process and their states
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop a part; what it wrote to the kernel stays
    Stop {
        /// The part
        name: String,
    },
    /// Start a part that is stopped, or retry one that failed without waiting
    Start {
        /// The part
        name: String,
    },
    /// Stop a part and start it again
    Restart {
        /// The part
        name: String,
    },
}

/// The columns of a part.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    name: String,
    state: String,
    starts: u64,
    last_error: Option<String>,
}

impl Order {
    /// Sends the command, and prints the resulting state.
    pub(super) fn give(&self, socket: &Path) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the async runtime")?;
        runtime.block_on(async {
            let (name, word) = match self {
                Self::Status { json } => {
                    let parts: Vec<Part> = socket_get(socket, PAGE).await?;
                    return if *json {
                        output::json(&parts)
                    } else {
                        output::text(&table(&parts))
                    };
                }
                Self::Stop { name } => (name, "stop"),
                Self::Start { name } => (name, "start"),
                Self::Restart { name } => (name, "restart"),
            };
            let page = format!("{PAGE}/{}/{word}", checked(name)?);
            let part: Part = socket_post(socket, &page).await?;
            output::text(&format!("{}: {}\n", part.name, part.state))
        })
    }
}

/// Nothing but a name gets into a request.
fn checked(name: &str) -> Result<&str, ConfigError> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !name.is_empty() && name.bytes().all(is_part) {
        Ok(name)
    } else {
        Err(ConfigError::Flag(format!(
            "{name:?} is not the name of a part"
        )))
    }
}

fn table(parts: &[Part]) -> String {
    let width = parts.iter().map(|part| part.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for part in parts {
        let (name, state, starts) = (&part.name, &part.state, part.starts);
        let _infallible = write!(text, "{name:width$}  {state}; starts: {starts}");
        if let Some(error) = &part.last_error
            && !state.contains(error.as_str())
        {
            let _infallible = write!(text, "; last error: {error}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_get_into_an_order() {
        assert!(checked("pod-cidr").is_ok());
        for wrong in ["", "a/b", "a b", "a\r\nb", "a?b", "ä"] {
            assert!(checked(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_error_is_told_once() {
        let part = |state: &str| Part {
            name: "proxy".to_owned(),
            state: state.to_owned(),
            starts: 2,
            last_error: Some("no iptables".to_owned()),
        };
        let parts = [part("running"), part("failed: no iptables")];
        assert_eq!(
            table(&parts),
            "proxy  running; starts: 2; last error: no iptables\n\
             proxy  failed: no iptables; starts: 2\n"
        );
    }
}
