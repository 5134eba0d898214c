//! A process for each pod: how soon the plugin is up.

use std::{
    env,
    fs::{self, File},
    path::PathBuf,
    process::{Command, Stdio},
};

use serde_json::json;
use weft_testkit::bench::{Report, Target, median, run_times};

use crate::{
    judge::{full_or_quick, unless_quick},
    stage::Stage,
};

pub(crate) fn measure(report: &mut Report) {
    let plugin = build();
    let runs = full_or_quick(201, 3);
    let version = run_times(runs, || {
        let mut command = Command::new(&plugin);
        command
            .env_clear()
            .env("CNI_COMMAND", "VERSION")
            .stdin(Stdio::null());
        command
    });
    let target = unless_quick(Target::AtMost(5.0));
    report.figure("weft-cni VERSION, p50", "ms", median(version), target);
    let stage = Stage::new(256);
    let daemon = stage.start();
    daemon.until_ready();
    let input = stage.directory.path().join("input");
    let config = json!({"cniVersion": "1.0.0", "name": "podnet", "type": "ptp",
        "ipam": {"type": "weft-cni", "socket": daemon.socket,
                 "queue": stage.directory.path().join("queue")}});
    fs::write(&input, config.to_string()).unwrap();
    let add = |container: &str| {
        let mut command = Command::new(&plugin);
        command.env_clear().envs([
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", container),
            ("CNI_NETNS", "/run/netns/pod"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/opt/cni/bin"),
            (
                "CNI_ARGS",
                "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p;K8S_POD_UID=u",
            ),
        ]);
        command.stdin(File::open(&input).unwrap());
        command
    };
    run_times(1, || add("known"));
    let known = run_times(runs, || add("known"));
    report.figure(
        "weft-cni ADD of what the daemon knows, p50",
        "ms",
        median(known),
        target,
    );
    let mut number = 0;
    let fresh = run_times(runs, || {
        number += 1;
        add(&format!("fresh-{number}"))
    });
    report.figure(
        "weft-cni ADD of a new pod, a sync of the disk included, p50",
        "ms",
        median(fresh),
        Target::None,
    );
}

/// The plugin of this very source. Cargo builds the programs of a benchmark's own package only.
fn build() -> PathBuf {
    let weft = PathBuf::from(env!("CARGO_BIN_EXE_weft"));
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args([
        "build",
        "--locked",
        "--quiet",
        "--workspace",
        "--bin=weft-cni",
    ]);
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo
        .arg("--target-dir")
        .arg(weft.ancestors().nth(2).unwrap());
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "{cargo:?}");
    weft.with_file_name("weft-cni")
}
