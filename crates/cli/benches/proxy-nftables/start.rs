//! Start with an empty kernel, and start over what an earlier process wrote.

use weft_testkit::bench::{Report, Target};

use crate::{
    objects::{DNS, KUBERNETES},
    ping::Ping,
    process::{Proxy, unix},
    statistics::milliseconds,
    testbed::Testbed,
    trial::{Judge, judged},
};

/// The longest gaps of a probe, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gap(pub(crate) f64);

/// The first start.
pub(crate) fn first<'a>(
    testbed: &'a Testbed,
    judge: Judge,
    report: &mut Report,
) -> (Proxy<'a>, Gap) {
    for front in [DNS, KUBERNETES] {
        testbed.reports.look_for(front);
    }
    let ping = Ping::start(&testbed.namespace, DNS.into());
    let mut proxy = Proxy::weft(testbed);
    let sync = proxy.first_sync();
    let gaps = ping.finish();
    let limits = judge.at([(10_000, 300.0), (50_000, 800.0)]);
    let took = (sync.done - sync.queued) * 1e3;
    let words = judge.title("caches synced to first sync done");
    report.figure(&words, "ms", took, limits);
    let urgent = unix(testbed.reports.all_seen());
    let words = judge.title("caches synced to DNS and kubernetes in the kernel");
    let took = (urgent - sync.queued) * 1e3;
    report.figure(&words, "ms", took, judged(Target::AtMost(50.0)));
    let limits = judge.at([(10_000, 1.0), (50_000, 4.0)]);
    let words = judge.title("start to first sync done, API list included");
    report.figure(&words, "s", sync.done - proxy.started(), limits);
    (proxy, Gap(milliseconds(gaps.longest)))
}

/// A start over what the last process wrote.
pub(crate) fn again<'a>(
    testbed: &'a Testbed,
    judge: Judge,
    report: &mut Report,
) -> (Proxy<'a>, Gap) {
    let before = testbed.reports.messages();
    let ping = Ping::start(&testbed.namespace, DNS.into());
    let mut proxy = Proxy::weft(testbed);
    let sync = proxy.first_sync();
    let gaps = ping.finish();
    let limits = judge.at([(50_000, 1.2), (50_000, 1.2)]);
    let words = judge.title("restart over the same, caches synced to sync done");
    report.figure(&words, "s", sync.done - sync.queued, limits);
    let bytes = proxy.metric("weft_proxy_restore_bytes_total", "IPv4");
    let words = judge.title("restart over the same, bytes written");
    report.figure(&words, "B", bytes, judged(Target::AtMost(0.0)));
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
    let changed = (testbed.reports.messages() - before) as f64;
    let words = judge.title("restart over the same, objects that the kernel reports as changed");
    report.figure(&words, "", changed, judged(Target::AtMost(0.0)));
    (proxy, Gap(milliseconds(gaps.longest)))
}
