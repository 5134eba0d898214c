//! A daemon that comes back to ten thousand assignments.

use std::{net::IpAddr, time::Instant};

use weft_ipam::pool::{Attachment, Identity, Key, Lease, PodIdentity, Record};
use weft_ipam_daemon::store::Store;
use weft_model::{Moment, SharedStr};
use weft_testkit::bench::{Report, Target, median};

use crate::{
    daemon::{Daemon, add, container, state, until},
    judge::{full_or_quick, unless_quick},
    stage::{BOOT, MACHINE, NODE, Stage, address},
};

/// The end of a daemon's run: stopped or killed.
type End = fn(Daemon);

pub(crate) fn measure(report: &mut Report) {
    let (count, rounds) = full_or_quick((10_000, 9), (100, 1));
    let stage = Stage::new(u32::div_ceil(count, 16));
    remember(&stage, count);
    let ends: [(&str, End); 2] = [
        ("kill -9", |daemon| daemon.process.kill()),
        ("SIGTERM", |daemon| daemon.process.terminate()),
    ];
    let daemon = stage.start();
    daemon.until_ready();
    let mut last = Some(daemon);
    for (end, stop) in ends {
        let (mut known, mut ready) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            last.take().into_iter().for_each(stop);
            let begun = Instant::now();
            let daemon = stage.start();
            until("the daemon answers", || remembers(&daemon, count / 2));
            known.push(begun.elapsed().as_secs_f64() * 1e3);
            daemon.until_ready();
            ready.push(begun.elapsed().as_secs_f64() * 1e3);
            last = Some(daemon);
        }
        let name = format!("restart after {end} with {count} assignments");
        let target = unless_quick(Target::AtMost(200.0));
        report.figure(
            &format!("{name}: until it answers"),
            "ms",
            median(known),
            target,
        );
        report.figure(
            &format!("{name}: until it serves new pods"),
            "ms",
            median(ready),
            Target::None,
        );
    }
}

/// True if a pod from before the restart gets its own address again.
fn remembers(daemon: &Daemon, number: u32) -> bool {
    let answer = add(&daemon.socket, &pod(number));
    if let Some(given) = answer {
        assert_eq!(given, IpAddr::from(address(number)));
    }
    answer.is_some()
}

fn pod(number: u32) -> String {
    format!("pod-{number}")
}

/// Puts so many assignments into the store that the daemon will open.
fn remember(stage: &Stage, count: u32) {
    let path =
        format!("/apis/ipam.weft.dev/v1alpha1/namespaces/kube-system/nodenetworkconfigs/{NODE}");
    let config = stage.call(http::Method::GET, &path, &serde_json::Value::Null);
    let epoch = config["metadata"]["uid"].as_str().unwrap();
    let identity = Identity {
        machine: SharedStr::new(MACHINE),
        boot: SharedStr::new(BOOT),
    };
    let mut records = vec![Record::Identity(identity)];
    records.extend((0..count).map(|number| {
        let attachment = Attachment {
            pod: PodIdentity {
                namespace: SharedStr::new("default"),
                name: SharedStr::new(&pod(number)),
                uid: Some(
                    format!("00000000-0000-4000-8000-{number:012}")
                        .as_str()
                        .into(),
                ),
            },
            leases: vec![Lease {
                address: address(number).into(),
                prefix: 16,
                gateway: None,
                container: "nc".into(),
            }],
            epoch: epoch.into(),
            at: Moment::START,
        };
        let key = Key::new("podnet", &container(&pod(number)), "eth0");
        Record::Attachment(key, Some(attachment))
    }));
    let opened = Store::open(&state(stage.directory.path()), BOOT).unwrap();
    opened.store.replace(&records).unwrap();
}
