//! Irregular files in the queue and in place of the log.

use std::{
    fs::{self, OpenOptions},
    os::unix::{
        fs::{FileTypeExt as _, symlink},
        net::UnixListener,
    },
    path::Path,
    sync::mpsc,
    time::Duration,
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use weft_cni::{Queue, Waiting};

use crate::{
    daemon::FakeDaemon,
    plugin::{Ended, Node, files},
};

/// Far more than a call takes, and less than forever.
const LIMIT: Duration = Duration::from_secs(30);

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

/// The outcome of something that must not wait for a writer of this FIFO.
fn in_time<T: Send>(fifo: &Path, work: impl FnOnce() -> T + Send) -> T {
    let (sender, done) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || sender.send(work()));
        done.recv_timeout(LIMIT).unwrap_or_else(|_| {
            // An other end that comes and goes ends the wait, and with it the test.
            drop(OpenOptions::new().read(true).write(true).open(fifo));
            panic!("it hangs on {}", fifo.display())
        })
    })
}

fn name(number: u32) -> String {
    format!("{number:020}-00000000000000aa.json")
}

fn waiting(queue: &Queue) -> Waiting {
    queue.lock().unwrap().unwrap().waiting().unwrap()
}

fn containers(waiting: &Waiting) -> Vec<&str> {
    let releases = waiting.releases.iter();
    releases
        .map(|release| &*release.request.infra_container_id)
        .collect()
}

#[test]
fn irregular_files_are_put_aside_and_releases_are_replayed() {
    let node = Node::new();
    let directory = node.path("queue");
    node.call("DEL", "c1").assert_silent_success();
    let release = fs::read(&files(&directory)[0]).unwrap();
    let elsewhere = node.path("elsewhere");
    fs::write(&elsewhere, &release).unwrap();
    let at = |number| directory.join(name(number));
    fifo(&at(1));
    fs::create_dir(at(2)).unwrap();
    fs::write(at(2).join("inside"), "").unwrap();
    let _listener = UnixListener::bind(at(3)).unwrap();
    symlink(&elsewhere, at(4)).unwrap();
    symlink("/dev/zero", at(5)).unwrap();
    symlink("nowhere", at(6)).unwrap();
    fs::write(at(7), "").unwrap();
    // What is too long says the same and is not read on account of its end.
    let mut long = release.clone();
    long.resize(1 << 20, b' ');
    fs::write(at(8), &long).unwrap();
    fs::write(at(9), [0xff; 64]).unwrap();
    // Its name aside is taken by something that cannot be replaced.
    fs::write(at(10), "").unwrap();
    fs::create_dir(directory.join(format!("{}.unreadable", name(10)))).unwrap();
    node.call("DEL", "c2").assert_silent_success();

    let queue = Queue::new(&directory);
    let first = in_time(&at(1), || waiting(&queue));
    assert_eq!(containers(&first), ["c1", "c2"]);
    assert_eq!(first.unreadable.len(), 10, "{:?}", first.unreadable);
    for entry in &first.unreadable {
        assert!(entry.path.symlink_metadata().is_ok(), "{entry:?}");
        assert!(!entry.reason.is_empty(), "{entry:?}");
    }
    let reason = |number| {
        let of = |path: &Path| path.to_string_lossy().contains(&name(number));
        let mut entries = first.unreadable.iter();
        &*entries.find(|entry| of(&entry.path)).unwrap().reason
    };
    assert_eq!(reason(1), "it is not a regular file");
    assert_eq!(reason(2), "it is not a regular file");
    assert!(reason(8).contains("longer than"), "{}", reason(8));
    assert_eq!(fs::read(&elsewhere).unwrap(), release, "left alone");
    // The one that could not be moved is reported again, and stops none of the others.
    let second = waiting(&queue);
    assert_eq!(containers(&second), ["c1", "c2"]);
    assert_eq!(second.unreadable.len(), 1, "{:?}", second.unreadable);
}

/// Puts a FIFO in place of the release of a container, under its very name.
fn in_place_of_release(node: &Node, container: &str) -> std::path::PathBuf {
    node.call("DEL", container).assert_silent_success();
    let path = files(&node.path("queue")).remove(0);
    fs::remove_file(&path).unwrap();
    fifo(&path);
    path
}

#[test]
fn a_fifo_under_the_name_of_a_release_blocks_no_call() {
    let node = Node::new();
    let path = in_place_of_release(&node, "c1");
    let call = |command: &str| -> Ended { in_time(&path, || node.call(command, "c1")) };
    // Without a daemon the release goes to the queue, next to the FIFO.
    call("DEL").assert_silent_success();
    let releases = files(&node.path("queue"));
    assert_eq!(releases.len(), 2, "{releases:?}");
    // It waits there, so its ADD has to; and the FIFO is put aside on the way.
    let daemon = FakeDaemon::granting(&node.socket());
    call("DEL").assert_silent_success();
    let left = files(&node.path("queue"));
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(left[0].to_string_lossy().ends_with(".json.unreadable"));
    assert!(left[0].metadata().unwrap().file_type().is_fifo());
    let log = fs::read_to_string(node.path("log")).unwrap();
    assert!(log.contains("1 unreadable"), "{log}");
    assert!(call("ADD").succeeded);
    drop(daemon);
}

#[test]
fn a_fifo_in_place_of_a_release_does_not_refuse_its_add() {
    let node = Node::new();
    let path = in_place_of_release(&node, "c1");
    let _daemon = FakeDaemon::granting(&node.socket());
    let ended = in_time(&path, || node.call("ADD", "c1"));
    assert!(ended.succeeded, "{ended:?}");
}

#[test]
fn a_fifo_in_place_of_the_queue_is_an_error() {
    let node = Node::new();
    let path = node.path("queue");
    fifo(&path);
    assert_eq!(in_time(&path, || node.call("DEL", "c1")).code(), 5);
    let _daemon = FakeDaemon::granting(&node.socket());
    assert_eq!(in_time(&path, || node.call("ADD", "c1")).code(), 5);
    in_time(&path, || node.call("DEL", "c1")).assert_silent_success();
}

#[test]
fn a_log_that_is_not_a_regular_file_is_skipped() {
    let node = Node::new();
    let _daemon = FakeDaemon::granting(&node.socket());
    let log = node.path("log");
    fifo(&log);
    let ended = in_time(&log, || node.call("ADD", "c1"));
    assert!(ended.succeeded, "{ended:?}");
    assert!(ended.stderr.contains("not a regular file"), "{ended:?}");
    fs::remove_file(&log).unwrap();
    // Another's file is not written to by way of a link.
    let precious = node.path("precious");
    fs::write(&precious, "untouched").unwrap();
    symlink(&precious, &log).unwrap();
    assert!(node.call("ADD", "c2").succeeded);
    assert_eq!(fs::read_to_string(&precious).unwrap(), "untouched");
}
