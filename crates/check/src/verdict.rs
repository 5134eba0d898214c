//! Judgement of the answers, and the report.

use std::{
    collections::BTreeSet,
    fmt::{self, Write as _},
};

use serde::Serialize;

use crate::{
    echo::EchoAnswer,
    plan::{Check, Expected},
    question::{Attempts, Outcome},
};

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// All answers are as expected.
    Ok,
    /// An answer is missing or unexpected.
    Failed,
    /// The check cannot run in this cluster.
    NotApplicable,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::NotApplicable => "not applicable",
        }
    }
}

/// A line of the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Name of the check.
    pub check: String,
    /// Result of the check.
    pub verdict: Verdict,
    /// Median duration of the answered requests.
    pub milliseconds: Option<f64>,
    /// Explanation of the result.
    pub detail: String,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// No check failed.
    pub ok: bool,
    /// Names of the nodes with probes.
    pub nodes: Vec<String>,
    /// One row for each check.
    pub rows: Vec<Row>,
}

impl Report {
    /// A report of these rows.
    pub fn new(nodes: Vec<String>, rows: Vec<Row>) -> Self {
        Self {
            ok: rows.iter().all(|row| row.verdict != Verdict::Failed),
            nodes,
            rows,
        }
    }

    /// Number of checks that failed.
    pub fn failed(&self) -> usize {
        let failed = |row: &&Row| row.verdict == Verdict::Failed;
        self.rows.iter().filter(failed).count()
    }
}

impl Row {
    /// A row for a check that cannot run in this cluster.
    pub fn not_applicable(check: String, why: String) -> Self {
        Self {
            check,
            verdict: Verdict::NotApplicable,
            milliseconds: None,
            detail: why,
        }
    }

    /// A failed row for a check whose probe could not be reached.
    pub fn unreachable(check: &Check, why: &str) -> Self {
        Self {
            check: check.name.clone(),
            verdict: Verdict::Failed,
            milliseconds: None,
            detail: format!("cannot reach the probe: {why}"),
        }
    }

    /// Judges the answers of a check.
    pub fn judge(check: &Check, asked: &Attempts) -> Self {
        let (verdict, detail) = match deviation(check, asked) {
            None => (Verdict::Ok, summary(check, asked)),
            Some(deviation) => (Verdict::Failed, deviation),
        };
        Self {
            check: check.name.clone(),
            verdict,
            milliseconds: median(asked),
            detail,
        }
    }
}

fn answers(asked: &Attempts) -> impl Iterator<Item = &EchoAnswer> {
    asked.tries.iter().filter_map(|one| match &one.outcome {
        Outcome::Answer(answer) => Some(answer),
        Outcome::Error(_) => None,
    })
}

fn pods(asked: &Attempts) -> BTreeSet<&str> {
    answers(asked).map(|answer| answer.pod.as_str()).collect()
}

fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// The worst deviation from the expectation, if any.
fn deviation(check: &Check, asked: &Attempts) -> Option<String> {
    let target = check.question.target;
    let count = usize::from(check.question.count);
    let answered = answers(asked).count();
    if answered < count {
        let errors = asked.tries.iter().find_map(|one| match &one.outcome {
            Outcome::Error(error) => Some(error.as_str()),
            Outcome::Answer(_) => None,
        });
        let why = errors.unwrap_or("time ran out");
        return Some(format!(
            "{answered} of {count} answered from {target}: {why}"
        ));
    }
    let seen = pods(asked);
    let (Expected::Each(expected) | Expected::One(expected)) = &check.expected;
    let strangers = seen.iter().filter(|pod| !expected.contains(**pod)).copied();
    let strangers = listed(strangers);
    if !strangers.is_empty() {
        return Some(format!(
            "{target} was answered by {strangers}, which must not answer"
        ));
    }
    match &check.expected {
        Expected::Each(expected) => {
            let missing = expected.iter().map(String::as_str);
            let missing = listed(missing.filter(|pod| !seen.contains(pod)));
            if !missing.is_empty() {
                return Some(format!("{target} was never answered by {missing}"));
            }
        }
        Expected::One(_) if seen.len() > 1 => {
            return Some(format!(
                "{target} was answered by {} in turn",
                listed(seen.iter().copied())
            ));
        }
        Expected::One(_) => {}
    }
    let strange = answers(asked)
        .map(|answer| answer.client.ip())
        .find(|source| !check.source.is_empty() && !check.source.contains(source))?;
    Some(format!("{target} saw the pod as {strange}, not as itself"))
}

fn summary(check: &Check, asked: &Attempts) -> String {
    let by = listed(pods(asked));
    let mut text = format!("{} answered by {by}", check.question.target);
    if !check.source.is_empty() {
        text.push_str(", which saw the pod's own address");
    }
    text
}

fn median(asked: &Attempts) -> Option<f64> {
    let answered = asked
        .tries
        .iter()
        .filter(|one| matches!(one.outcome, Outcome::Answer(_)));
    let mut took: Vec<u64> = answered.map(|one| one.microseconds).collect();
    took.sort_unstable();
    let middle = u32::try_from(*took.get(took.len() / 2)?).unwrap_or(u32::MAX);
    Some(f64::from(middle) / 1000.0)
}

