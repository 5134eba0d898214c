//! Kubernetes' own end-to-end tests on the cluster: which are chosen, how they run, what they found.
//!
//! Tests run in batches, and several batches at a time: most of a test is waiting. What each found is
//! written after its batch, so a run that was interrupted goes on with what is left.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    thread,
    time::Instant,
};

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};

use super::inside::Cluster;
use crate::process;

/// Tests of one process; few, so that those who wait for each other wait shortly.
const BATCH: usize = 3;
/// Processes at the same time.
const WORKERS: usize = 4;
/// Longest time of a batch. The longest test waits for the expiry of session affinity.
const BATCH_LIMIT: &str = "25m";

/// Tests to run, and where to write what they found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Selection {
    /// Regular expression that names match.
    pub(crate) focus: String,
    /// Parts of names that are left out, with the reason.
    pub(crate) left_out: Vec<(String, String)>,
    /// The file of results; a former run's are kept if they are of the same programs.
    pub(crate) results: PathBuf,
    /// Identifies the programs under test.
    pub(crate) subject: String,
}

/// Findings of the tests of one selection.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) subject: String,
    /// By the test's name.
    pub(crate) tests: BTreeMap<String, Finding>,
    /// Tests that the selection leaves out, with the reason.
    pub(crate) left_out: BTreeMap<String, String>,
}

/// Outcome of one test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Finding {
    pub(crate) state: State,
    pub(crate) seconds: f64,
    /// Reason of a failed or skipped test.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Passed,
    /// By the test itself: the cluster lacks what it needs.
    Skipped,
    Failed,
}

impl Cluster {
    /// Runs the selection; fails if a test failed.
    pub(crate) fn run_tests(&self, selection: &Selection) -> anyhow::Result<()> {
        let began = Instant::now();
        let listed = self.list_tests(&selection.focus)?;
        let mut results = Results::read_or_new(&selection.results, &selection.subject)?;
        results.left_out.clear();
        let mut waiting = Vec::new();
        for name in listed {
            match selection.reason_to_leave_out(&name) {
                Some(reason) => {
                    results.left_out.insert(name, reason.to_owned());
                }
                None if results.has_passed(&name) => {}
                None => waiting.push(name),
            }
        }
        selection.check_reasons(results.left_out.values())?;
        let total = waiting.len();
        eprintln!(
            "{total} tests to run, {} left out, {} found before",
            results.left_out.len(),
            results.tests.len()
        );
        results.write(&selection.results)?;
        let batches: VecDeque<Vec<String>> =
            waiting.chunks(BATCH).map(<[String]>::to_vec).collect();
        let (batches, results) = (Mutex::new(batches), Mutex::new(results));
        thread::scope(|scope| {
            let workers: Vec<_> = (0..WORKERS)
                .map(|worker| {
                    let (batches, results) = (&batches, &results);
                    scope.spawn(move || self.work_off(worker, batches, results, selection))
                })
                .collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().expect("a worker does not panic"))
        })?;
        let results = results.into_inner().expect("no worker panicked");
        let count = |state| results.count(state);
        eprintln!(
            "{} passed, {} failed, {} skipped in {:.0} s",
            count(State::Passed),
            count(State::Failed),
            count(State::Skipped),
            began.elapsed().as_secs_f64()
        );
        let failed = results.failed();
        ensure!(failed.is_empty(), "tests failed:\n{}", failed.join("\n"));
        ensure!(count(State::Passed) > 0, "no test ran");
        Ok(())
    }

    fn work_off(
        &self,
        worker: usize,
        batches: &Mutex<VecDeque<Vec<String>>>,
        results: &Mutex<Results>,
        selection: &Selection,
    ) -> anyhow::Result<()> {
        loop {
            let next = batches.lock().expect("no worker panicked").pop_front();
            let Some(batch) = next else {
                return Ok(());
            };
            let found = self.run_batch(worker, &batch)?;
            let mut results = results.lock().expect("no worker panicked");
            for name in &batch {
                let finding = found.get(name).cloned().unwrap_or_else(|| Finding {
                    state: State::Failed,
                    seconds: 0.0,
                    message: "the test program ended before this test".to_owned(),
                });
                eprintln!("  {:?} {:.0} s {name}", finding.state, finding.seconds);
                results.tests.insert(name.clone(), finding);
            }
            results.write(&selection.results)?;
        }
    }

    fn run_batch(
        &self,
        worker: usize,
        names: &[String],
    ) -> anyhow::Result<BTreeMap<String, Finding>> {
        let patterns: Vec<String> = names.iter().map(|name| escape(name)).collect();
        let report = self.report_of(&format!("worker-{worker}"));
        let mut command = self.test_program(&patterns.join("|"), &report)?;
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.directory.join(format!("logs/e2e-{worker}.log")))
            .context("cannot open the log of tests")?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let _ = fs::remove_file(&report);
        // It fails if one of its tests does.
        let status = command.status().context("cannot start e2e.test")?;
        if !report.is_file() {
            bail!(
                "e2e.test ended without a report: {status}; see {}",
                self.directory.join("logs").display()
            );
        }
        Ok(read_report(&report)?.into_iter().collect())
    }

    /// Names of the tests that match.
    fn list_tests(&self, focus: &str) -> anyhow::Result<Vec<String>> {
        let report = self.report_of("list");
        let mut command = self.test_program(focus, &report)?;
        process::output(command.arg("-ginkgo.dry-run"))?;
        let mut names: Vec<String> = read_report(&report)?
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn report_of(&self, name: &str) -> PathBuf {
        self.directory.join(format!("e2e-{name}.json"))
    }

    fn test_program(&self, focus: &str, report: &Path) -> anyhow::Result<Command> {
        let mut command = self.nodes[0].in_network(self.programs.join("e2e.test"))?;
        command
            .arg(format!("-ginkgo.focus={focus}"))
            .arg(format!("-ginkgo.timeout={BATCH_LIMIT}"))
            .arg(format!("-ginkgo.json-report={}", report.display()))
            .args(["-ginkgo.v", "-ginkgo.no-color", "-ginkgo.silence-skips"])
            .arg(format!("-kubeconfig={}", self.kubeconfig().display()))
            .arg(format!("-num-nodes={}", self.nodes.len()))
            .arg(format!(
                "-kubectl-path={}",
                self.programs.join("kubectl").display()
            ))
            // No cloud's code; logs of nodes are next to ours already.
            .args(["-provider=skeleton", "-disable-log-dump"])
            .args(["-allowed-not-ready-nodes=0", "-minStartupPods=0"]);
        Ok(command)
    }
}

