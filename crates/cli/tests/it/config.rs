//! The configuration as the program sees it.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::weft::{Run, run, weft};

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, text).unwrap();
    file
}

fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().unwrap()
}

fn value_and_origin(run: &Run, key: &str) -> (Value, Value) {
    let rows: Vec<Value> = serde_json::from_str(&run.stdout).unwrap();
    let row = rows.iter().find(|row| row["key"] == key).unwrap();
    (row["value"].clone(), row["origin"].clone())
}

#[test]
fn flag_beats_environment_beats_file_beats_default() {
    let file = file("log:\n  level: error\n");
    let plain: &[&str] = &["config", "--output", "json"];
    let with_file = [plain, &["--config", path(&file)]].concat();
    let with_flag = [&with_file[..], &["--log-level", "warn"]].concat();
    let cases = [
        (plain, None, "info", "default"),
        (&with_file, None, "error", "file"),
        (&with_file, Some("debug"), "debug", "environment"),
        (&with_flag, Some("debug"), "warn", "flag"),
    ];
    for (arguments, variable, value, origin) in cases {
        let mut command = weft(arguments);
        if let Some(variable) = variable {
            command.env("WEFT_LOG_LEVEL", variable);
        }
        let run = run(&mut command);
        assert_eq!(
            value_and_origin(&run, "level"),
            (json!(value), json!(origin)),
            "{run:?}"
        );
    }
}

#[test]
fn the_file_can_be_named_by_the_environment() {
    let file = file("log: {format: json}\n");
    let run = run(weft(&["config", "-o", "json"]).env("WEFT_CONFIG", file.path()));
    assert_eq!(
        value_and_origin(&run, "format"),
        (json!("json"), json!("file"))
    );
}

fn without_origins(yaml: &str) -> Vec<&str> {
    yaml.lines()
        .map(|line| line.split(" #").next().unwrap_or(line).trim_end())
        .collect()
}

#[test]
fn printed_configuration_can_be_read_back() {
    let flags = [
        "--log-level",
        "info,weft[span{key=\"a\"}]=trace",
        "--log-format",
        "json",
    ];
    let first = run(weft(&["config"]).args(flags));
    assert!(first.stdout.contains("# flag"), "{}", first.stdout);
    let file = file(&first.stdout);
    let second = run(&mut weft(&["config", "--config", path(&file)]));
    assert_eq!(
        without_origins(&second.stdout),
        without_origins(&first.stdout)
    );
    assert!(!second.stdout.contains("# flag"), "{}", second.stdout);
}

#[test]
fn an_unknown_key_is_an_error_that_names_key_and_file() {
    let file = file("log:\n  level: info\n  colour: always\n");
    let run = run(&mut weft(&["config", "--config", path(&file)]));
    assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""));
    for part in ["`colour`", path(&file), "line 3"] {
        assert!(run.stderr.contains(part), "no {part:?} in:\n{}", run.stderr);
    }
}

#[test]
fn a_wrong_value_names_where_it_stands() {
    let file = file("log:\n  level: weft=loud\n");
    let in_file = run(&mut weft(&["config", "--config", path(&file)]));
    assert_eq!(in_file.code, Some(2));
    assert!(in_file.stderr.contains("weft=loud"), "{}", in_file.stderr);

    let in_variable = run(weft(&["config"]).env("WEFT_LOG_FORMAT", "xml"));
    assert_eq!(in_variable.code, Some(2));
    let expected = "error: environment variable WEFT_LOG_FORMAT: `xml` is neither text nor json\n";
    assert_eq!(in_variable.stderr, expected);

    let in_flag = run(&mut weft(&["config", "--log-level", "weft=loud"]));
    assert_eq!(in_flag.code, Some(2));
    assert!(in_flag.stderr.contains("--log-level"), "{}", in_flag.stderr);
}

#[test]
fn a_missing_file_is_an_error_with_its_cause() {
    let missing = Path::new("/nonexistent/weft.yaml");
    let run = run(weft(&["config", "--config"]).arg(missing));
    assert_eq!(run.code, Some(2));
    assert_eq!(
        run.stderr,
        "error: cannot read the configuration file /nonexistent/weft.yaml\n  \
         cause: No such file or directory (os error 2)\n"
    );
}

#[test]
fn variables_of_a_service_called_weft_do_no_harm() {
    let run = run(weft(&["config"])
        .env("WEFT_SERVICE_HOST", "10.96.0.7")
        .env("WEFT_PORT", "x"));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
}
