//! Figures of the README are those of docs/benchmarks.md: the same row, column and unit.

use crate::tree;

/// A cell of a table in docs/benchmarks.md.
struct Cell {
    /// Beginning of the heading above the table.
    section: &'static str,
    /// First cell of the row.
    row: &'static str,
    /// Cell below the heading `at`; empty where the table has none.
    at: &'static str,
    /// Cell below the heading `unit`; empty where the table has none.
    unit: &'static str,
    column: &'static str,
}

const fn cell(section: &'static str, [row, at, unit, column]: [&'static str; 4]) -> Cell {
    Cell {
        section,
        row,
        at,
        unit,
        column,
    }
}

const MODES: &str = "### The nftables modes compared";
const CLOUD: &str = "## Routes at a cloud provider";
const RUNTIME: &str = "## Runtime compared with controller-runtime";
const OLD: &str = "kube-proxy v1.36.4";
const NEW: &str = "kube-proxy v1.37.1";

/// The cells that the figures of the README come from, in its order.
const HELD: [Cell; 21] = [
    cell(MODES, ["one changed slice", "10,000", "ms", "weft"]),
    cell(MODES, ["one changed slice", "10,000", "ms", OLD]),
    cell(MODES, ["one changed slice", "10,000", "ms", NEW]),
    cell(
        MODES,
        ["one changed slice, processor time", "10,000", "ms", "weft"],
    ),
    cell(
        MODES,
        ["one changed slice, processor time", "10,000", "ms", OLD],
    ),
    cell(
        MODES,
        ["one changed slice, processor time", "10,000", "ms", NEW],
    ),
    cell(MODES, ["start to first sync", "10,000", "s", "weft"]),
    cell(MODES, ["start to first sync", "10,000", "s", OLD]),
    cell(MODES, ["start to first sync", "10,000", "s", NEW]),
    cell(MODES, ["RssAnon", "10,000", "MB", "weft"]),
    cell(MODES, ["RssAnon", "10,000", "MB", OLD]),
    cell(MODES, ["RssAnon", "10,000", "MB", NEW]),
    cell(CLOUD, ["waves: calls", "", "", "weft"]),
    cell(CLOUD, ["waves: calls", "", "", "upstream, gate off"]),
    cell(CLOUD, ["waves: wait for a route, p50", "", "s", "weft"]),
    cell(
        CLOUD,
        [
            "waves: wait for a route, p50",
            "",
            "s",
            "upstream, gate off",
        ],
    ),
    cell(
        "## Addresses",
        ["1 → 36 pods at once", "", "", "failed ADDs: ours"],
    ),
    cell("## Addresses", ["1 → 36 pods at once", "", "", "burst"]),
    cell(
        "## Addresses",
        ["1 → 36 pods at once", "", "", "failed ADDs: reactive"],
    ),
    cell(RUNTIME, ["live heap per Pod", "50,000", "B", "weft"]),
    cell(
        RUNTIME,
        ["live heap per Pod", "50,000", "B", "controller-runtime"],
    ),
];

/// Figures of the API server, which docs/benchmarks.md has from two runs.
const STARTS: [Cell; 2] = [
    cell("### What limits", ["start to ready", "", "ms", "now"]),
    cell("## API server", ["start to ready", "", "ms", "ours"]),
];

/// A number in a text: its value times 1,000, and the number of its decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Figure {
    thousandths: u64,
    decimals: u32,
}

impl Figure {
    /// Reads numbers such as `152`, `1,502` and `12.4`; versions such as `1.36.4` are none.
    fn all(text: &str) -> Vec<Self> {
        words(text).filter_map(Self::read).collect()
    }

    fn read(word: &str) -> Option<Self> {
        let word = word.trim_matches(['.', ',']).replace(',', "");
        let (whole, part) = word.split_once('.').unwrap_or((&word, ""));
        let decimals = u32::try_from(part.len()).ok().filter(|count| *count <= 3)?;
        let digits: u64 = format!("{whole}{part}").parse().ok()?;
        Some(Self {
            thousandths: digits.checked_mul(10_u64.pow(3 - decimals))?,
            decimals,
        })
    }

    /// True if the other figure is this one, given with as many decimals or more.
    fn is_rounded(self, other: Self) -> bool {
        let step = 10_u64.pow(3 - self.decimals);
        let rounded = (other.thousandths + step / 2) / step * step;
        other.decimals >= self.decimals && rounded == self.thousandths
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_digit() || c == '.' || c == ','))
}

/// The numbers of a text, each with the unit that follows it: `4,094 and 233 ms` are both in ms.
fn measured(text: &str) -> Vec<(Figure, &str)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let unit = |from: usize| {
        let rest = words[from + 1..]
            .iter()
            .map(|word| word.trim_matches([',', ';', '(', ')']));
        let mut rest = rest.skip_while(|word| *word == "and" || Figure::read(word).is_some());
        let next = rest.next().unwrap_or_default();
        if ["ms", "s", "MB", "B"].contains(&next) {
            next
        } else {
            ""
        }
    };
    let figure = |(index, word): (usize, &&str)| {
        let figure = Figure::read(word.trim_matches([';', ':', '(', ')']))?;
        Some((figure, unit(index)))
    };
    words.iter().enumerate().filter_map(figure).collect()
}

