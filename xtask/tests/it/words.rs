//! Plain words: file headers, doc comments and strings that people read.
//!
//! The limits are those of a tree that reads well. A number may only go down.

use std::path::{Path, PathBuf};

use crate::tree;

/// A header or doc comment that begins so asks a question and does not say what the thing is.
const QUESTION_WORDS: [&str; 10] = [
    "What", "Who", "Whose", "Whom", "Which", "When", "Where", "Why", "How", "Whether",
];

/// Words that an engineer of this field does not expect in an error, a log line or a help text.
/// Left out are words that also have a usual meaning there, such as `holds` (a lease).
/// Written in halves, so that this file does not find itself.
const PRIVATE_WORDS: [[&str; 2]; 33] = [
    ["who", "ever"],
    ["some", "body"],
    ["no", "body"],
    ["a", "new"],
    ["for want", " of"],
    ["in ear", "nest"],
    ["made", " up"],
    ["t", "old"],
    ["t", "ells"],
    ["hears", " of"],
    ["bel", "ieved"],
    ["bel", "ieves"],
    ["mas", "ters"],
    ["as far as", " can be had"],
    ["so l", "ong"],
    ["a l", "ife"],
    ["l", "ives"],
    ["d", "oors"],
    ["d", "esk"],
    ["pic", "ture"],
    ["b", "ell"],
    ["as", "ker"],
    ["w", "ish"],
    ["new", "comers"],
    ["gro", "und"],
    ["fl", "oor"],
    ["sight", "ing"],
    ["st", "ands"],
    ["hangs", " below"],
    ["what is", " ours"],
    ["is no", " address"],
    ["is no", " block"],
    ["bes", "ide"],
];

/// Files of the workspace's own Rust code.
fn sources() -> Vec<(PathBuf, String)> {
    ["crates", "xtask"]
        .into_iter()
        .flat_map(|below| tree::files(Path::new(below)))
        .filter(|file| file.extension().is_some_and(|extension| extension == "rs"))
        .map(|file| {
            let text = tree::read(&file);
            (file, text)
        })
        .collect()
}

/// The text of a doc line, without its marker.
fn doc<'a>(line: &'a str, marker: &str) -> Option<&'a str> {
    line.trim_start().strip_prefix(marker).map(str::trim)
}

fn is_question(text: &str) -> bool {
    let first = text.split(|c: char| !c.is_alphanumeric()).next();
    first.is_some_and(|word| QUESTION_WORDS.contains(&word))
}

/// The first line of a file's header, if it has one.
fn header(text: &str) -> Option<&str> {
    text.lines().find_map(|line| doc(line, "//!"))
}

/// First lines of doc comments, and whether each is the only line.
fn docs(text: &str) -> Vec<(usize, &str, bool)> {
    let lines: Vec<Option<&str>> = text.lines().map(|line| doc(line, "///")).collect();
    let begins = |index: usize| index == 0 || lines[index - 1].is_none();
    let ends = |index: usize| lines.get(index + 1).is_none_or(Option::is_none);
    lines
        .iter()
        .enumerate()
        .filter_map(|(index, line)| Some((index, (*line)?)))
        .filter(|(index, _)| begins(*index))
        .map(|(index, line)| (index + 1, line, ends(index)))
        .collect()
}

/// The string literals of a line, as far as a line shows them.
fn literals(line: &str) -> impl Iterator<Item = &str> {
    let code = if line.trim_start().starts_with("//") {
        ""
    } else {
        line
    };
    code.split('"').skip(1).step_by(2)
}

fn contains_word(text: &str, word: &str) -> bool {
    let text = text.to_lowercase();
    text.match_indices(word).any(|(start, _)| {
        let before = text[..start].chars().next_back();
        let after = text[start + word.len()..].chars().next();
        let joined = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        !joined(before) && !joined(after)
    })
}

/// Fails with the places if there are more than allowed.
fn at_most(allowed: usize, what: &str, places: &[String]) {
    assert!(
        places.len() <= allowed,
        "{} {what}, and at most {allowed} are allowed:\n{}",
        places.len(),
        places.join("\n")
    );
}

#[test]
fn file_headers_say_what_the_thing_is() {
    let asking = sources().into_iter().filter_map(|(file, text)| {
        let line = header(&text).filter(|line| is_question(line))?.to_owned();
        Some(format!("{}: {line}", file.display()))
    });
    let asking: Vec<String> = asking.collect();
    at_most(0, "file headers begin with a question word", &asking);
}

#[test]
fn doc_comments_add_something_to_the_name() {
    let mut words = Vec::new();
    let mut asking = Vec::new();
    for (file, text) in sources() {
        for (number, line, alone) in docs(&text) {
            let place = format!("{}:{number}: {line}", file.display());
            if alone && line.split_whitespace().count() == 1 {
                words.push(place);
            } else if is_question(line) {
                asking.push(place);
            }
        }
    }
    at_most(3, "doc comments are one word", &words);
    at_most(0, "doc comments begin with a question word", &asking);
}

fn private_words() -> Vec<String> {
    PRIVATE_WORDS.map(|halves| halves.concat()).into()
}

#[test]
fn strings_that_people_read_use_the_words_of_the_field() {
    let private = private_words();
    let mut found = Vec::new();
    let is_test = |file: &Path| file.components().any(|part| part.as_os_str() == "tests");
    for (file, text) in sources().into_iter().filter(|(file, _)| !is_test(file)) {
        for (index, line) in text.lines().enumerate() {
            let spoken = literals(line)
                // The names of a group of Kubernetes, of a user, and of tests.
                .filter(|literal| !["system:masters", "nobody"].contains(literal))
                .filter(|literal| !literal.starts_with("beside_kube_proxy"))
                .any(|literal| private.iter().any(|word| contains_word(literal, word)));
            if spoken {
                found.push(format!("{}:{}: {}", file.display(), index + 1, line.trim()));
            }
        }
    }
    at_most(0, "strings have private words", &found);
}

#[test]
fn help_texts_use_the_words_of_the_field() {
    let private = private_words();
    let is_help = |file: &PathBuf| {
        let directory = file.parent().and_then(Path::file_name);
        directory.is_some_and(|name| name == "help")
    };
    let pages = tree::files(Path::new("crates")).into_iter().filter(is_help);
    let mut found = Vec::new();
    let mut read = 0;
    for file in pages {
        read += 1;
        for (index, line) in tree::read(&file).lines().enumerate() {
            if private.iter().any(|word| contains_word(line, word)) {
                found.push(format!("{}:{}: {}", file.display(), index + 1, line.trim()));
            }
        }
    }
    assert!(read > 10, "only {read} help texts were found");
    at_most(0, "lines of help texts have private words", &found);
}

#[test]
fn the_checks_of_words_see_what_they_should() {
    assert_eq!(
        header("// x\n//! Which it is.\n//! More."),
        Some("Which it is.")
    );
    assert!(is_question("Which it is.") && !is_question("Whichever"));
    let text = "/// Word.\nfn a() {}\n/// Two\n/// lines.\nfn b() {}\n";
    assert_eq!(docs(text), [(1, "Word.", true), (3, "Two", false)]);
    let line = r#"    warn!("said by a stranger", "x");"#;
    assert_eq!(
        literals(line).collect::<Vec<_>>(),
        ["said by a stranger", "x"]
    );
    assert_eq!(literals("// \"comment\"").count(), 0);
    assert!(contains_word("Written A\u{6e}ew.", &["a", "new"].concat()));
    assert!(!contains_word("renewal", &["a", "new"].concat()));
}
