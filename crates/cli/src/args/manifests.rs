//! The command lines in `deploy/` are ones that this program takes.

use std::{fs, path::Path};

use clap::Parser as _;
use serde_json::Value;

use super::Arguments;

fn documents(file: &str) -> Vec<Value> {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let text = fs::read_to_string(deploy.join(file)).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

/// The containers of a manifest's workload that run this program.
fn containers(file: &str) -> Vec<Value> {
    let documents = documents(file);
    let found = documents
        .iter()
        .find_map(|object| object.pointer("/spec/template/spec/containers")?.as_array());
    found.unwrap().clone()
}

/// A command line as a kubelet makes it.
fn line(container: &Value) -> Vec<String> {
    let mut words: Vec<String> = serde_json::from_value(container["command"].clone()).unwrap();
    for variable in container["env"].as_array().unwrap() {
        let value = match &variable["valueFrom"]["fieldRef"]["fieldPath"] {
            Value::String(path) if path == "status.hostIP" => "192.0.2.1",
            Value::String(path) if path == "spec.nodeName" => "node-1",
            _ => variable["value"].as_str().unwrap_or_default(),
        };
        let reference = format!("$({})", variable["name"].as_str().unwrap());
        for word in &mut words {
            *word = word.replace(&reference, value);
        }
    }
    words
}

fn assert_taken(container: &Value) {
    let line = line(container);
    assert!(!line.iter().any(|word| word.contains("$(")), "{line:?}");
    if let Err(error) = Arguments::try_parse_from(&line) {
        panic!("{line:?}: {error}");
    }
}

#[test]
fn every_command_line_is_taken() {
    let mut taken = 0;
    for file in [
        "node/daemonset.yaml",
        "controller/deployment.yaml",
        "proxy/daemonset.yaml",
        "routes/deployment.yaml",
    ] {
        for container in containers(file) {
            assert_taken(&container);
            taken += 1;
        }
    }
    assert_eq!(taken, 7);
}

#[test]
fn the_command_lines_that_components_change_are_taken() {
    for (patch, workload) in [
        ("monitoring/node.yaml", "node/daemonset.yaml"),
        ("monitoring/controller.yaml", "controller/deployment.yaml"),
        ("dashboard/controller.yaml", "controller/deployment.yaml"),
    ] {
        let mut containers = containers(workload);
        let mut changed = 0;
        for change in documents(patch)
            .iter()
            .filter_map(Value::as_array)
            .flatten()
        {
            let path = change["path"].as_str().unwrap();
            let rest = path
                .strip_prefix("/spec/template/spec/containers/")
                .unwrap();
            let (index, field) = rest.split_once('/').unwrap();
            let container = &mut containers[index.parse::<usize>().unwrap()];
            match (change["op"].as_str().unwrap(), field) {
                ("test", "name") => assert_eq!(container["name"], change["value"]),
                ("add", "command/-" | "env/-") => {
                    let list = field.trim_end_matches("/-");
                    let list = container[list].as_array_mut().unwrap();
                    list.push(change["value"].clone());
                    changed += 1;
                }
                ("remove", probe) => {
                    assert!(container.pointer(&format!("/{probe}")).is_some(), "{probe}");
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(changed >= 1);
        containers.iter().for_each(assert_taken);
    }
}