/// The cells of a line of a table.
fn cells(line: &str) -> Vec<&str> {
    let line = line.trim().trim_start_matches('|');
    let line = line.strip_suffix('|').unwrap_or(line);
    line.split('|').map(str::trim).collect()
}

/// Headings, with those that name only a side (`reactive`) completed from the heading before them.
fn headings(line: &str) -> Vec<String> {
    let mut subject = "";
    let mut completed = Vec::new();
    for heading in cells(line) {
        let (before, side) = heading.split_once(": ").unwrap_or(("", heading));
        if !before.is_empty() {
            subject = before;
        }
        let is_side = before.is_empty() && side == "reactive";
        completed.push(if is_side {
            format!("{subject}: {side}")
        } else {
            heading.to_owned()
        });
    }
    completed
}

impl Cell {
    /// The text of the cell.
    fn find<'a>(&self, text: &'a str) -> Option<&'a str> {
        let after = text
            .lines()
            .skip_while(|line| !line.starts_with(self.section));
        let section = after.skip(1).take_while(|line| !line.starts_with('#'));
        let mut columns = Vec::new();
        let mut row = vec![""];
        for line in section {
            if !line.starts_with('|') {
                columns.clear();
                continue;
            }
            if columns.is_empty() {
                columns = headings(line);
                continue;
            }
            // Rows of the same measurement leave name and unit out after the first.
            let mut next = cells(line);
            if next[0].is_empty() && columns.iter().any(|column| column == "at") {
                next[..2].copy_from_slice(&row[..2]);
            }
            row = next;
            let of = |name: &str| {
                let position = columns.iter().position(|column| column == name)?;
                row.get(position).copied()
            };
            let is_row = row[0] == self.row
                && of("at").unwrap_or_default() == self.at
                && of("unit").unwrap_or_default() == self.unit;
            if is_row && let Some(found) = of(self.column) {
                return Some(found);
            }
        }
        None
    }
}

#[test]
fn the_figures_of_the_readme_are_in_the_benchmarks() {
    let benchmarks = tree::read("docs/benchmarks.md");
    let readme = tree::read("README.md");
    let rows = readme.lines().filter(|line| line.starts_with("| [`weft"));
    let last = rows.map(|row| *cells(row).last().unwrap());
    let figures: Vec<(Figure, &str)> = last.flat_map(measured).collect();
    let sources: Vec<&Cell> = HELD.iter().chain(&STARTS).collect();
    assert_eq!(figures.len(), sources.len(), "{figures:?}");
    for ((figure, unit), source) in figures.into_iter().zip(sources) {
        let (section, row, column) = (source.section, source.row, source.column);
        let place = format!("{section}: {row}: {column}");
        let found = source.find(&benchmarks);
        let found = found.unwrap_or_else(|| panic!("docs/benchmarks.md has no {place}"));
        let is_held = Figure::all(found)
            .iter()
            .any(|other| figure.is_rounded(*other));
        assert!(is_held, "README.md has {figure:?}, {place} is {found}");
        assert_eq!(unit, source.unit, "unit of {place}");
    }
}

#[test]
fn figures_are_the_same_when_they_are_rounded() {
    let one = |text| Figure::all(text)[0];
    assert!(one("152 ms").is_rounded(one("151.6")));
    assert!(one("1,502 ms").is_rounded(one("1502")));
    assert!(!one("152 ms").is_rounded(one("152.7")));
    assert!(!one("12.4 kB").is_rounded(one("12")));
    assert_eq!(Figure::all("v1.36.4").len(), 0);
}

#[test]
fn a_figure_is_found_by_row_and_unit() {
    let text = "## A\n\n| | unit | at | x | y |\n|---|---|--:|--:|--:|\n| one | ms | 10 | 1 | 2 |\n\
                |  |  | 20 | 3 | 4 |\n| two | s | 20 | 5 | 6 |\n\n## B\n\n| | x: ours | reactive |\n\
                |---|---|---|\n| one | 7 | 8 |\n";
    let found = |section, row| cell(section, row).find(text);
    assert_eq!(found("## A", ["one", "20", "ms", "y"]), Some("4"));
    assert_eq!(found("## A", ["two", "20", "ms", "y"]), None);
    assert_eq!(found("## B", ["one", "", "", "x: reactive"]), Some("8"));
    let units: Vec<&str> = measured("5.2 ms instead of 4,094 and 233 ms; 0 failed")
        .into_iter()
        .map(|(_, unit)| unit)
        .collect();
    assert_eq!(units, ["ms", "ms", "ms", ""]);
}
