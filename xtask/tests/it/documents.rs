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
    named.filter(|name| name.contains("/src/")).collect()
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
        let mut visited = BTreeSet::new();
        for file in files {
            assert!(visited.insert(file), "{page}: a step goes back to {file}");
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
