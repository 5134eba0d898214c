//! Fifty ADDs at once, beside what the disk alone takes.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::Path,
    sync::Barrier,
    thread,
    time::Instant,
};

use weft_testkit::bench::{Report, Target};

use crate::{
    daemon::{Daemon, add},
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
    let (mut bare, mut asked) = (Vec::new(), Vec::new());
    let before = daemon.count(SYNCS);
    for round in 0..rounds {
        bare.extend((0..syncs).map(|number| bare_sync(&file, number)));
        asked.extend(storm(&daemon, round, each));
    }
    let synced = daemon.count(SYNCS) - before;
    let adds = number(asked.len());
    let (disk, ours) = (p99(&mut bare), p99(&mut asked));
    // More digits of the disk's figure than anybody wants to read.
    let limit = ((2.0 * disk + 3.0) * 10.0).round() / 10.0;
    report.comparison(
        &format!("ADD over REST, {AT_ONCE} at once, p99, beside a bare fdatasync"),
        "ms",
        ours,
        disk,
        unless_quick(Target::AtMost(limit)),
    );
    report.comparison(
        &format!("ADD over REST, {AT_ONCE} at once, p50, beside a bare fdatasync"),
        "ms",
        asked[asked.len() / 2],
        bare[bare.len() / 2],
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

/// How long each ADD took, in milliseconds, with fifty always under way.
fn storm(daemon: &Daemon, round: usize, each: usize) -> Vec<f64> {
    let start = Barrier::new(AT_ONCE);
    let worker = &|worker: usize| {
        start.wait();
        let times = (0..each).map(|number| {
            let pod = format!("r{round}-w{worker}-{number}");
            let begun = Instant::now();
            add(&daemon.socket, &pod).unwrap();
            begun.elapsed().as_secs_f64() * 1e3
        });
        times.collect::<Vec<f64>>()
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE)
            .map(|number| scope.spawn(move || worker(number)))
            .collect();
        let times = workers.into_iter().map(|worker| worker.join().unwrap());
        times.flatten().collect()
    })
}
