//! Strings that may not appear in the repository.

use std::path::Path;

use crate::tree;

/// Written in halves, so that this file does not find itself.
const FORBIDDEN: [(&str, &str, &str); 6] = [
    ("TO", "DO", "open work belongs into the tracker"),
    ("FIX", "ME", "open work belongs into the tracker"),
    ("/ho", "me/", "a path of one machine"),
    ("/Use", "rs/", "a path of one machine"),
    ("/ro", "ot/", "a path of one machine"),
    ("/wo", "rk/", "a path of one machine"),
];

fn offences(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for (head, tail, reason) in FORBIDDEN {
            let word = format!("{head}{tail}");
            if contains_word(line, &word) {
                found.push(format!("line {}: {word}: {reason}", number + 1));
            }
        }
    }
    found
}

/// True if it is a word of its own and not the end of a longer path or word.
fn contains_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        let joined = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        !joined(before) && (word.ends_with('/') || !joined(after))
    })
}

#[test]
fn no_file_holds_leftovers() {
    for file in tree::files(Path::new("")) {
        let Ok(text) = std::fs::read_to_string(tree::root().join(&file)) else {
            continue;
        };
        let found = offences(&text);
        assert!(found.is_empty(), "{}: {found:#?}", file.display());
    }
}

#[test]
fn leftovers_are_recognised() {
    let todo = ["TO", "DO"].concat();
    let home = ["/ho", "me/", "me/x"].concat();
    assert_eq!(
        offences(&format!("// {todo}: later\nlet a = 1;\n\"{home}\"")).len(),
        2
    );
    assert!(offences(&format!("a mas{todo}n and /proc{home}")).is_empty());
}