/// The table.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widest = self.rows.iter().map(|row| row.check.len()).max();
        let width = widest.unwrap_or_default().max("CHECK".len());
        writeln!(
            f,
            "{:width$}  {:14}  {:>9}  DETAIL",
            "CHECK", "RESULT", "TIME"
        )?;
        for row in &self.rows {
            let mut took = String::new();
            if let Some(milliseconds) = row.milliseconds {
                write!(took, "{milliseconds:.1} ms")?;
            }
            writeln!(
                f,
                "{:width$}  {:14}  {took:>9}  {}",
                row.check,
                row.verdict.word(),
                row.detail
            )?;
        }
        let count = |verdict| {
            self.rows
                .iter()
                .filter(|row| row.verdict == verdict)
                .count()
        };
        writeln!(
            f,
            "\n{} ok, {} failed, {} not applicable, on {}",
            count(Verdict::Ok),
            count(Verdict::Failed),
            count(Verdict::NotApplicable),
            self.nodes.join(" and ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::Origin,
        question::{ProbeProtocol, Question, Try},
    };

    fn check(expected: Expected, source: &[&str]) -> Check {
        Check {
            name: "x".to_owned(),
            origin: Origin::Pod,
            question: Question {
                protocol: ProbeProtocol::Http,
                target: "10.96.0.5:80".parse().unwrap(),
                count: 3,
            },
            expected,
            source: source.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    fn each(names: &[&str]) -> Expected {
        Expected::Each(names.iter().map(|&name| name.to_owned()).collect())
    }

    fn one(names: &[&str]) -> Expected {
        Expected::One(names.iter().map(|&name| name.to_owned()).collect())
    }

    /// Tries by responder; an empty name is an error.
    fn asked(pods: &[&str]) -> Attempts {
        let outcome = |pod: &str| match pod {
            "" => Outcome::Error("no answer in time".to_owned()),
            pod => Outcome::Answer(EchoAnswer {
                pod: pod.to_owned(),
                node: "node".to_owned(),
                client: "10.1.0.2:4711".parse().unwrap(),
            }),
        };
        let tries = (1..).zip(pods).map(|(number, pod)| Try {
            microseconds: number * 1000,
            outcome: outcome(pod),
        });
        Attempts {
            tries: tries.collect(),
        }
    }

    #[test]
    fn what_is_as_it_should_be_is_ok() {
        let own = check(each(&["a"]), &["10.1.0.2", "fd01::2"]);
        for (check, pods) in [
            (&own, ["a", "a", "a"]),
            (&check(each(&["a", "b"]), &[]), ["a", "b", "a"]),
            (&check(one(&["a", "b"]), &[]), ["b", "b", "b"]),
        ] {
            let row = Row::judge(check, &asked(&pods));
            assert_eq!(row.verdict, Verdict::Ok, "{row:?}");
            assert_eq!(row.milliseconds, Some(2.0));
        }
    }

    #[test]
    fn every_deviation_fails_and_is_named() {
        let both = || each(&["a", "b"]);
        for (check, pods, detail) in [
            // A Service without endpoints: every request is refused.
            (
                check(both(), &[]),
                &["", "", ""][..],
                "0 of 3 answered from 10.96.0.5:80: no answer in time",
            ),
            (
                check(both(), &[]),
                &["a", "", "b"],
                "2 of 3 answered from 10.96.0.5:80: no answer in time",
            ),
            (
                check(both(), &[]),
                &["a", "b"],
                "2 of 3 answered from 10.96.0.5:80: time ran out",
            ),
            (
                check(both(), &[]),
                &["a", "a", "a"],
                "10.96.0.5:80 was never answered by b",
            ),
            (
                check(both(), &[]),
                &["a", "b", "c"],
                "10.96.0.5:80 was answered by c, which must not answer",
            ),
            (
                check(one(&["a", "b"]), &[]),
                &["a", "b", "a"],
                "10.96.0.5:80 was answered by a, b in turn",
            ),
            (
                check(each(&["a"]), &["10.1.0.9"]),
                &["a", "a", "a"],
                "10.96.0.5:80 saw the pod as 10.1.0.2, not as itself",
            ),
        ] {
            let row = Row::judge(&check, &asked(pods));
            assert_eq!(
                (row.verdict, row.detail.as_str()),
                (Verdict::Failed, detail)
            );
        }
    }

    #[test]
    fn a_report_fails_with_any_row_but_not_with_what_does_not_apply() {
        let fine = Row::judge(&check(each(&["a"]), &[]), &asked(&["a", "a", "a"]));
        let not = Row::not_applicable("y".to_owned(), "one node".to_owned());
        let bad = Row::unreachable(&check(each(&["a"]), &[]), "403");
        let nodes = vec!["one".to_owned(), "two".to_owned()];
        let report = Report::new(nodes.clone(), vec![fine.clone(), not.clone()]);
        assert!(report.ok && report.failed() == 0);
        let report = Report::new(nodes, vec![fine, not, bad]);
        assert!(!report.ok && report.failed() == 1);
        assert_eq!(
            report.to_string(),
            "CHECK  RESULT               TIME  DETAIL\n\
             x      ok                 2.0 ms  10.96.0.5:80 answered by a\n\
             y      not applicable             one node\n\
             x      failed                     cannot reach the probe: 403\n\
             \n1 ok, 1 failed, 1 not applicable, on one and two\n"
        );
    }
}
