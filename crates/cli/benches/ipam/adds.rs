//! Fifty ADDs at once, beside what the disk alone takes.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::Path,
    time::Instant,
};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    task::JoinSet,
};
use weft_testkit::bench::{Report, Target};

use crate::{
    daemon::{add_request, request},
    judge::{full_or_quick, number, p99, unless_quick},
    stage::Stage,
};

const AT_ONCE: usize = 50;

pub(crate) fn measure(report: &mut Report) {
    let (rounds, each, syncs) = full_or_quick((10, 8, 200), (1, 1, 5));
    // A node's 4,096 addresses are enough for all rounds.
    let stage = Stage::new(256);
    let daemon = stage.start();
    daemon.until_ready();
    let file = bare_file(stage.directory.path());
    let (mut bare, mut asked, mut nothing) = (Vec::new(), Vec::new(), Vec::new());
    let before = daemon.count(SYNCS);
    for round in 0..rounds {
        bare.extend((0..syncs).map(|number| bare_sync(&file, number)));
        asked.extend(storm(&daemon.socket, each, |number| {
            let pod = format!("r{round}-{number}");
            let body = add_request(&pod).to_string();
            request("POST", "/network/requestipconfigs", &body)
        }));
        nothing.extend(storm(&daemon.socket, each, |_| request("GET", "/", "")));
    }
    let synced = daemon.count(SYNCS) - before;
    let adds = number(asked.len());
    let (disk, ours) = (p99(&mut bare), p99(&mut asked));
    // More digits of the disk's figure than anybody wants to read.
    let limit = ((2.0 * disk + 3.0) * 10.0).round() / 10.0;
    // Two processors and a quick disk: then fifty requests that do nothing take longer than that, and
    // no ADD can be expected to take less.
    let empty = p99(&mut nothing);
    let target = if empty < limit {
        unless_quick(Target::AtMost(limit))
    } else {
        Target::None
    };
    report.comparison(
        &format!("ADD over REST, {AT_ONCE} at once, p99, compared with a bare fdatasync"),
        "ms",
        ours,
        disk,
        target,
    );
    report.comparison(
        &format!("ADD over REST, {AT_ONCE} at once, p50, compared with a bare fdatasync"),
        "ms",
        asked[asked.len() / 2],
        bare[bare.len() / 2],
        Target::None,
    );
    report.comparison(
        &format!(
            "ADD over REST, {AT_ONCE} at once, p99, compared with requests that are answered at once"
        ),
        "ms",
        ours,
        empty,
        Target::None,
    );
    report.figure(
        &format!("syncs of the disk for an ADD, {AT_ONCE} at once"),
        "",
        synced / adds,
        unless_quick(Target::AtMost(0.1)),
    );
}

const SYNCS: &str = "weft_ipam_store_syncs_total";
const PAGE: [u8; 4096] = [0x5a; 4096];
/// Pages of the file, all of them written before.
const PAGES: u64 = 256;

fn bare_file(directory: &Path) -> File {
    let path = directory.join("bare");
    fs::write(&path, PAGE.repeat(usize::try_from(PAGES).unwrap())).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    file.sync_all().unwrap();
    file
}

/// One page and its way to the disk, in milliseconds.
fn bare_sync(file: &File, number: u64) -> f64 {
    let begun = Instant::now();
    file.write_all_at(&PAGE, number % PAGES * 4096).unwrap();
    file.sync_data().unwrap();
    begun.elapsed().as_secs_f64() * 1e3
}

/// Time of each request in milliseconds, with fifty always under way, each on a connection of
/// its own. One thread asks: as many as there are requests would take the processors from the daemon.
fn storm(socket: &Path, each: usize, request: impl Fn(usize) -> String) -> Vec<f64> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut workers = JoinSet::new();
        for worker in 0..AT_ONCE {
            let numbers = worker * each..(worker + 1) * each;
            let requests: Vec<String> = numbers.map(&request).collect();
            let socket = socket.to_owned();
            workers.spawn(async move {
                let mut times = Vec::new();
                for request in requests {
                    let begun = Instant::now();
                    let answer = exchange(&socket, &request).await;
                    times.push(begun.elapsed().as_secs_f64() * 1e3);
                    check(&answer);
                }
                times
            });
        }
        workers.join_all().await.concat()
    })
}

async fn exchange(socket: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// An ADD that failed quickly is no ADD.
fn check(answer: &str) {
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    if let Ok(body) = serde_json::from_str::<Value>(body) {
        assert_eq!(body["response"]["ReturnCode"], 0, "{body}");
    }
}
