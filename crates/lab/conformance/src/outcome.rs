//! The outcome of a comparison, written as JSON by the comparison and read by the report.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::{machine, report::figure};

/// Figures and claims of one comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Value of `PART` for `make conformance`, and the name of the file.
    pub(crate) part: String,
    /// Heading of its section.
    pub(crate) title: String,
    /// Load and measurement in a few sentences.
    pub(crate) method: String,
    /// The command that repeats it.
    pub(crate) command: String,
    /// Machine on which it was measured.
    #[serde(default)]
    pub(crate) machine: String,
    /// Programs and their versions, as they print them.
    pub(crate) versions: Vec<String>,
    /// Compared programs, in the sequence of the table's columns.
    pub(crate) arms: Vec<String>,
    pub(crate) measures: Vec<Measure>,
    pub(crate) claims: Vec<Claim>,
    /// Remarks that a reader needs to interpret the figures.
    pub(crate) notes: Vec<String>,
    /// Results that are not figures, such as those of each test.
    #[serde(default)]
    pub(crate) tables: Vec<Table>,
    /// True if the comparison had not ended when this was written.
    #[serde(default)]
    pub(crate) incomplete: bool,
}

/// A table of texts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// One figure of every arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measure {
    pub(crate) name: String,
    /// Size of the load, such as a number of Services. Measures of one name and several sizes
    /// become a plot.
    pub(crate) size: Option<u32>,
    pub(crate) unit: String,
    /// Figures by arm; an arm that was not measured has no entry.
    pub(crate) values: BTreeMap<String, f64>,
}

/// A ratio of two arms, with a target or for information.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Claim {
    /// Such as "one changed slice at 10,000 Services, kube-proxy / weft on nft".
    pub(crate) name: String,
    /// None if one of the two was not measured.
    pub(crate) ratio: Option<f64>,
    pub(crate) target: Option<Target>,
}

/// The target of a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// At least `wanted`, or [`ACHIEVABLE_SHARE`] of what any program could reach, if that is less.
    #[serde(rename = "asFarAs")]
    BestAchievable {
        wanted: f64,
        attainable: f64,
    },
}

/// Share of the attainable ratio that counts as best achievable.
const ACHIEVABLE_SHARE: f64 = 0.75;

impl Outcome {
    /// An outcome without figures, for this machine.
    pub(crate) fn new(part: &str, title: &str, arms: &[&str]) -> Self {
        Self {
            part: part.to_owned(),
            title: title.to_owned(),
            method: String::new(),
            command: format!("make conformance PART={part}"),
            machine: machine::describe(),
            versions: Vec::new(),
            arms: arms.iter().map(|&arm| arm.to_owned()).collect(),
            measures: Vec::new(),
            claims: Vec::new(),
            notes: Vec::new(),
            tables: Vec::new(),
            incomplete: false,
        }
    }

    /// Adds one arm's figure to a measure, and creates the measure if necessary.
    pub(crate) fn add(&mut self, name: &str, size: Option<u32>, unit: &str, arm: &str, value: f64) {
        assert!(self.arms.iter().any(|known| known == arm), "no arm {arm}");
        let known = self
            .measures
            .iter_mut()
            .find(|measure| measure.name == name && measure.size == size);
        let values = BTreeMap::from([(arm.to_owned(), value)]);
        match known {
            Some(measure) => measure.values.extend(values),
            None => self.measures.push(Measure {
                name: name.to_owned(),
                size,
                unit: unit.to_owned(),
                values,
            }),
        }
    }

    /// One arm's figure of a measure.
    pub(crate) fn value(&self, name: &str, size: Option<u32>, arm: &str) -> Option<f64> {
        self.measures
            .iter()
            .find(|measure| measure.name == name && measure.size == size)?
            .values
            .get(arm)
            .copied()
    }

    /// Measures grouped by name, in the sequence in which the names were added.
    pub(crate) fn measures_by_name(&self) -> Vec<Vec<&Measure>> {
        let mut groups: Vec<Vec<&Measure>> = Vec::new();
        for measure in &self.measures {
            let known = groups
                .iter_mut()
                .find(|known| known[0].name == measure.name);
            match known {
                Some(group) => group.push(measure),
                None => groups.push(vec![measure]),
            }
        }
        groups
    }

    /// The largest size at which both arms' figures are known.
    pub(crate) fn largest_size(&self, name: &str, arms: [&str; 2]) -> Option<u32> {
        let of_name = self.measures.iter().filter(|measure| measure.name == name);
        let of_both =
            of_name.filter(|measure| arms.iter().all(|arm| measure.values.contains_key(*arm)));
        of_both.filter_map(|measure| measure.size).max()
    }

    /// Adds the ratio of two arms' figures. If either is missing there is no ratio, and a target is
    /// missed.
    pub(crate) fn claim(
        &mut self,
        name: &str,
        size: Option<u32>,
        [above, below]: [&str; 2],
        target: Option<Target>,
    ) {
        let value = |arm| self.value(name, size, arm);
        let ratio = value(above).zip(value(below));
        self.claims.push(Claim {
            name: format!("{}: {above} / {below}", title(name, size)),
            ratio: ratio
                .map(|(above, below)| above / below)
                .filter(|ratio| ratio.is_finite()),
            target,
        });
    }