impl Selection {
    /// Fails if a reason leaves out no test: names change from version to version.
    fn check_reasons<'a>(&self, used: impl Iterator<Item = &'a String>) -> anyhow::Result<()> {
        let used: BTreeSet<&String> = used.collect();
        for (part, reason) in &self.left_out {
            ensure!(used.contains(reason), "no test is named {part} ({reason})");
        }
        Ok(())
    }

    fn reason_to_leave_out(&self, name: &str) -> Option<&str> {
        self.left_out
            .iter()
            .find(|(part, _)| name.contains(part.as_str()))
            .map(|(_, reason)| reason.as_str())
    }
}

impl Results {
    /// Those of a former run of the same programs, or none.
    fn read_or_new(file: &Path, subject: &str) -> anyhow::Result<Self> {
        let fresh = Self {
            subject: subject.to_owned(),
            ..Self::default()
        };
        if !file.is_file() {
            return Ok(fresh);
        }
        let text =
            fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let found: Self = serde_json::from_str(&text)
            .with_context(|| format!("cannot parse {}", file.display()))?;
        Ok(if found.subject == subject {
            found
        } else {
            fresh
        })
    }

    fn write(&self, file: &Path) -> anyhow::Result<()> {
        if let Some(directory) = file.parent() {
            fs::create_dir_all(directory)
                .with_context(|| format!("cannot create {}", directory.display()))?;
        }
        // Renamed when it is complete: an interrupted run must not spoil what was found.
        let part = file.with_extension("part");
        fs::write(&part, serde_json::to_string_pretty(self)? + "\n")
            .with_context(|| format!("cannot write {}", part.display()))?;
        fs::rename(&part, file).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Tests that failed run again.
    fn has_passed(&self, name: &str) -> bool {
        self.tests
            .get(name)
            .is_some_and(|finding| finding.state != State::Failed)
    }

    fn count(&self, state: State) -> usize {
        let of_state = |finding: &&Finding| finding.state == state;
        self.tests.values().filter(of_state).count()
    }

    fn failed(&self) -> Vec<String> {
        self.tests
            .iter()
            .filter(|(_, finding)| finding.state == State::Failed)
            .map(|(name, finding)| format!("{name}: {}", finding.message))
            .collect()
    }
}

/// The parts of ginkgo's report that are used.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SuiteReport {
    spec_reports: Option<Vec<SpecReport>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SpecReport {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    /// In nanoseconds.
    run_time: f64,
    failure: Option<Failure>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
}

fn read_report(file: &Path) -> anyhow::Result<Vec<(String, Finding)>> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    findings(&text).with_context(|| format!("cannot parse {}", file.display()))
}

