//! Documents say what is true of the tree.

use std::{collections::BTreeSet, path::Path};

use crate::tree;

/// The crate of a row of the code map.
fn row(line: &str) -> Option<&str> {
    let (name, _) = line.strip_prefix("| `crates/")?.split_once('`')?;
    Some(name)
}

/// The crates in the code map of ARCHITECTURE.md: rows that begin with `` | `crates/<name>` ``.
fn mapped(text: &str) -> Vec<String> {
    let mut names: Vec<String> = text.lines().filter_map(row).map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn the_code_map_lists_exactly_the_crates() {
    assert_eq!(
        mapped(&tree::read("ARCHITECTURE.md")),
        tree::crate_directories()
    );
}

#[test]
fn a_crate_uses_only_those_below_it_in_the_code_map() {
    let text = tree::read("ARCHITECTURE.md");
    let rows: Vec<&str> = text.lines().filter_map(row).collect();
    let metadata = tree::metadata(true);
    let packages = metadata["packages"].as_array().unwrap();
    let position = |name: &str| {
        let package = packages.iter().find(|package| package["name"] == name)?;
        let manifest = package["manifest_path"].as_str().unwrap();
        let directory = manifest.strip_suffix("/Cargo.toml").unwrap();
        rows.iter()
            .position(|row| directory.ends_with(&format!("/crates/{row}")))
    };
    let mut compared = 0;
    for package in packages {
        let name = package["name"].as_str().unwrap();
        for dependency in package["dependencies"].as_array().unwrap() {
            let target = dependency["name"].as_str().unwrap();
            if let (true, Some(user), Some(used)) = (
                dependency["kind"].is_null(),
                position(name),
                position(target),
            ) {
                assert!(
                    user < used,
                    "{name} uses {target}, whose row is above its own"
                );
                compared += 1;
            }
        }
    }
    assert!(compared > 50, "only {compared} dependencies were compared");
}

/// The most files that a walk through a product may need.
const WALKS: [(&str, usize); 3] = [
    ("crates/proxy/README.md", 22),
    ("crates/ipam/README.md", 18),
    ("crates/routes/README.md", 22),
];

/// The source files that the numbered steps of a page name, in their order.
fn walk(text: &str) -> Vec<&str> {
    let begins = |line: &str| {
        let (number, _) = line.split_once(". ").unwrap_or_default();
        !number.is_empty() && number.chars().all(|c| c.is_ascii_digit())
    };
    let steps = text
        .lines()
        .filter(|line| begins(line) || line.starts_with("  "));
    let named = steps.flat_map(|line| line.split('`').skip(1).step_by(2));
    let mut files: Vec<&str> = Vec::new();
    for file in named.filter(|name| name.contains("/src/")) {
        if !files.contains(&file) {
            files.push(file);
        }
    }
    files
}

#[test]
fn the_walks_through_products_are_short_and_name_files_that_exist() {
    for (page, most) in WALKS {
        let text = tree::read(page);
        let files = walk(&text);
        assert!(files.len() > 10, "{page}: found only {files:?}");
        assert!(
            files.len() <= most,
            "{page}: {} files: {files:?}",
            files.len()
        );
        let product = tree::root().join(page).parent().unwrap().to_owned();
        for file in files {
            let exists = product.join(file).exists() || product.join("..").join(file).exists();
            assert!(exists, "{page}: there is no {file}");
        }
    }
}

#[test]
fn decisions_are_numbered_without_gaps() {
    let files = tree::files(Path::new("docs/adr"));
    let names: Vec<&str> = files
        .iter()
        .map(|file| file.file_stem().unwrap().to_str().unwrap())
        .collect();
    for (index, name) in names.iter().enumerate() {
        let expected = format!("{:04}-", index + 1);
        assert!(
            name.starts_with(&expected),
            "{name} should begin with {expected}"
        );
    }
    assert!(!names.is_empty());
}

#[test]
fn every_decision_has_its_four_parts() {
    for file in tree::files(Path::new("docs/adr")) {
        let text = tree::read(&file);
        for part in [
            "## Context",
            "## Decision",
            "## Consequences",
            "## Alternatives",
        ] {
            assert!(text.contains(part), "{}: no {part}", file.display());
        }
    }
}

/// The targets that documents tell people to run.
fn make_targets(text: &str) -> BTreeSet<&str> {
    text.split("make ")
        .skip(1)
        .zip(text.split("make "))
        .filter(|(_, before)| before.ends_with('`') || before.ends_with("$ "))
        .map(|(after, _)| {
            after
                .split(|c: char| !c.is_ascii_lowercase())
                .next()
                .unwrap_or_default()
        })
        .collect()
}

#[test]
fn documents_name_only_targets_that_the_makefile_has() {
    let makefile = tree::read("Makefile");
    let documents = tree::files(Path::new(""));
    let markdown = documents
        .iter()
        .filter(|file| file.extension().is_some_and(|e| e == "md"));
    let mut named = 0;
    for file in markdown {
        let text = tree::read(file);
        for target in make_targets(&text) {
            let known = makefile
                .lines()
                .any(|line| line.starts_with(&format!("{target}:")));
            assert!(known, "{}: `make {target}` does not exist", file.display());
            named += 1;
        }
    }
    assert!(
        named > 2,
        "the documents name no targets, or the check does not see them"
    );
}

/// Relative targets of Markdown links.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', '#']).next())
        .filter(|target| {
            !target.is_empty() && !target.contains("://") && !target.contains(char::is_whitespace)
        })
}

