//! Calls while the daemon does not run, does not listen or does not respond.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    os::unix::net::UnixListener,
    time::{Duration, Instant},
};

use serde_json::json;
use weft_cni::{Limits, Output, Queue, call};

use crate::{
    daemon::{FakeDaemon, Reply, grant_all},
    plugin::{Node, files},
};

/// Calls the library with shorter time limits than the program has.
fn call_with_short_limits(node: &Node, command: &str, container: &str) -> Output {
    let variables = BTreeMap::from([
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", container),
        ("CNI_NETNS", "/run/netns/pod"),
        ("CNI_IFNAME", "eth0"),
    ]);
    let limits = Limits {
        add: Duration::from_millis(300),
        delete: Duration::from_millis(300),
        other: Duration::from_millis(300),
    };
    call(
        &|name| variables.get(name).map(OsString::from),
        &mut node.config("1.1.0").to_string().as_bytes(),
        &limits,
    )
}

#[test]
fn add_fails_with_try_again_later() {
    let node = Node::new();
    let ended = node.call("ADD", "c1");
    assert_eq!(ended.code(), 11);
    assert!(
        ended.json()["msg"]
            .as_str()
            .unwrap()
            .contains("try again later")
    );
    assert_eq!(node.queued(), [""; 0]);
}

#[test]
fn status_check_and_gc_fail() {
    let node = Node::new();
    assert_eq!(node.call("STATUS", "").code(), 50);
    let mut config = node.config("1.1.0");
    config["prevResult"] = json!({"ips": []});
    config["cni.dev/valid-attachments"] = json!([]);
    assert_eq!(node.call_with("CHECK", "c1", &config).code(), 11);
    assert_eq!(node.call_with("GC", "", &config).code(), 11);
}

#[test]
fn status_tolerates_a_short_absence_of_a_daemon_that_served() {
    let node = Node::new();
    let daemon = FakeDaemon::granting(&node.socket());
    node.call("STATUS", "").assert_silent_success();
    daemon.leave();
    let ended = node.call("STATUS", "");
    ended.assert_silent_success();
    assert!(
        ended.stderr.contains("the daemon served"),
        "{}",
        ended.stderr
    );
    // As long ago as the bound, by the file's own time.
    let mark = node.path("ipam.served");
    let age = |seconds: f64| {
        let text = fs::read_to_string(&mark).unwrap();
        let (boot, time) = text.trim().split_once(' ').unwrap();
        let time: f64 = time.parse().unwrap();
        fs::write(&mark, format!("{boot} {}", time - seconds)).unwrap();
    };
    age(25.0);
    node.call("STATUS", "").assert_silent_success();
    age(5.0);
    assert_eq!(node.call("STATUS", "").code(), 50);
    assert_eq!(
        node.call("STATUS", "").code(),
        50,
        "a failure does not count as serving"
    );
}

#[test]
fn status_tolerates_the_start_of_a_daemon_that_served() {
    let node = Node::new();
    let answer = |starting: bool| {
        let reason = "not observed yet";
        Reply::json(
            &json!({"serving": "unavailable", "reason": reason, "starting": starting,
                    "response": {"ReturnCode": 0, "Message": ""}}),
        )
    };
    let starting = FakeDaemon::start(&node.socket(), move |_| answer(true));
    assert_eq!(node.call("STATUS", "").code(), 50, "it never served");
    starting.leave();
    let serving = FakeDaemon::granting(&node.socket());
    node.call("STATUS", "").assert_silent_success();
    serving.leave();
    let starting = FakeDaemon::start(&node.socket(), move |_| answer(true));
    node.call("STATUS", "").assert_silent_success();
    starting.leave();
    let refusing = FakeDaemon::start(&node.socket(), move |_| answer(false));
    assert_eq!(node.call("STATUS", "").code(), 50, "what it says counts");
    refusing.leave();
    assert_eq!(
        node.call("STATUS", "").code(),
        50,
        "it did not serve before it left"
    );
}

#[test]
fn what_was_served_before_a_reboot_does_not_count() {
    let node = Node::new();
    let daemon = FakeDaemon::granting(&node.socket());
    node.call("STATUS", "").assert_silent_success();
    daemon.leave();
    let mark = node.path("ipam.served");
    let text = fs::read_to_string(&mark).unwrap();
    let (_, time) = text.trim().split_once(' ').unwrap();
    for odd in [
        format!("another-boot {time}"),
        String::new(),
        "nonsense".to_owned(),
        text.replace(time, "1e300"),
        text.replace(time, "-5"),
    ] {
        fs::write(&mark, odd).unwrap();
        assert_eq!(node.call("STATUS", "").code(), 50);
    }
    fs::remove_file(&mark).unwrap();
    // A link that another user could have left is not followed.
    std::os::unix::fs::symlink(node.path("elsewhere"), &mark).unwrap();
    let _daemon = FakeDaemon::granting(&node.socket());
    node.call("STATUS", "").assert_silent_success();
    assert!(!node.path("elsewhere").exists());
}

#[test]
fn del_succeeds_and_the_release_is_queued() {
    let node = Node::new();
    for container in ["c2", "c1", "c2"] {
        node.call("DEL", container).assert_silent_success();
    }
    assert_eq!(node.queued(), ["c2", "c1"], "in order, and each once");
    let names = files(&node.path("queue"));
    assert_eq!(names.len(), 2, "nothing half written is left: {names:?}");
}

