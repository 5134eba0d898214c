//! The program itself, as far as it can be called without changing the machine.

use std::process::Command;

fn xtask(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn an_unknown_task_is_refused_with_the_list_of_tasks() {
    let (code, _, stderr) = xtask(&["tset"]);
    assert_eq!(code, Some(1));
    assert!(stderr.starts_with("xtask: unknown task `tset`"), "{stderr}");
    assert!(stderr.contains("kubernetes up|down|status"), "{stderr}");
}

#[test]
fn missing_peers_are_named_with_the_way_to_get_them() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let nowhere = std::env::temp_dir().join("weft-no-peers");
    command
        .args(["kubernetes", "up"])
        .env("WEFT_PEERS_DIR", &nowhere);
    // Away from a cluster that a developer may be running.
    let output = command.env("CARGO_TARGET_DIR", &nowhere).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr.contains("etcd is not built yet; `make peers` does that"),
        "{stderr}"
    );
}

#[test]
fn peers_without_go_are_a_clear_message() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let nowhere = std::env::temp_dir().join(format!("weft-no-go-{}", std::process::id()));
    command
        .arg("peers")
        .env("WEFT_PEERS_DIR", &nowhere)
        .env("PATH", "/nonexistent");
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    std::fs::remove_dir_all(&nowhere).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr.contains("Go is missing: the peers are built with Go 1.26 or newer"),
        "{stderr}"
    );
}