    /// Writes it as `<part>.json` into the directory that the report reads.
    pub(crate) fn write(&self, directory: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let file = directory.join(format!("{}.json", self.part));
        let text = serde_json::to_string_pretty(self)?;
        fs::write(&file, text + "\n").with_context(|| format!("cannot write {}", file.display()))
    }

    /// Reads a file of [`Self::write`].
    pub(crate) fn read(file: &Path) -> anyhow::Result<Self> {
        let text =
            fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("cannot parse {}", file.display()))
    }
}

impl Measure {
    /// Name and size.
    pub(crate) fn title(&self) -> String {
        title(&self.name, self.size)
    }

    /// An arm's figure as text; a dash if it was not measured.
    pub(crate) fn figure(&self, arm: &str) -> String {
        match self.values.get(arm) {
            None => "–".to_owned(),
            // Figures without a unit are counts.
            Some(&value) if self.unit.is_empty() => figure::count(value),
            Some(&value) => figure::number(value),
        }
    }
}

fn title(name: &str, size: Option<u32>) -> String {
    size.map_or_else(
        || name.to_owned(),
        |size| format!("{name} at {}", figure::number(f64::from(size))),
    )
}

impl Claim {
    /// None if there is no target.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let target = self.target?;
        let Some(ratio) = self.ratio else {
            return Some(Verdict::Missed);
        };
        let (met, nearly) = match target {
            Target::AtLeast(limit) => (ratio >= limit, false),
            Target::AtMost(limit) => (ratio <= limit, false),
            Target::BestAchievable { wanted, attainable } => (
                ratio >= wanted,
                ratio >= achievable_limit(wanted, attainable),
            ),
        };
        Some(match (met, nearly) {
            (true, _) => Verdict::Met,
            (false, true) => Verdict::BestAchievable,
            (false, false) => Verdict::Missed,
        })
    }
}

/// Result of comparing a ratio with its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Met,
    /// Below the target, but close to the attainable ratio.
    BestAchievable,
    Missed,
}

impl Verdict {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::BestAchievable => "best achievable",
            Self::Missed => "missed",
        }
    }
}

/// The ratio that [`Target::BestAchievable`] demands.
pub(crate) fn achievable_limit(wanted: f64, attainable: f64) -> f64 {
    wanted.min(ACHIEVABLE_SHARE * attainable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> Outcome {
        let mut outcome = Outcome::new("proxy", "Service proxies", &["kube-proxy", "weft"]);
        outcome.add("one slice", Some(1000), "ms", "kube-proxy", 50.0);
        outcome.add("one slice", Some(1000), "ms", "weft", 2.0);
        outcome
    }

    fn nearly(wanted: f64, attainable: f64) -> Target {
        Target::BestAchievable { wanted, attainable }
    }

    #[test]
    fn figures_of_one_measure_are_one_row() {
        let outcome = outcome();
        assert_eq!(outcome.measures.len(), 1);
        assert_eq!(outcome.value("one slice", Some(1000), "weft"), Some(2.0));
        assert_eq!(outcome.value("one slice", Some(5000), "weft"), None);
    }

    #[test]
    fn claims_are_judged_by_their_ratio() {
        let mut outcome = outcome();
        for (target, expected) in [
            (None, None),
            (Some(Target::AtLeast(20.0)), Some(Verdict::Met)),
            (Some(Target::AtLeast(25.0)), Some(Verdict::Met)),
            (Some(Target::AtLeast(26.0)), Some(Verdict::Missed)),
            (Some(Target::AtMost(20.0)), Some(Verdict::Missed)),
            (Some(nearly(20.0, 99.0)), Some(Verdict::Met)),
            (Some(nearly(25.0, 30.0)), Some(Verdict::Met)),
            (Some(nearly(26.0, 30.0)), Some(Verdict::BestAchievable)),
            (Some(nearly(26.0, 33.0)), Some(Verdict::BestAchievable)),
            (Some(nearly(26.0, 34.0)), Some(Verdict::Missed)),
            (Some(nearly(26.0, 40.0)), Some(Verdict::Missed)),
        ] {
            outcome.claim("one slice", Some(1000), ["kube-proxy", "weft"], target);
            let claim = outcome.claims.last().unwrap();
            assert_eq!(claim.verdict(), expected, "{target:?}");
        }
    }

    #[test]
    fn a_target_of_a_figure_that_was_not_measured_is_missed() {
        let mut outcome = outcome();
        let target = Some(Target::AtMost(100.0));
        outcome.claim("one slice", Some(5000), ["kube-proxy", "weft"], target);
        assert_eq!(outcome.claims[0].verdict(), Some(Verdict::Missed));
    }

    #[test]
    fn an_outcome_is_the_same_after_writing_and_reading() {
        let directory = tempfile::tempdir().unwrap();
        let mut outcome = outcome();
        outcome.claim("none", None, ["kube-proxy", "weft"], None);
        outcome.write(directory.path()).unwrap();
        let read = Outcome::read(&directory.path().join("proxy.json")).unwrap();
        assert_eq!(read, outcome);
    }
}
