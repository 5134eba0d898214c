//! Tables, of which `docs/benchmarks.md` shows a selection.

use std::fmt::Write as _;

use crate::{
    Outcome,
    outcome::{Claim, Measure, Target, Verdict, as_far_as},
    report::figure,
};

/// All outcomes, a section each.
pub(crate) fn of(outcomes: &[Outcome]) -> String {
    outcomes.iter().map(section).collect::<Vec<_>>().join("\n")
}

fn section(outcome: &Outcome) -> String {
    let mut text = format!("## {}\n\n", outcome.title);
    if !outcome.method.is_empty() {
        let _ = write!(text, "{}\n\n", outcome.method);
    }
    let _ = write!(
        text,
        "`{}` on {}; {}\n\n",
        outcome.command,
        outcome.machine,
        outcome.versions.join(", ")
    );
    let _ = writeln!(text, "| | | {} |", outcome.arms.join(" | "));
    let _ = writeln!(text, "|---|---|{}", "--:|".repeat(outcome.arms.len()));
    for measure in &outcome.measures {
        text += &row(measure, &outcome.arms);
    }
    if !outcome.claims.is_empty() {
        text += "\n| ratio | measured | promised | |\n|---|--:|--:|---|\n";
        text.extend(outcome.claims.iter().map(claim));
    }
    if !outcome.notes.is_empty() {
        text.push('\n');
        for note in &outcome.notes {
            let _ = writeln!(text, "- {note}");
        }
    }
    text
}

fn row(measure: &Measure, arms: &[String]) -> String {
    let cells: Vec<String> = arms
        .iter()
        .map(|arm| {
            let value = measure.values.get(arm);
            value.map_or_else(|| "–".to_owned(), |&value| figure::number(value))
        })
        .collect();
    format!(
        "| {} | {} | {} |\n",
        measure.title(),
        measure.unit,
        cells.join(" | ")
    )
}

fn claim(claim: &Claim) -> String {
    let verdict = match claim.verdict() {
        None => String::new(),
        Some(Verdict::Missed) => format!("**{}**", Verdict::Missed.words()),
        Some(other) => other.words().to_owned(),
    };
    format!(
        "| {} | {} | {} | {verdict} |\n",
        claim.name,
        figure::ratio(claim.ratio),
        promise(claim.target)
    )
}

/// What was promised, in short.
pub(crate) fn promise(target: Option<Target>) -> String {
    match target {
        None => String::new(),
        Some(Target::AtLeast(limit)) => format!("≥ {} ×", figure::number(limit)),
        Some(Target::AtMost(limit)) => format!("≤ {} ×", figure::number(limit)),
        Some(Target::AsFarAs { wanted, attainable }) => {
            let asked = as_far_as(wanted, attainable);
            let promised = format!("≥ {} ×", figure::number(wanted));
            if asked < wanted {
                let [attainable, asked] = [attainable, asked].map(figure::number);
                format!("{promised}; {attainable} × can be had, so ≥ {asked} ×")
            } else {
                promised
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_has_all_figures_and_says_what_was_missed() {
        let mut outcome = Outcome::new("proxy", "Service proxies", &["kube-proxy", "weft"]);
        outcome.machine = "a fast machine".to_owned();
        outcome.versions.push("kube-proxy v1.36.4".to_owned());
        outcome.notes.push("Measured by night.".to_owned());
        outcome.add("one slice", Some(10_000), "ms", "kube-proxy", 1500.0);
        outcome.add("one slice", Some(10_000), "ms", "weft", 150.0);
        outcome.add("memory", None, "MB", "weft", 40.0);
        let arms = ["kube-proxy", "weft"];
        outcome.claim("one slice", Some(10_000), arms, Some(Target::AtLeast(20.0)));
        let expected = "\
## Service proxies

`make conformance PART=proxy` on a fast machine; kube-proxy v1.36.4

| | | kube-proxy | weft |
|---|---|--:|--:|
| one slice at 10,000 | ms | 1,500 | 150 |
| memory | MB | – | 40.0 |

| ratio | measured | promised | |
|---|--:|--:|---|
| one slice at 10,000: kube-proxy / weft | 10.0 × | ≥ 20.0 × | **missed** |

- Measured by night.
";
        assert_eq!(of(&[outcome]), expected);
    }
}
