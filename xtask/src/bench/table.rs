//! Table of the figures that benchmarks write.

use std::{fmt, fs, path::Path};

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;

/// One figure, as a benchmark writes it to `WEFT_BENCH_OUT` (an array of these).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    #[serde(skip)]
    part: String,
    pub(crate) name: String,
    unit: String,
    ours: f64,
    /// The figure of the program compared with; `null` where there is none.
    peer: Option<f64>,
    ratio: Option<f64>,
    /// The target, in words or as a number.
    target: Value,
    pub(crate) holds: Option<bool>,
}

/// Reads the rows of one part.
pub(crate) fn read(part: &str, file: &Path) -> anyhow::Result<Vec<Row>> {
    let text = fs::read_to_string(file)
        .with_context(|| format!("the benchmark {part} left no {}", file.display()))?;
    parse(part, &text).with_context(|| format!("understand {}", file.display()))
}

fn parse(part: &str, text: &str) -> anyhow::Result<Vec<Row>> {
    let mut rows: Vec<Row> = serde_json::from_str(text)?;
    anyhow::ensure!(!rows.is_empty(), "no figures");
    for row in &mut rows {
        part.clone_into(&mut row.part);
    }
    Ok(rows)
}

/// All figures, one line each, columns aligned.
pub(crate) struct Table<'a>(pub(crate) &'a [Row]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading = [
            "part", "figure", "unit", "ours", "peer", "ratio", "target", "holds",
        ];
        let mut lines = vec![heading.map(str::to_owned)];
        lines.extend(self.0.iter().map(cells));
        let widths: [usize; 8] = std::array::from_fn(|column| {
            lines
                .iter()
                .map(|line| line[column].chars().count())
                .max()
                .unwrap_or_default()
        });
        for line in &lines {
            let mut text = String::new();
            for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
                // Numbers to the right, words to the left.
                let numeric = (3..=5).contains(&column);
                let cell = if numeric {
                    format!("{cell:>width$}")
                } else {
                    format!("{cell:<width$}")
                };
                text.push_str(&cell);
                text.push_str("  ");
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

fn cells(row: &Row) -> [String; 8] {
    let target = match &row.target {
        Value::Null => "-".to_owned(),
        Value::String(words) => words.clone(),
        other => other.to_string(),
    };
    let holds = match row.holds {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "-",
    };
    let or_dash = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), figure_text);
    [
        row.part.clone(),
        row.name.clone(),
        row.unit.clone(),
        figure_text(row.ours),
        or_dash(row.peer),
        or_dash(row.ratio),
        target,
        holds.to_owned(),
    ]
}

/// Three significant digits are more than any of these measurements deserves.
fn figure_text(figure: f64) -> String {
    match figure.abs() {
        size if size == 0.0 || size >= 100.0 => format!("{figure:.0}"),
        size if size >= 10.0 => format!("{figure:.1}"),
        size if size >= 0.1 => format!("{figure:.2}"),
        _ => format!("{figure:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = r#"[
        {"name": "heap per pod", "unit": "B", "ours": 837.0, "peer": 62700, "ratio": 0.01335,
         "target": "<= 0.05 x peer", "holds": true},
        {"name": "start", "unit": "ms", "ours": 12.25, "peer": null, "ratio": null,
         "target": 100, "holds": false}
    ]"#;

    #[test]
    fn figures_line_up_and_misses_stand_out() {
        let table = Table(&parse("runtime", ROWS).unwrap()).to_string();
        let expected = "\
part     figure        unit  ours   peer   ratio  target          holds
runtime  heap per pod  B      837  62700  0.0134  <= 0.05 x peer  yes
runtime  start         ms    12.2      -       -  100             NO
";
        assert_eq!(table, expected);
    }

    #[test]
    fn a_benchmark_that_writes_nothing_useful_is_refused() {
        for text in ["[]", "{}", r#"[{"name": "x"}]"#, r#"[{"nmae": "x"}]"#] {
            parse("runtime", text).unwrap_err();
        }
    }
}