/// Tests that were selected, by name.
fn findings(report: &str) -> anyhow::Result<Vec<(String, Finding)>> {
    let suites: Vec<SuiteReport> = serde_json::from_str(report)?;
    let specs = suites
        .into_iter()
        .flat_map(|suite| suite.spec_reports.unwrap_or_default());
    Ok(specs.filter_map(SpecReport::finding).collect())
}

impl SpecReport {
    /// None for what is not a test, and for tests that were not selected: those are skipped without
    /// a message.
    fn finding(self) -> Option<(String, Finding)> {
        if self.leaf_node_type != "It" {
            return None;
        }
        let message = self.failure.unwrap_or_default().message;
        let state = match self.state.as_str() {
            "passed" => State::Passed,
            "skipped" | "pending" if message.is_empty() => return None,
            "skipped" => State::Skipped,
            _ => State::Failed,
        };
        let mut words = self.container_hierarchy_texts.unwrap_or_default();
        words.push(self.leaf_node_text);
        let finding = Finding {
            state,
            seconds: (self.run_time / 1e8).round() / 10.0,
            message: message.lines().next().unwrap_or_default().to_owned(),
        };
        Some((words.join(" "), finding))
    }
}

/// A regular expression that matches just this text.
fn escape(text: &str) -> String {
    let mut pattern = String::new();
    for letter in text.chars() {
        if !letter.is_alphanumeric() && !letter.is_whitespace() && letter.is_ascii() {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"[{"SpecReports": [
        {"ContainerHierarchyTexts": null, "LeafNodeType": "SynchronizedBeforeSuite",
         "LeafNodeText": "", "State": "passed", "RunTime": 5},
        {"ContainerHierarchyTexts": ["[sig-network] DNS"], "LeafNodeType": "It",
         "LeafNodeText": "should work", "State": "passed", "RunTime": 2140000000},
        {"ContainerHierarchyTexts": ["[sig-network] DNS"], "LeafNodeType": "It",
         "LeafNodeText": "was not selected", "State": "skipped", "RunTime": 0},
        {"ContainerHierarchyTexts": ["[sig-network] DNS"], "LeafNodeType": "It",
         "LeafNodeText": "needs zones", "State": "skipped", "RunTime": 1,
         "Failure": {"Message": "need 3 zones\nat a line"}},
        {"ContainerHierarchyTexts": ["[sig-network] DNS"], "LeafNodeType": "It",
         "LeafNodeText": "breaks", "State": "timedout", "RunTime": 1,
         "Failure": {"Message": "too slow"}}
    ]}]"#;

    #[test]
    fn a_report_gives_each_selected_test_with_its_state_and_reason() {
        let found: BTreeMap<_, _> = findings(REPORT).unwrap().into_iter().collect();
        let of = |name: &str| found[&format!("[sig-network] DNS {name}")].clone();
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(of("should work").state, State::Passed);
        assert!((of("should work").seconds - 2.1).abs() < f64::EPSILON);
        assert_eq!(of("needs zones").state, State::Skipped);
        assert_eq!(of("needs zones").message, "need 3 zones");
        assert_eq!(of("breaks").state, State::Failed);
    }

    #[test]
    fn results_of_another_program_are_not_taken_over_and_failed_tests_run_again() {
        let file = std::env::temp_dir().join(format!("weft-e2e-{}.json", std::process::id()));
        let mut results = Results::read_or_new(&file, "one").unwrap();
        for (name, state) in [("good", State::Passed), ("bad", State::Failed)] {
            let finding = Finding {
                state,
                seconds: 1.0,
                message: String::new(),
            };
            results.tests.insert(name.to_owned(), finding);
        }
        results.write(&file).unwrap();
        let same = Results::read_or_new(&file, "one").unwrap();
        assert!(same.has_passed("good") && !same.has_passed("bad"));
        let other = Results::read_or_new(&file, "two").unwrap();
        assert!(other.tests.is_empty());
        fs::remove_file(&file).unwrap();
    }

    #[test]
    fn a_pattern_of_a_name_has_no_special_characters_left() {
        assert_eq!(escape("a [b] c: (d)"), r"a \[b\] c\: \(d\)");
    }
}
