//! The daemon when its store cannot be written or the API server refuses.

use std::{fs, panic::AssertUnwindSafe};

use futures::FutureExt as _;
use redb::{Database, ReadableDatabase as _, TableDefinition};
use weft_cns::{ReturnCode, Serving};
use weft_ipam_daemon::store::file;

use super::world::{World, delete, try_add};

const ABOUT: TableDefinition<'_, &str, u64> = TableDefinition::new("about");

#[tokio::test(start_paused = true)]
async fn a_store_of_a_newer_program_is_left_to_it() {
    let world = World::new().await;
    world.grant("n1", &["10.1.0.4".to_owned()]).await;
    let state = tempfile::tempdir().unwrap();
    let daemon = world.start("n1", state.path()).await;
    daemon.add("kept").await;
    daemon.stop().await;
    let path = file(state.path());
    let database = Database::open(&path).unwrap();
    let write = database.begin_write().unwrap();
    write
        .open_table(ABOUT)
        .unwrap()
        .insert("format", 2)
        .unwrap();
    write.commit().unwrap();
    drop(database);
    let daemon = world.start("n1", state.path()).await;
    assert_eq!(
        try_add(&daemon.router, "new").await,
        Err(ReturnCode::FAILED_TO_ALLOCATE_IP_CONFIG)
    );
    assert_eq!(delete(&daemon.router, "kept").await, ReturnCode::SUCCESS);
    daemon.stop().await;
    let database = Database::open(&path).unwrap();
    let read = database.begin_read().unwrap();
    let about = read.open_table(ABOUT).unwrap();
    assert_eq!(about.get("format").unwrap().unwrap().value(), 2);
    let names = fs::read_dir(state.path()).unwrap().count();
    assert_eq!(names, 2, "the store and its counter");
}

#[tokio::test(start_paused = true)]
async fn a_second_daemon_does_not_come_between_the_first_and_its_plugins() {
    let world = World::new().await;
    world.grant("n1", &["10.1.0.4".to_owned()]).await;
    let state = tempfile::tempdir().unwrap();
    let first = world.start("n1", state.path()).await;
    let second = AssertUnwindSafe(world.start("n1", state.path()));
    assert!(second.catch_unwind().await.is_err(), "it has no store");
    first.add("p0").await;
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_cannot_be_used_closes_add_and_leaves_del_open() {
    let world = World::new().await;
    world
        .grant("n1", &["10.1.0.4".to_owned(), "10.1.0.5".to_owned()])
        .await;
    let parent = tempfile::tempdir().unwrap();
    let state = parent.path().join("state");
    let daemon = world.start("n1", &state).await;
    let first = daemon.add("before").await;
    daemon.add("going").await;
    daemon.stop().await;
    // Root may write anywhere, but no process can use a file as a directory.
    let aside = parent.path().join("aside");
    fs::rename(&state, &aside).unwrap();
    fs::write(&state, "").unwrap();

    let daemon = world.start("n1", &state).await;
    assert_eq!(
        try_add(&daemon.router, "p0").await,
        Err(ReturnCode::FAILED_TO_ALLOCATE_IP_CONFIG)
    );
    assert_eq!(delete(&daemon.router, "going").await, ReturnCode::SUCCESS);
    let status = daemon.status().await;
    assert_eq!(
        (status.serving, &*status.reason),
        (Serving::Unavailable, "the address store cannot be written")
    );

    fs::remove_file(&state).unwrap();
    fs::rename(&aside, &state).unwrap();
    daemon
        .becomes("ready", |status| status.serving == Serving::Ready)
        .await;
    assert_eq!(daemon.add("before").await, first, "the records are back");
    assert_eq!(
        try_add(&daemon.router, "going").await,
        Err(ReturnCode::INVALID_REQUEST),
        "attachments deleted meanwhile stay deleted"
    );
    assert_eq!(daemon.attached().await, 1);
}
