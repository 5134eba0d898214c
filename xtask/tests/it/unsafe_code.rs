//! SECURITY.md lists every place of unsafe code.

use std::{collections::BTreeMap, path::Path};

use crate::tree;

/// Blocks, functions, implementations and the like. The word alone may be in a string or a comment.
fn count(text: &str) -> usize {
    let followers = ["{", "fn ", "impl ", "impl<", "trait ", "extern "];
    let code = text.lines().map(|line| {
        let comment = line.find("//").unwrap_or(line.len());
        &line[..comment]
    });
    let code: Vec<&str> = code.collect();
    let code = code.join(" ");
    let places = code.match_indices("unsafe").filter(|(start, word)| {
        let before = code[..*start].chars().next_back();
        let starts_word = !before.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let rest = &code[start + word.len()..];
        let after = rest.trim_start();
        let ends_word = rest.starts_with([' ', '{', '(']);
        let is_attribute = rest.starts_with('(');
        let begins = followers.iter().any(|word| after.starts_with(word));
        starts_word && ends_word && (begins || is_attribute)
    });
    places.count()
}

/// Rows like `` | `path` | 6 | why | ``.
fn listed(text: &str) -> BTreeMap<String, usize> {
    let row = |line: &str| {
        let (path, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
        let (count, _) = rest.split_once(" | ")?;
        Some((path.to_owned(), count.parse().ok()?))
    };
    text.lines().filter_map(row).collect()
}

#[test]
fn the_list_in_security_md_is_complete() {
    let mut found = BTreeMap::new();
    for file in tree::files(Path::new("")) {
        let is_this = file.ends_with("it/unsafe_code.rs");
        if file.extension().is_none_or(|extension| extension != "rs") || is_this {
            continue;
        }
        let places = count(&tree::read(&file));
        if places > 0 {
            found.insert(file.to_str().unwrap().to_owned(), places);
        }
    }
    assert_eq!(listed(&tree::read("SECURITY.md")), found);
}

#[test]
fn unsafe_code_is_recognised_and_the_word_alone_is_not() {
    let code = "unsafe impl Send for A {}\nlet a = unsafe { b() };\nunsafe fn c() {}\n\
                let d = unsafe\n    { e() };\n#[unsafe(no_mangle)]\n";
    assert_eq!(count(code), 5);
    let words = "// unsafe { a() }\n#![expect(unsafe_code)]\nlet a = \"unsafe\";\n\"--unsafe-no-fsync\"\n\
                 let not_unsafe = 1;\n";
    assert_eq!(count(words), 0);
}
