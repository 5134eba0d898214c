//! The help texts, kept as golden files. `WEFT_UPDATE_GOLDEN=1 cargo test -p weft` rewrites them.

use std::{env, fs, path::PathBuf};

use crate::weft::{run, weft};

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("testdata/help")
        .join(format!("{name}.txt"))
}

fn help_of(verb: &[&str]) -> String {
    let arguments: Vec<&str> = verb.iter().copied().chain(["--help"]).collect();
    let run = run(weft(&arguments).env("COLUMNS", "100"));
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    run.stdout
}

/// The verbs that the top-level help lists.
fn verbs(help: &str) -> Vec<String> {
    help.lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .collect()
}

#[test]
fn help_of_the_program_and_of_every_verb_reads_as_reviewed() {
    let top = help_of(&[]);
    let verbs = verbs(&top);
    assert!(
        verbs.iter().any(|verb| verb == "version"),
        "no verbs found in:\n{top}"
    );
    let mut texts = vec![("weft".to_owned(), top)];
    texts.extend(verbs.iter().map(|verb| (verb.clone(), help_of(&[verb]))));
    for (name, text) in &texts {
        if env::var_os("WEFT_UPDATE_GOLDEN").is_some() {
            fs::create_dir_all(golden(name).parent().unwrap()).unwrap();
            fs::write(golden(name), text).unwrap();
        }
        let reviewed = fs::read_to_string(golden(name)).unwrap_or_default();
        assert_eq!(
            *text, reviewed,
            "help of {name}; refresh with WEFT_UPDATE_GOLDEN=1"
        );
    }
    let kept = fs::read_dir(golden("weft").parent().unwrap())
        .unwrap()
        .count();
    assert_eq!(
        kept,
        texts.len(),
        "a golden file of a verb that no longer exists"
    );
}

#[test]
fn help_fits_a_page_of_a_hundred_columns() {
    for line in help_of(&[]).lines() {
        assert!(line.chars().count() <= 100, "{line}");
        assert_eq!(line, line.trim_end(), "trailing space");
    }
}

#[test]
fn every_shell_gets_a_completion_script() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let run = run(&mut weft(&["completions", shell]));
        assert_eq!(run.code, Some(0));
        assert!(
            run.stdout.contains("completions"),
            "{shell}: {}",
            run.stdout
        );
    }
}