#[test]
fn links_between_documents_lead_somewhere() {
    for file in tree::files(Path::new(""))
        .iter()
        .filter(|f| f.extension().is_some_and(|e| e == "md"))
    {
        let directory = tree::root().join(file).parent().unwrap().to_owned();
        for link in links(&tree::read(file)) {
            assert!(
                directory.join(link).exists(),
                "{}: dead link {link}",
                file.display()
            );
        }
    }
}

/// A number in a text: its value times 1,000, and the number of its decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Figure {
    thousandths: u64,
    decimals: u32,
}

impl Figure {
    /// Reads numbers such as `152`, `1,502` and `12.4`; versions such as `1.36.4` are none.
    fn all(text: &str) -> Vec<Self> {
        let words = text.split(|c: char| !(c.is_ascii_digit() || c == '.' || c == ','));
        words.filter_map(Self::read).collect()
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

/// The measured figures of the README: the last column of the table of products.
fn measured(readme: &str) -> impl Iterator<Item = &str> {
    let rows = readme.lines().filter(|line| line.starts_with("| [`weft"));
    rows.filter_map(|row| row.trim_end_matches([' ', '|']).rsplit('|').next())
}

#[test]
fn the_figures_of_the_readme_are_in_the_benchmarks() {
    let known = Figure::all(&tree::read("docs/benchmarks.md"));
    let readme = tree::read("README.md");
    let figures: Vec<(&str, Figure)> = measured(&readme)
        .flat_map(|cell| {
            Figure::all(cell)
                .into_iter()
                .map(move |figure| (cell, figure))
        })
        .collect();
    assert!(figures.len() >= 8, "no table of figures in README.md");
    for (cell, figure) in figures {
        let is_known = known.iter().any(|other| figure.is_rounded(*other));
        assert!(is_known, "{figure:?} is not in docs/benchmarks.md: {cell}");
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
fn the_checks_of_documents_see_what_they_should() {
    let text =
        "Run `make up`, then\n\n    $ make bench PART=x\n\nand make sure of [it](docs/x.md#y).";
    assert_eq!(
        make_targets(text).into_iter().collect::<Vec<_>>(),
        ["bench", "up"]
    );
    assert_eq!(links(text).collect::<Vec<_>>(), ["docs/x.md"]);
    assert_eq!(
        mapped("| `crates/node/model` | words |\n| other |"),
        ["node/model"]
    );
}
