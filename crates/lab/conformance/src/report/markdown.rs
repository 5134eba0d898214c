//! The report as Markdown, whose tables are copied to `docs/benchmarks.md`.

use std::fmt::Write as _;

use crate::{
    Outcome,
    outcome::{Claim, Table, Target, Verdict, achievable_limit},
    report::figure,
};

/// All outcomes, one section for each.
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
    if !outcome.measures.is_empty() {
        text += &table(outcome);
    }
    if !outcome.claims.is_empty() {
        text += "\n| ratio | measured | target | |\n|---|--:|--:|---|\n";
        text.extend(outcome.claims.iter().map(claim));
    }
    if !outcome.notes.is_empty() {
        text.push('\n');
        for note in &outcome.notes {
            let _ = writeln!(text, "- {note}");
        }
    }
    text.extend(outcome.tables.iter().map(texts));
    text
}

fn texts(table: &Table) -> String {
    let mut text = format!("\n### {}\n\n", table.title);
    let _ = writeln!(text, "| {} |", table.columns.join(" | "));
    let _ = writeln!(text, "|{}", "---|".repeat(table.columns.len()));
    for row in &table.rows {
        // A bar would end the cell.
        let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}

/// The table of figures, with a column for sizes if there are any.
fn table(outcome: &Outcome) -> String {
    let sized = outcome.measures.iter().any(|known| known.size.is_some());
    let at = |words: &str| {
        if sized {
            format!(" {words} |")
        } else {
            String::new()
        }
    };
    let arms = outcome.arms.join(" | ");
    let mut text = format!("| | unit |{} {arms} |\n", at("at"));
    let numbers = outcome.arms.len() + usize::from(sized);
    let _ = writeln!(text, "|---|---|{}", "--:|".repeat(numbers));
    for group in outcome.measures_by_name() {
        for (position, measure) in group.iter().enumerate() {
            // Name and unit are in the first row only.
            let [name, unit] = match position {
                0 => [measure.name.as_str(), measure.unit.as_str()],
                _ => ["", ""],
            };
            let size = measure.size.map(|size| figure::number(f64::from(size)));
            let size = at(&size.unwrap_or_default());
            let cells: Vec<String> = outcome.arms.iter().map(|arm| measure.figure(arm)).collect();
            let _ = writeln!(text, "| {name} | {unit} |{size} {} |", cells.join(" | "));
        }
    }
    text
}

fn claim(claim: &Claim) -> String {
    let verdict = match claim.verdict() {
        None => String::new(),
        Some(Verdict::Missed) => format!("**{}**", Verdict::Missed.label()),
        Some(other) => other.label().to_owned(),
    };
    format!(
        "| {} | {} | {} | {verdict} |\n",
        claim.name,
        figure::ratio(claim.ratio),
        target(claim.target)
    )
}

/// A target as text, such as `≥ 20.0 ×`.
pub(crate) fn target(target: Option<Target>) -> String {
    match target {
        None => String::new(),
        Some(Target::AtLeast(limit)) => format!("≥ {} ×", figure::number(limit)),
        Some(Target::AtMost(limit)) => format!("≤ {} ×", figure::number(limit)),
        Some(Target::BestAchievable { wanted, attainable }) => {
            let asked = achievable_limit(wanted, attainable);
            let target = format!("≥ {} ×", figure::number(wanted));
            if asked < wanted {
                let [attainable, asked] = [attainable, asked].map(figure::number);
                format!("{target}; {attainable} × is attainable, so ≥ {asked} ×")
            } else {
                target
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
        outcome.add("one slice", Some(20_000), "ms", "weft", 151.0);
        let arms = ["kube-proxy", "weft"];
        outcome.claim("one slice", Some(10_000), arms, Some(Target::AtLeast(20.0)));
        let expected = "\
## Service proxies

`make conformance PART=proxy` on a fast machine; kube-proxy v1.36.4

| | unit | at | kube-proxy | weft |
|---|---|--:|--:|--:|
| one slice | ms | 10,000 | 1,500 | 150 |
|  |  | 20,000 | – | 151 |
| memory | MB |  | – | 40.0 |

| ratio | measured | target | |
|---|--:|--:|---|
| one slice at 10,000: kube-proxy / weft | 10.0 × | ≥ 20.0 × | **missed** |

- Measured by night.
";
        assert_eq!(of(&[outcome]), expected);
    }

    #[test]
    fn results_of_tests_are_a_table_below_the_figures() {
        let mut outcome = Outcome::new("cluster", "Tests", &["weft"]);
        outcome.tables.push(Table {
            title: "Conformance".to_owned(),
            columns: vec!["test".to_owned(), "weft".to_owned()],
            rows: vec![vec!["a | b".to_owned(), "passed".to_owned()]],
        });
        let expected = "\n### Conformance\n\n| test | weft |\n|---|---|\n| a \\| b | passed |\n";
        assert!(of(&[outcome]).ends_with(expected));
    }

    #[test]
    fn without_sizes_there_is_no_column_for_them() {
        let mut outcome = Outcome::new("routes", "Routes", &["weft"]);
        outcome.add("calls", None, "", "weft", 40.0);
        let expected = "| | unit | weft |\n|---|---|--:|\n| calls |  | 40 |\n";
        assert_eq!(table(&outcome), expected);
    }
}