#[test]
fn a_socket_without_a_listener_counts_as_unreachable() {
    let node = Node::new();
    drop(UnixListener::bind(node.socket()).unwrap());
    assert!(node.socket().exists());
    node.call("DEL", "c1").assert_silent_success();
    assert_eq!(node.queued(), ["c1"]);
}

#[test]
fn the_next_call_replays_in_order_before_its_own() {
    for (command, own) in [("ADD", "/network/requestipconfigs"), ("GC", "/v1/gc")] {
        let node = Node::new();
        for container in ["c2", "c1"] {
            node.call("DEL", container).assert_silent_success();
        }
        let daemon = FakeDaemon::granting(&node.socket());
        let mut config = node.config("1.1.0");
        config["cni.dev/valid-attachments"] = json!([]);
        assert!(node.call_with(command, "c3", &config).succeeded);
        assert_eq!(daemon.containers("/network/releaseipconfigs"), ["c2", "c1"]);
        assert_eq!(daemon.received().last().unwrap().path, own);
        assert_eq!(node.queued(), [""; 0]);
    }
}

#[test]
fn a_del_releases_its_own_key_before_the_queue() {
    let node = Node::new();
    node.call("DEL", "c1").assert_silent_success();
    let daemon = FakeDaemon::granting(&node.socket());
    node.call("DEL", "c2").assert_silent_success();
    assert_eq!(daemon.containers("/network/releaseipconfigs"), ["c2", "c1"]);
    daemon.leave();
    node.call("DEL", "c3").assert_silent_success();
    assert_eq!(node.queued(), ["c3"]);
}

#[test]
fn an_add_waits_for_the_release_of_its_own_key() {
    let node = Node::new();
    node.call("DEL", "c1").assert_silent_success();
    let daemon = FakeDaemon::start(&node.socket(), |received| match &*received.path {
        "/network/releaseipconfigs" => {
            Reply::json(&json!({"response": {"ReturnCode": 99, "Message": "not now"}}))
        }
        _ => Reply::json(&grant_all(received)),
    });
    assert_eq!(node.call("ADD", "c1").code(), 11);
    let requested = daemon.containers("/network/requestipconfigs");
    assert_eq!(
        requested, [""; 0],
        "a later replay would take the address away"
    );
    assert!(node.call("ADD", "c2").succeeded, "others need not wait");
}

#[test]
fn an_add_waits_while_another_process_replays_its_key() {
    let node = Node::new();
    node.call("DEL", "c1").assert_silent_success();
    let daemon = FakeDaemon::granting(&node.socket());
    let queue = Queue::new(node.path("queue"));
    let guard = queue.lock().unwrap().unwrap();
    let entries = guard.waiting().unwrap().releases;
    assert_eq!(node.call("ADD", "c1").code(), 11);
    guard.remove(&entries[0]).unwrap();
    assert!(node.call("ADD", "c1").succeeded);
    assert_eq!(daemon.containers("/network/releaseipconfigs"), [""; 0]);
}

#[test]
fn a_daemon_that_does_not_respond_is_given_up_at_the_time_limit() {
    let node = Node::new();
    let _daemon = FakeDaemon::start(&node.socket(), |_| Reply::Silence);
    let begun = Instant::now();
    let output = call_with_short_limits(&node, "ADD", "c1");
    // Without a limit of its own it would have waited for 30 s. A DEL writes to the disk as well,
    // which takes as long as it takes.
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert!(output.text.contains("\"code\":11"), "{}", output.text);
    let output = call_with_short_limits(&node, "DEL", "c1");
    assert!(output.succeeded, "{}", output.text);
    assert_eq!(
        node.queued(),
        ["c1"],
        "the daemon may or may not have received it"
    );
}

#[test]
fn a_daemon_with_a_full_backlog_does_not_block_a_call() {
    let node = Node::new();
    let listener = UnixListener::bind(node.socket()).unwrap();
    // The backlog of a listener that never accepts is full at some point; a blocking connect
    // would hang there.
    rustix::net::listen(&listener, 0).unwrap();
    let _held = std::os::unix::net::UnixStream::connect(node.socket()).unwrap();
    let output = call_with_short_limits(&node, "DEL", "c1");
    assert!(output.succeeded, "{}", output.text);
    assert_eq!(node.queued(), ["c1"]);
}

#[test]
fn a_release_that_cannot_be_queued_is_an_error() {
    let node = Node::new();
    fs::write(node.path("queue"), "a file where the directory should be").unwrap();
    let ended = node.call("DEL", "c1");
    assert_eq!(ended.code(), 5);
    let details = ended.json()["details"].as_str().unwrap().to_owned();
    assert!(
        details.contains("cannot connect to the daemon's socket"),
        "{details}"
    );
    assert!(details.contains("queue"), "{details}");
}

#[test]
fn an_add_is_refused_when_the_queue_cannot_be_read() {
    let node = Node::new();
    fs::write(node.path("queue"), "a file where the directory should be").unwrap();
    let daemon = FakeDaemon::granting(&node.socket());
    assert_eq!(node.call("ADD", "c1").code(), 5);
    assert!(daemon.received().is_empty());
    node.call("DEL", "c1").assert_silent_success();
}

#[test]
fn many_releases_at_once_all_reach_the_disk() {
    let node = Node::new();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let node = &node;
            scope.spawn(move || {
                node.call("DEL", &format!("c{number}"))
                    .assert_silent_success();
            });
        }
    });
    let mut queued = node.queued();
    queued.sort();
    let expected: Vec<String> = (0..8).map(|number| format!("c{number}")).collect();
    assert_eq!(queued, expected);
}
