//! The address store: commits, crashes, locks.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use weft_ipam::pool::{Identity, Journal, Record};
use weft_ipam_daemon::store::{Store, counter_file, file};
use weft_model::{Moment, SharedStr};

const BOOT: &str = "boot";

fn cooling(last: u8) -> Record {
    Record::Cooldown([10, 1, 0, last].into(), Some(Moment::seconds(1)))
}

fn identity() -> Record {
    Record::Identity(Identity {
        machine: SharedStr::new("machine"),
        boot: SharedStr::new("boot"),
    })
}

fn kept(directory: &Path) -> Vec<Record> {
    match Store::open(directory, BOOT).unwrap().journal {
        Journal::Kept(records) => records,
        Journal::Lost => panic!("lost"),
    }
}

/// Copies the files as a crash leaves them: while a store has them open.
fn crash(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    fs::copy(file(from), file(to)).unwrap();
    fs::copy(counter_file(from), counter_file(to)).unwrap();
}

#[test]
fn a_commit_waits_for_the_disk_once() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), BOOT).unwrap().store;
    store.commit(&[identity()]).unwrap();
    store.take_syncs();
    for last in 0..50 {
        store.commit(&[cooling(last)]).unwrap();
    }
    assert_eq!(store.take_syncs(), 50);
    assert_eq!(store.take_syncs(), 0);
}

#[test]
fn an_open_store_is_locked_and_is_not_moved_aside() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), BOOT).unwrap().store;
    store.commit(&[identity()]).unwrap();
    Store::open(directory.path(), BOOT).unwrap_err();
    store.commit(&[cooling(1)]).unwrap();
    drop(store);
    assert_eq!(kept(directory.path()), [cooling(1), identity()]);
}

#[test]
fn what_was_committed_is_there_after_a_crash() {
    let (running, crashed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::open(running.path(), BOOT).unwrap().store;
    for last in 0..20 {
        store.commit(&[cooling(last)]).unwrap();
        crash(running.path(), crashed.path());
        assert_eq!(kept(crashed.path()).len(), usize::from(last) + 1);
    }
}

/// The database takes a newest commit that does not verify for one torn by a power cut.
#[test]
fn a_damaged_row_of_the_newest_commit_is_a_loss_after_a_crash() {
    let (running, crashed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::open(running.path(), BOOT).unwrap().store;
    store
        .commit(&[Record::Releasing("precious".into(), true)])
        .unwrap();
    crash(running.path(), crashed.path());
    let path = file(crashed.path());
    let mut bytes = fs::read(&path).unwrap();
    let needle = b"precious";
    let places: Vec<usize> = (0..bytes.len() - needle.len())
        .filter(|at| &bytes[*at..*at + needle.len()] == needle)
        .collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at] = b'P';
    }
    fs::write(&path, &bytes).unwrap();
    let opened = Store::open(crashed.path(), BOOT).unwrap();
    assert_eq!(opened.journal, Journal::Lost);
    assert!(opened.loss.unwrap().moved.is_some());
}

#[test]
fn a_file_that_replaces_a_lost_one_is_closed_to_others_as_well() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(file(directory.path()), [0x5a; 8192]).unwrap();
    let opened = Store::open(directory.path(), BOOT).unwrap();
    assert_eq!(opened.journal, Journal::Lost);
    assert!(opened.loss.unwrap().moved.is_some());
    let mode = fs::metadata(file(directory.path()))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}
