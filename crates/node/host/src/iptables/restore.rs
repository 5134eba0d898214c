//! Errors of iptables-restore, with the line of the input that was refused.

use thiserror::Error;

use crate::command::CommandError;

/// Failure of a restore.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// The program named a line of the input.
    #[error("iptables-restore refused line {line} of its input")]
    Line {
        /// Counted from 1. For a jump to a missing chain iptables-nft names the line of `COMMIT`.
        line: usize,
        /// Further lines at fault: iptables-nft names all that the kernel refused.
        others: Vec<usize>,
        /// Program and message.
        source: CommandError,
    },
    /// It failed without a line, or before it read any.
    #[error(transparent)]
    Command(CommandError),
}

impl RestoreError {
    /// The refused lines, counted from 1, in the order in which the program named them.
    pub fn lines(&self) -> Vec<usize> {
        match self {
            Self::Line { line, others, .. } => [&[*line], &others[..]].concat(),
            Self::Command(_) => Vec::new(),
        }
    }

    /// Returns whether the input itself was refused, so that the same input fails again. A missing
    /// program or privilege, a busy lock, a lack of memory or descriptors and a killed program do
    /// not count, even where the program names the line at which it happened.
    pub fn is_refusal(&self) -> bool {
        let (named, error) = match self {
            Self::Line { source, .. } => (true, source),
            Self::Command(error) => (false, error),
        };
        let CommandError::Failed {
            status, message, ..
        } = error
        else {
            return false;
        };
        // Without a line, only the statuses "other" and "bad parameter" concern the input.
        let judged = named || matches!(status.code(), Some(1 | 2));
        judged && !CIRCUMSTANCES.iter().any(|words| message.contains(words))
    }

    /// Returns whether a retry in a moment is likely to work.
    pub fn is_lock_busy(&self) -> bool {
        matches!(self, Self::Command(error) if error.is_lock_busy())
    }
}

/// Messages of failures that the input did not cause: the texts of `strerror(3)`, and that of
/// iptables-legacy for ENOMEM.
const CIRCUMSTANCES: [&str; 8] = [
    "Cannot allocate memory",
    "Memory allocation problem",
    "No buffer space available",
    "Message too long",
    "Too many open files",
    "Resource temporarily unavailable",
    "Permission denied",
    "Operation not permitted",
];

impl From<CommandError> for RestoreError {
    fn from(error: CommandError) -> Self {
        let message = error.message().unwrap_or_default();
        match failing_line(message) {
            Some(line) => Self::Line {
                line,
                others: refused_lines(message)
                    .filter(|other| *other != line)
                    .collect(),
                source: error,
            },
            None => Self::Command(error),
        }
    }
}

/// All lines in the form of iptables-nft, `line 5: RULE_APPEND failed (…)`. A number at which the
/// message was cut is not followed by a colon.
fn refused_lines(message: &str) -> impl Iterator<Item = usize> {
    let numbers = message.split("; ").filter_map(|part| {
        let (number, words) = part.trim_start().strip_prefix("line ")?.split_once(": ")?;
        words.contains("failed").then(|| number.parse().ok())?
    });
    let lines: std::collections::BTreeSet<usize> = numbers.collect();
    lines.into_iter()
}

/// Finds the line number in the forms that both variants use:
/// `Error occurred at line: 3`, `line 3 failed`, `line 5: CHAIN_DEL failed (…)`,
/// `COMMIT expected at line 4`.
fn failing_line(message: &str) -> Option<usize> {
    let number_after = |marker: &str| {
        message.match_indices(marker).find_map(|(position, _)| {
            let rest = &message[position + marker.len()..];
            let digits = rest
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(rest.len());
            rest[..digits].parse().ok()
        })
    };
    number_after("Error occurred at line: ").or_else(|| number_after("line "))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus};

    use super::*;

    fn failed(code: i32, message: &str) -> RestoreError {
        CommandError::Failed {
            command: "iptables-restore".to_owned(),
            status: ExitStatus::from_raw(code << 8),
            message: message.to_owned(),
        }
        .into()
    }

    #[test]
    fn only_an_input_that_was_judged_is_refused() {
        let refused = [
            (
                2,
                "recent: bad value for option \"--seconds\"; Error occurred at line: 21",
            ),
            (
                4,
                "line 5: RULE_APPEND failed (Invalid argument): rule in chain KUBE-SVC-X",
            ),
            (1, "iptables-restore: line 7 failed"),
            (1, "iptables-restore: unable to initialize table 'nat'"),
        ];
        for (code, message) in refused {
            assert!(failed(code, message).is_refusal(), "{message}");
        }
        let circumstances = [
            (
                4,
                "line 5: RULE_APPEND failed (Cannot allocate memory): rule in chain KUBE-SVC-X",
            ),
            (
                1,
                "iptables-restore: line 9 failed: Memory allocation problem.",
            ),
            (3, "Permission denied (you must be root)"),
            (4, "Another app is currently holding the xtables lock"),
            (
                4,
                "Fatal: can't open lock file /run/xtables.lock: Read-only file system",
            ),
        ];
        for (code, message) in circumstances {
            assert!(!failed(code, message).is_refusal(), "{message}");
        }
        let killed = CommandError::Failed {
            command: String::new(),
            status: ExitStatus::from_raw(9),
            message: String::new(),
        };
        assert!(!RestoreError::from(killed).is_refusal());
    }

    #[test]
    fn every_line_that_iptables_nft_names_is_found() {
        let error = failed(
            4,
            "iptables-nft-restore v1.8.9 (nf_tables):; line 4: RULE_APPEND failed (Invalid \
             argument): rule in chain KUBE-SVC-A; line 7: RULE_APPEND failed (Invalid argument): \
             rule in chain KUBE-SVC-B; line 7: RULE_INSERT failed (Invalid argument): rule in \
             chain KUBE-SERVICES; line 12…",
        );
        assert_eq!(error.lines(), [4, 7]);
        assert_eq!(failed(1, "iptables-restore: line 7 failed").lines(), [7]);
        assert!(
            failed(1, "unable to initialize table 'nat'")
                .lines()
                .is_empty()
        );
    }

    #[test]
    fn every_known_form_of_a_failing_line_is_understood() {
        let cases = [
            ("iptables-restore: line 3 failed", Some(3)),
            (
                "iptables-nft-restore: line 12 failed: No chain/target/match by that name.",
                Some(12),
            ),
            (
                "iptables-restore v1.8.9 (legacy): Couldn't load target `NOPE':No such file or \
                 directory; Error occurred at line: 7",
                Some(7),
            ),
            (
                "iptables-nft-restore v1.8.9 (nf_tables):; line 5: CHAIN_DEL failed (Device or \
                 resource busy): chain BAR",
                Some(5),
            ),
            ("iptables-restore: COMMIT expected at line 4", Some(4)),
            (
                "iptables-nft-restore v1.8.9 (nf_tables): iptables-nft-restore: line 1 table name \
                 'wat' invalid; Error occurred at line: 1",
                Some(1),
            ),
            ("the command line is wrong", None),
            ("Permission denied (you must be root)", None),
        ];
        for (message, line) in cases {
            assert_eq!(failing_line(message), line, "{message}");
        }
    }
}
