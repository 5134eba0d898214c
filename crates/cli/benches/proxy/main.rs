//! Cost of a change of a Service, compared with the bare program that writes it.
//!
//! Everything happens in a network namespace of its own. The parts for iptables-nft need root: in
//! a user namespace its socket buffer is too small for large inputs.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot go on should panic"
)]

use std::{env, process::Command};

use weft_testkit::bench::{Report, is_quick};

mod backend;
mod objects;
mod process;

const INSIDE: &str = "WEFT_BENCH_INSIDE";

fn main() {
    if env::var_os(INSIDE).is_none() {
        let script = "mount -t tmpfs tmpfs /run && ip link set lo up && exec \"$0\"";
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        let status = command
            .args(["--net", "--mount", "sh", "-c", script])
            .arg(env::current_exe().unwrap())
            .env(INSIDE, "1")
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
        return;
    }
    let mut report = Report::new();
    let sizes: &[usize] = if is_quick() {
        &[20]
    } else {
        &[1_000, 5_000, 10_000]
    };
    for variant in ["legacy", "nft"] {
        backend::measure(variant, sizes, &mut report);
    }
    backend::measure_chain_order(&mut report);
    process::measure(&mut report);
    report.finish().unwrap();
}
