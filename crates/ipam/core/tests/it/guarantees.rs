//! Checks that each guarantee in the table of `docs/ipam.md` names an existing test.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

const PAGE: &str = include_str!("../../../../../docs/ipam.md");

/// Test names in each row of the table.
fn rows() -> BTreeMap<String, Vec<String>> {
    let cells = PAGE
        .lines()
        .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let rows = cells.filter(|cells| {
        let id = cells.get(1).and_then(|cell| cell.strip_prefix('I'));
        id.is_some_and(|number| number.parse::<u32>().is_ok())
    });
    rows.map(|cells| {
        let names = cells[3].split('`').skip(1).step_by(2);
        (cells[1].to_owned(), names.map(str::to_owned).collect())
    })
    .collect()
}

/// Every function and module below a directory.
fn functions(below: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.extend(
                path.file_stem()
                    .map(|stem| stem.to_string_lossy().into_owned()),
            );
            let text = fs::read_to_string(&path).unwrap();
            let names = text.split("fn ").skip(1).filter_map(|rest| {
                rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
                    .next()
            });
            found.extend(names.map(str::to_owned));
        }
    }
}

#[test]
fn every_guarantee_names_an_existing_test() {
    let mut known = BTreeSet::new();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for below in [
        "tests",
        "src",
        "../allocator/tests",
        "../daemon/tests",
        "../../cli/tests",
    ] {
        functions(&here.join(below), &mut known);
    }
    let rows = rows();
    for number in 1..=24 {
        let names = rows.get(&format!("I{number}"));
        let names = names.unwrap_or_else(|| panic!("I{number} is not in the table"));
        assert!(!names.is_empty(), "I{number} names no test");
        for name in names {
            assert!(known.contains(name), "I{number}: there is no {name}");
        }
    }
    assert_eq!(rows.len(), 24);
}
