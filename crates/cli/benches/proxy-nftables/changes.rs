//! Changed slices: one at a time, and a thousand each second.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use weft_host::nftables::{
    Batch, Change, Element, Nftables as Connection, TableChange, Value as Key,
};
use weft_model::IpFamily;
use weft_testkit::bench::median;

use crate::{
    Effort,
    cluster::Cluster,
    objects::{self, Mark},
    process::Proxy,
    statistics::milliseconds,
    testbed::Testbed,
};

const PATIENCE: Duration = Duration::from_secs(120);
const FAMILY: IpFamily = IpFamily::V4;
const TABLE: &str = "weft";
/// Number of the first endpoint of a front.
const FIRST_NUMBER: u32 = 0x1000_0001;

/// Latencies in milliseconds, and the mean processor time of a change.
#[derive(Clone, Debug)]
pub(crate) struct Changes {
    pub(crate) latencies: Vec<f64>,
    pub(crate) processor_time: f64,
}

impl Changes {
    pub(crate) fn median(&self) -> f64 {
        median(self.latencies.clone())
    }
}

/// A change of one slice after the other. `slice` makes that of a round.
pub(crate) fn one_by_one(
    count: usize,
    effort: Effort,
    slice: impl Fn(usize, Mark) -> Value,
    cluster: &Cluster,
    testbed: &Testbed,
    proxy: &Proxy<'_>,
) -> Changes {
    let before = proxy.processor_time();
    let latencies: Vec<f64> = (0..count)
        .map(|round| {
            let mark = cluster.mark();
            testbed.timeline.expect(mark);
            let slice = slice(round, mark);
            cluster.runtime.block_on(cluster.replace(slice));
            let took = testbed.timeline.wait(mark, PATIENCE);
            thread::sleep(effort.pause);
            milliseconds(took)
        })
        .collect();
    proxy.wait_until_quiet();
    let used = proxy.processor_time().saturating_sub(before);
    let count = u32::try_from(count).unwrap();
    Changes {
        latencies,
        processor_time: milliseconds(used / count),
    }
}

/// Slices of which each is of another Service than the one before.
pub(crate) fn of_other_services(size: usize) -> impl Fn(usize, Mark) -> Value {
    move |round, mark| objects::slice(round * 37 % size, Some(mark))
}

/// Changes at a steady rate, whether followed or not. Returns latencies in milliseconds.
pub(crate) fn storm(effort: Effort, size: usize, cluster: &Cluster, testbed: &Testbed) -> Vec<f64> {
    let interval = Duration::from_secs(1) / effort.rate;
    let mut marks: Vec<Mark> = Vec::new();
    cluster.runtime.block_on(async {
        let began = Instant::now();
        while began.elapsed() < effort.storm {
            let due = began + interval * u32::try_from(marks.len()).unwrap();
            tokio::time::sleep_until(due.into()).await;
            let mark = cluster.mark();
            testbed.timeline.expect(mark);
            let slice = objects::slice(marks.len() * 37 % size, Some(mark));
            tokio::spawn(cluster.replace(slice));
            marks.push(mark);
        }
    });
    let latencies = marks.into_iter().map(|mark| {
        let took = testbed.timeline.wait(mark, PATIENCE);
        milliseconds(took)
    });
    latencies.collect()
}

/// The netlink write of one replaced endpoint, seen by the same listener, while no proxy runs.
pub(crate) fn bare(count: usize, size: usize, cluster: &Cluster, testbed: &Testbed) -> Vec<f64> {
    testbed.namespace.run(|| {
        let mut connection = Connection::open().unwrap();
        (0..count)
            .map(|round| {
                let former = first_endpoint(&mut connection, round * 37 % size);
                let mark = cluster.mark();
                let data = Key::EMPTY
                    .with(&mark.0)
                    .with(&objects::TARGET.to_be_bytes());
                let mut element = former.clone();
                element.datum = Some(weft_host::nftables::Datum::Value(data));
                let batch = replacement(&former, &element);
                testbed.timeline.expect(mark);
                testbed.timeline.sent(&[mark], Instant::now());
                connection.commit(&batch).unwrap();
                milliseconds(testbed.timeline.wait(mark, PATIENCE))
            })
            .collect()
    })
}

/// The first endpoint of a Service in the kernel.
fn first_endpoint(connection: &mut Connection, index: usize) -> Element {
    const TCP: u8 = 6;
    let front = objects::front(index);
    let std::net::IpAddr::V4(address) = front.ip() else {
        panic!("{front} is not an IPv4 address");
    };
    let key = Key::EMPTY
        .with(&address.octets())
        .with(&[TCP])
        .with(&front.port().to_be_bytes())
        .with_number(FIRST_NUMBER);
    let found = connection.get_elements(FAMILY, TABLE, "endpoints", &[key]);
    found.unwrap().pop().unwrap()
}

fn replacement(former: &Element, element: &Element) -> Batch {
    let set = || "endpoints".to_owned();
    let changes = [
        TableChange::DeleteElements {
            set: set(),
            is_concatenation: true,
            elements: vec![Element::of_key(former.key)],
        },
        TableChange::AddElements {
            set: set(),
            is_concatenation: true,
            elements: vec![element.clone()],
        },
    ];
    let mut batch = Batch::new();
    for change in changes {
        batch.push(&Change::Within {
            family: FAMILY,
            table: TABLE.to_owned(),
            change,
        });
    }
    batch
}
