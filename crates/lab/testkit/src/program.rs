//! Runs a program under test, and compares its help with golden files.

use std::{
    env, fs,
    path::Path,
    process::{Command, Output},
};

/// A program with a clean environment: no setting of the developer's shell leaks in.
pub fn clean(program: impl AsRef<Path>, arguments: &[&str]) -> Command {
    let mut command = Command::new(program.as_ref());
    command.args(arguments).env_clear();
    command
}

/// The outcome of one run.
#[derive(Debug)]
pub struct Run {
    /// The exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// Everything on stdout.
    pub stdout: String,
    /// Everything on stderr.
    pub stderr: String,
}

/// Runs a command to its end. Panics if it cannot be started or prints what is not UTF-8.
pub fn run(command: &mut Command) -> Run {
    let output = command.output();
    let Output {
        status,
        stdout,
        stderr,
    } = output.unwrap_or_else(|error| {
        panic!("{command:?}: {error}; `cargo build -p weft -p weft-lab` builds both programs")
    });
    let text = |bytes| String::from_utf8(bytes).expect("programs of Weft print UTF-8");
    Run {
        code: status.code(),
        stdout: text(stdout),
        stderr: text(stderr),
    }
}

/// Compares the help of a program and of each of its commands with the files `NAME.txt` of a
/// directory. With `WEFT_UPDATE_GOLDEN` set it writes them first.
pub fn assert_help(program: impl AsRef<Path>, name: &str, directory: &Path) {
    let help = |command: &[&str]| {
        let arguments: Vec<&str> = command.iter().copied().chain(["--help"]).collect();
        let run = run(clean(&program, &arguments).env("COLUMNS", "100"));
        assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
        run.stdout
    };
    let top = help(&[]);
    for line in top.lines() {
        assert!(line.chars().count() <= 100, "{line}");
        assert_eq!(line, line.trim_end(), "trailing space");
    }
    let commands = listed(&top);
    assert!(
        commands.iter().any(|command| command == "version"),
        "no commands found in:\n{top}"
    );
    let mut texts = vec![(name.to_owned(), top)];
    texts.extend(
        commands
            .iter()
            .map(|command| (command.clone(), help(&[command]))),
    );
    for (name, text) in &texts {
        let golden = directory.join(format!("{name}.txt"));
        if env::var_os("WEFT_UPDATE_GOLDEN").is_some() {
            fs::create_dir_all(directory).expect("the directory of golden files can be made");
            fs::write(&golden, text).expect("golden files can be written");
        }
        let reviewed = fs::read_to_string(&golden).unwrap_or_default();
        assert_eq!(
            *text, reviewed,
            "help of {name}; refresh with WEFT_UPDATE_GOLDEN=1"
        );
    }
    let kept = fs::read_dir(directory).map_or(0, Iterator::count);
    assert_eq!(
        kept,
        texts.len(),
        "a golden file of a command that no longer exists"
    );
}

/// The commands that the top-level help lists.
fn listed(help: &str) -> Vec<String> {
    help.lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        // A deeper indentation continues the line before.
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .collect()
}
