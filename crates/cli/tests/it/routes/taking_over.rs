//! Leader election of `weft routes`: a leader that dies or sleeps is replaced.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use weft_testkit::{clouds::HcloudLatency, free_port};

use super::{
    providers::{hcloud, hcloud_table, hcloud_with, with_hcloud},
    stage::{Stage, becomes, eventually},
};
use crate::{
    arena::Running,
    weft::{run, weft},
};

/// Three seconds from a leader's silence to the next leader.
const ELECTION: [&str; 3] = [
    "--leader-elect-lease-duration=3s",
    "--leader-elect-renew-deadline=2s",
    "--leader-elect-retry-period=200ms",
];

/// Lease times long enough that only a stopped process loses its lease on a busy machine.
const LONG_ELECTION: [&str; 3] = [
    "--leader-elect-lease-duration=8s",
    "--leader-elect-renew-deadline=7s",
    "--leader-elect-retry-period=200ms",
];

fn send(process: &Running, signal: Signal) {
    let id = i32::try_from(process.0.id()).unwrap();
    kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
}

fn leads(port: u16) -> Option<bool> {
    let server = format!("--server=https://127.0.0.1:{port}");
    let answer = run(&mut weft(&["routes", "status", "--json", &server]));
    let status: serde_json::Value = serde_json::from_str(&answer.stdout).ok()?;
    Some(!status["passedAt"].is_null())
}

#[test]
fn a_leader_that_dies_is_followed_by_the_other() {
    let stage = Stage::new();
    let double = hcloud(&stage);
    let start = |name: &str| {
        let mut command = stage.routes("hcloud", &["--secure-port=0"]);
        command.args(ELECTION);
        stage.start(name, with_hcloud(&mut command, &double))
    };
    stage.add_node(1, "hcloud://1");
    let mut first = start("first.log");
    becomes(&Stage::routes_to([1]), || hcloud_table(&double));
    let _second = start("second.log");
    first.0.kill().unwrap();
    stage.add_node(2, "hcloud://2");
    let dead = Instant::now();
    becomes(&Stage::routes_to(1..=2), || hcloud_table(&double));
    // The default lease would have been waited for.
    let took = dead.elapsed();
    assert!(took < Duration::from_secs(14), "{took:?}");
}

#[test]
fn a_leader_that_slept_through_its_lease_changes_nothing_when_it_wakes() {
    let stage = Stage::new();
    // A mutation takes a second, in which its maker is suspended.
    let double = hcloud_with(&stage, HcloudLatency::REAL);
    let ports = [free_port(), free_port()];
    let start = |number: usize| {
        let port = format!("--secure-port={}", ports[number]);
        let mut command = stage.routes("hcloud", &[&port]);
        command.args(LONG_ELECTION);
        let name = format!("{number}.log");
        stage.start(&name, with_hcloud(&mut command, &double))
    };
    for number in 1..=2 {
        stage.add_node(number, &format!("hcloud://{number}"));
    }
    let first = start(0);
    becomes(&Stage::routes_to(1..=2), || hcloud_table(&double));
    let _second = start(1);
    eventually("the second stands by", || {
        leads(ports[1])
            .filter(|leads| !leads)
            .ok_or("no answer".to_owned())
    });
    for number in 5..=8 {
        stage.add_node(number, &format!("hcloud://{number}"));
    }
    eventually("the first in the middle of a pass", || {
        let calls = double.calls_of("add_route");
        if calls > 2 {
            Ok(())
        } else {
            Err(calls.to_string())
        }
    });
    send(&first, Signal::STOP);
    // What the sleeper knows becomes wrong: nodes go, one in the middle of getting its route.
    stage.delete_node(2);
    stage.delete_node(5);
    stage.add_node(3, "hcloud://3");
    let wanted = Stage::routes_to([1, 3, 6, 7, 8]);
    becomes(&wanted, || hcloud_table(&double));
    let changes = || double.calls_of("add_route") + double.calls_of("delete_route");
    let before = changes();
    send(&first, Signal::CONT);
    let woken = Instant::now();
    while woken.elapsed() < Duration::from_secs(4) {
        assert_eq!(hcloud_table(&double), wanted);
        assert_eq!(changes(), before, "another process changes routes");
        std::thread::sleep(Duration::from_millis(100));
    }
    // Both live, one leads: routes go on.
    stage.add_node(4, "hcloud://4");
    let wanted = Stage::routes_to([1, 3, 4, 6, 7, 8]);
    becomes(&wanted, || hcloud_table(&double));
    assert_eq!(changes(), before + 1);
}
