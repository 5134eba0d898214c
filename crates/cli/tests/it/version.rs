//! `weft version`.

use serde_json::Value;

use crate::weft::{run, weft};

#[test]
fn version_says_how_the_program_was_built() {
    let text = run(&mut weft(&["version"])).stdout;
    let first = format!("weft {}\n", env!("CARGO_PKG_VERSION"));
    assert!(text.starts_with(&first), "{text}");

    let json = run(&mut weft(&["version", "--output", "json"])).stdout;
    let info: Value = serde_json::from_str(&json).unwrap();
    let keys: Vec<&str> = info
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(keys, ["commit", "commitDate", "rustc", "target", "version"]);
    assert!(info["rustc"].as_str().unwrap().starts_with("1."), "{json}");
    for value in info.as_object().unwrap().values().filter_map(Value::as_str) {
        assert!(text.contains(value), "{value} is missing in {text}");
    }
}
