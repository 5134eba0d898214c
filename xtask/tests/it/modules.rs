//! A source file that no `mod` line reaches is neither compiled nor tested.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use crate::tree;

/// A `mod` line without a body.
#[derive(Debug, PartialEq, Eq)]
struct Declaration {
    name: String,
    /// From a `#[path]` attribute on the line before.
    path: Option<String>,
}

fn declarations(source: &str) -> Vec<Declaration> {
    let mut found = Vec::new();
    let mut path = None;
    for line in source.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("#[path = \"") {
            path = rest.strip_suffix("\"]").map(str::to_owned);
            continue;
        }
        if let Some(name) = module_name(line) {
            found.push(Declaration {
                name: name.to_owned(),
                path: path.take(),
            });
        }
        if !line.starts_with("#[") {
            path = None;
        }
    }
    found
}

fn module_name(line: &str) -> Option<&str> {
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let name = line.strip_prefix("mod ")?.strip_suffix(';')?;
    name.chars()
        .all(|c| c.is_alphanumeric() || c == '_')
        .then_some(name)
}

/// Everything the compiler sees from one crate root, the root included.
fn reachable(crate_root: &Path, read: &impl Fn(&Path) -> Option<String>) -> BTreeSet<PathBuf> {
    let directory = crate_root.parent().unwrap().to_owned();
    let mut seen = BTreeSet::from([crate_root.to_owned()]);
    let mut open = vec![(crate_root.to_owned(), directory)];
    while let Some((file, children)) = open.pop() {
        let Some(source) = read(&file) else { continue };
        for Declaration { name, path } in declarations(&source) {
            let child = match path {
                Some(path) => file.parent().unwrap().join(path),
                None => children.join(format!("{name}.rs")),
            };
            let grandchildren = child.with_extension("");
            if seen.insert(child.clone()) {
                open.push((child, grandchildren));
            }
        }
    }
    seen
}

#[test]
fn every_source_file_is_compiled() {
    let metadata = tree::metadata(true);
    let mut reached = BTreeSet::new();
    for package in metadata["packages"].as_array().unwrap() {
        for target in package["targets"].as_array().unwrap() {
            let root = Path::new(target["src_path"].as_str().unwrap());
            reached.extend(reachable(root, &|path| std::fs::read_to_string(path).ok()));
        }
    }
    let sources = ["crates", "xtask"]
        .into_iter()
        .flat_map(|below| tree::files(Path::new(below)));
    for file in sources.filter(|file| file.extension().is_some_and(|extension| extension == "rs")) {
        let known = reached.contains(&tree::root().join(&file));
        assert!(known, "no mod line reaches {}", file.display());
        assert_ne!(
            file.file_name().unwrap(),
            "mod.rs",
            "{}: use foo.rs + foo/",
            file.display()
        );
    }
}

#[test]
fn mod_lines_are_found_in_all_their_forms() {
    let source = "mod a;\npub mod b;\npub(crate) mod c;\npub(in crate::x) mod d;\n\
                  #[cfg(test)]\nmod e;\n#[path = \"other.rs\"]\n#[cfg(unix)]\nmod f;\n\
                  mod tests {\n    mod g;\n}\n// mod no;\nmodern;\nmod inline {";
    let found = declarations(source);
    let names: Vec<&str> = found
        .iter()
        .map(|declaration| declaration.name.as_str())
        .collect();
    assert_eq!(names, ["a", "b", "c", "d", "e", "f", "g"]);
    assert_eq!(found[5].path.as_deref(), Some("other.rs"));
    assert_eq!(found[6].path, None);
}

#[test]
fn files_are_reached_through_their_parents_only() {
    let sources = [
        ("/c/src/lib.rs", "mod a;"),
        ("/c/src/a.rs", "mod b;"),
        ("/c/src/a/b.rs", ""),
    ];
    let read = |path: &Path| {
        sources
            .iter()
            .find(|(known, _)| Path::new(known) == path)
            .map(|(_, text)| (*text).to_owned())
    };
    let reached = reachable(Path::new("/c/src/lib.rs"), &read);
    assert!(reached.contains(Path::new("/c/src/a/b.rs")));
    assert!(!reached.contains(Path::new("/c/src/b.rs")));
}
