//! Progress and results of a playground run, as text or as JSON lines.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal as _},
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::traffic::Tally;

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Lines for people.
    Text,
    /// A JSON document on each line.
    Json,
}

/// Writes of all proxies during a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Written {
    /// Number of syncs that wrote something.
    pub syncs: usize,
    /// Number of elements added, replaced or deleted.
    pub elements: u64,
    /// Number of bytes written.
    pub bytes: u64,
    /// Bytes that the same syncs would have written if each had written all elements.
    pub bytes_of_everything: u64,
    /// Time from the last change of the EndpointSlice until the last kernel was updated.
    pub milliseconds: Option<f64>,
}

/// A step of a run and its result.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// Name of the step.
    pub step: String,
    /// True if all checks passed.
    pub ok: bool,
    /// Duration of the step.
    pub milliseconds: u64,
    /// Details, or the error.
    pub detail: String,
    /// Writes of the proxies, where they were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<Written>,
    /// Results of the requests during the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Tally>,
}

/// The end of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Number of steps.
    pub steps: usize,
    /// Names of the failed steps.
    pub failed: Vec<String>,
    /// Number of answered requests.
    pub answered: u64,
    /// Number of requests without an answer.
    pub unanswered: u64,
    /// Duration of the run.
    pub milliseconds: u64,
}

/// Prints steps as they end.
#[derive(Debug)]
pub struct Reporter {
    format: Format,
    colours: bool,
    begun: Instant,
    steps: Vec<Step>,
}

impl Reporter {
    /// A reporter that writes to standard output.
    pub fn new(format: Format) -> Self {
        Self {
            format,
            colours: io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
            begun: Instant::now(),
            steps: Vec::new(),
        }
    }

    /// Shows the current step, on terminals only; the next line replaces it.
    pub fn progress(&self, what: &str) {
        if self.format == Format::Text && self.colours {
            print(&format!("\r\x1b[2K  … {what}"));
        }
    }

    /// Prints a text, unless the format is JSON.
    pub fn say(&self, text: &str) {
        if self.format == Format::Text {
            self.clear_progress();
            print_line(text);
        }
    }

    fn clear_progress(&self) {
        if self.colours {
            print("\r\x1b[2K");
        }
    }

    /// Prints and records a step.
    pub fn step(&mut self, step: Step) {
        match self.format {
            Format::Text => {
                self.clear_progress();
                let line = self.line(&step);
                print_line(&line);
            }
            Format::Json => print_json(&step),
        }
        self.steps.push(step);
    }

    fn line(&self, step: &Step) -> String {
        let (sign, colour) = if step.ok {
            ("✓", "32")
        } else {
            ("✗", "31")
        };
        let sign = if self.colours {
            format!("\x1b[{colour}m{sign}\x1b[0m")
        } else {
            sign.to_owned()
        };
        let took = seconds(Duration::from_millis(step.milliseconds));
        let mut line = format!("  {sign} {:<44} {took:>7}", step.step);
        for text in [
            Some(step.detail.clone()).filter(|detail| !detail.is_empty()),
            step.written.as_ref().map(Written::line),
            step.traffic.as_ref().map(Tally::line),
        ]
        .into_iter()
        .flatten()
        {
            line.push_str("\n      ");
            line.push_str(&text);
        }
        line
    }

    /// Prints and returns the summary.
    pub fn finish(self) -> Summary {
        let failed = self.steps.iter().filter(|step| !step.ok);
        let tallies = || self.steps.iter().filter_map(|step| step.traffic.as_ref());
        let summary = Summary {
            steps: self.steps.len(),
            failed: failed.map(|step| step.step.clone()).collect(),
            answered: tallies().map(|tally| tally.answered).sum(),
            unanswered: tallies().map(|tally| tally.failed).sum(),
            milliseconds: u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        match self.format {
            Format::Text => print_line(&summary.line()),
            Format::Json => print_json(&summary),
        }
        summary
    }
}

fn print_line(text: &str) {
    print(&format!("{text}\n"));
}

fn print(text: &str) {
    let mut out = io::stdout().lock();
    // A closed standard output must not end the run.
    let _ = io::Write::write_all(&mut out, text.as_bytes());
    let _ = io::Write::flush(&mut out);
}

fn print_json(value: &impl Serialize) {
    if let Ok(text) = serde_json::to_string(value) {
        print_line(&text);
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// A size in B, kB or MB.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{}.{} kB", bytes / 1000, bytes % 1000 / 100),
        _ => format!("{}.{} MB", bytes / 1_000_000, bytes % 1_000_000 / 100_000),
    }
}

impl Written {
    fn line(&self) -> String {
        let mut line = format!(
            "{} elements in {} syncs, {} instead of {}",
            self.elements,
            self.syncs,
            size(self.bytes),
            size(self.bytes_of_everything)
        );
        if let Some(milliseconds) = self.milliseconds {
            let _infallible = write!(
                line,
                "; in every kernel {milliseconds:.0} ms after the API had it"
            );
        }
        line
    }
}

impl Tally {
    fn line(&self) -> String {
        let mut line = format!(
            "{} requests answered by {} pods on {} nodes, {} failed, longest wait {} ms",
            self.answered,
            self.pods.len(),
            self.nodes.len(),
            self.failed,
            self.longest_gap_milliseconds
        );
        if let Some(first) = self.failures.first() {
            let _infallible = write!(line, " ({first})");
        }
        line
    }
}

impl Summary {
    /// True if no step failed.
    pub fn ok(&self) -> bool {
        self.failed.is_empty()
    }

    fn line(&self) -> String {
        let took = seconds(Duration::from_millis(self.milliseconds));
        let requests = format!("{} requests, {} unanswered", self.answered, self.unanswered);
        if self.ok() {
            format!("\n{} steps passed in {took}; {requests}", self.steps)
        } else {
            format!("\nfailed: {}; {requests}", self.failed.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_costs_are_readable() {
        assert_eq!(size(812), "812 B");
        assert_eq!(size(48_211), "48.2 kB");
        assert_eq!(size(1_250_000), "1.2 MB");
        let written = Written {
            syncs: 3,
            elements: 4,
            bytes: 812,
            bytes_of_everything: 48_211,
            milliseconds: Some(14.2),
        };
        assert_eq!(
            written.line(),
            "4 elements in 3 syncs, 812 B instead of 48.2 kB; in every kernel 14 ms after the API had it"
        );
    }

    #[test]
    fn a_summary_names_what_failed() {
        let mut reporter = Reporter::new(Format::Json);
        for (step, ok) in [("one", true), ("two", false)] {
            reporter.step(Step {
                step: step.to_owned(),
                ok,
                milliseconds: 1,
                detail: String::new(),
                written: None,
                traffic: None,
            });
        }
        let summary = reporter.finish();
        assert_eq!((summary.steps, summary.failed), (2, vec!["two".to_owned()]));
    }
}
