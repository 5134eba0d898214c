//! Replay of releases that plugins queued while the daemon did not run.

use std::{fs, path::Path};

use weft_cni::Queue;
use weft_cns::{IpConfigsRequest, ReturnCode, Serving, StatusResponse};
use weft_ipam_daemon::{ReplayError, Replayed, replay};

use super::world::{World, delete, request, try_add};

fn addresses(count: u8) -> Vec<String> {
    (4..4 + count)
        .map(|last| format!("10.1.0.{last}"))
        .collect()
}

/// A cluster whose daemon assigned addresses to `kept` and `gone`, and stopped before the DEL of
/// `gone`.
async fn away(directory: &Path) -> (World, Queue) {
    let world = World::new().await;
    world.grant("n1", &addresses(2)).await;
    let daemon = world.start("n1", &directory.join("state")).await;
    daemon.add("kept").await;
    daemon.add("gone").await;
    daemon.stop().await;
    let queue = Queue::new(directory.join("queue"));
    queue.push(&request("gone")).unwrap();
    (world, queue)
}

fn is_empty(queue: &Queue) -> bool {
    queue.is_empty().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_queued_release_frees_its_address() {
    let directory = tempfile::tempdir().unwrap();
    let (world, queue) = away(directory.path()).await;
    let daemon = world.start("n1", &directory.path().join("state")).await;
    assert_eq!(daemon.attached().await, 2);
    let replayed = replay(&daemon.rest, &directory.path().join("queue")).await;
    let expected = Replayed {
        released: 1,
        ..Replayed::default()
    };
    assert_eq!(replayed.unwrap(), expected);
    assert_eq!(daemon.attached().await, 1);
    assert!(is_empty(&queue));
    let late = try_add(&daemon.router, "gone").await;
    assert_eq!(late, Err(ReturnCode::INVALID_REQUEST), "it was deleted");
    daemon.stop().await;
    let daemon = world.start("n1", &directory.path().join("state")).await;
    assert_eq!(daemon.attached().await, 1, "durable");
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_is_not_there_is_an_empty_queue() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new().await;
    let daemon = world.start("n1", directory.path()).await;
    let nothing = replay(&daemon.rest, &directory.path().join("none")).await;
    assert_eq!(nothing.unwrap(), Replayed::default());
    assert!(!directory.path().join("none").exists());
}

#[tokio::test(start_paused = true)]
async fn a_damaged_release_is_put_aside_and_a_refused_one_stays_and_neither_stops_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let (world, queue) = away(directory.path()).await;
    let files = directory.path().join("queue");
    let torn = "00000000000000000001-00000000000000aa.json";
    fs::write(files.join(torn), "{\"version\":1,\"requ").unwrap();
    let too_long = IpConfigsRequest {
        infra_container_id: "c".repeat(5000),
        ..IpConfigsRequest::default()
    };
    queue.push(&too_long).unwrap();
    let daemon = world.start("n1", &directory.path().join("state")).await;
    let expected = Replayed {
        released: 1,
        kept: 1,
        damaged: 1,
    };
    assert_eq!(replay(&daemon.rest, &files).await.unwrap(), expected);
    assert_eq!(daemon.attached().await, 1);
    assert!(files.join(format!("{torn}.unreadable")).exists());
    assert!(queue.holds(&too_long).unwrap());
}

/// Real time: opening a FIFO carelessly would block a thread for ever.
#[tokio::test]
async fn a_fifo_in_the_queue_neither_hangs_the_start_nor_stops_a_release() {
    let directory = tempfile::tempdir().unwrap();
    let (world, _) = away(directory.path()).await;
    let files = directory.path().join("queue");
    let fifo = files.join("00000000000000000001-00000000000000aa.json");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    let daemon = world.start("n1", &directory.path().join("state")).await;
    let limit = std::time::Duration::from_secs(30);
    let replayed = tokio::time::timeout(limit, replay(&daemon.rest, &files)).await;
    if replayed.is_err() {
        // A writer that opens and closes the FIFO ends the wait.
        drop(fs::OpenOptions::new().write(true).open(&fifo));
    }
    let expected = Replayed {
        released: 1,
        kept: 0,
        damaged: 1,
    };
    assert_eq!(replayed.unwrap().unwrap(), expected);
    assert!(
        files
            .join("00000000000000000001-00000000000000aa.json.unreadable")
            .exists()
    );
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_another_process_has_locked_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (world, queue) = away(directory.path()).await;
    let daemon = world.start("n1", &directory.path().join("state")).await;
    let guard = queue.lock().unwrap().unwrap();
    let files = directory.path().join("queue");
    let refused = replay(&daemon.rest, &files).await;
    assert!(matches!(refused, Err(ReplayError::Busy)), "{refused:?}");
    drop(guard);
    assert_eq!(replay(&daemon.rest, &files).await.unwrap().released, 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_stays_queued_until_it_is_durable() {
    let directory = tempfile::tempdir().unwrap();
    let (world, queue) = away(directory.path()).await;
    let state = directory.path().join("state");
    let aside = directory.path().join("aside");
    fs::rename(&state, &aside).unwrap();
    fs::write(&state, "no directory").unwrap();
    let daemon = world.start("n1", &state).await;
    let files = directory.path().join("queue");
    assert_eq!(replay(&daemon.rest, &files).await.unwrap().kept, 1);
    assert!(!is_empty(&queue));
    fs::remove_file(&state).unwrap();
    fs::rename(&aside, &state).unwrap();
    let open = |status: &StatusResponse| status.serving == Serving::Ready;
    daemon.becomes("open", open).await;
    assert_eq!(replay(&daemon.rest, &files).await.unwrap().released, 1);
    assert!(is_empty(&queue));
    assert_eq!(delete(&daemon.router, "kept").await, ReturnCode::SUCCESS);
}
