//! Programs that fail, hang or are killed: the next sync always ends in the right state.

use std::{
    env,
    fs::{self, File},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use rustix::process::WaitOptions;
use weft_host::iptables::{Limits, SearchPath, Variant};
use weft_iptables::{HostKernel, OwnWrites};
use weft_model::{IpFamily, error_text};
use weft_proxy::{AuditReport, Backend as _, ReadBudget};
use weft_testkit::{cluster::RandomCluster, lab};

use crate::{
    host::{PROGRAMS, kernel, programs, programs_in, world},
    world::{OPTIONS, World},
};

fn edit(world: &mut World<HostKernel>, cluster: &mut RandomCluster) {
    for edit in cluster.edit() {
        world.edit(&edit);
    }
}

#[test]
fn a_busy_lock_is_named_and_waited_out() {
    lab::with_programs(&PROGRAMS, |_| {
        let limits = Limits {
            // The programs wait for whole seconds.
            lock: Duration::from_secs(1),
            ..Limits::default()
        };
        let impatient = programs(IpFamily::V4, Variant::Legacy).with_limits(limits);
        let mut world = world(IpFamily::V4, Variant::Legacy, OPTIONS);
        let mut cluster = RandomCluster::new(40);
        world.restart(HostKernel::new(impatient, OwnWrites::default()), OPTIONS);
        world.sync();
        for edit in cluster.add_service() {
            world.edit(&edit);
        }

        let lock = File::create("/run/xtables.lock").unwrap();
        lock.lock().unwrap();
        let failure = world.try_sync().unwrap_err();
        let message = error_text(&failure);
        assert!(
            message.contains("did not get the xtables lock"),
            "{message}"
        );
        assert!(
            failure.input().is_some(),
            "what could not be written is kept"
        );
        // The state is unknown after the failure, so the audit is postponed.
        assert_eq!(
            world.backend.audit(ReadBudget::Available).unwrap(),
            AuditReport::Postponed
        );

        lock.unlock().unwrap();
        assert!(world.sync().full);
        world.assert_as_fresh("after the lock was free again");
    });
}

/// Behaviours of the unreliable restore program besides the right one.
const BEHAVIOURS: [&str; 5] = [
    "works",
    "works",
    "refuses",
    "writes-and-fails",
    "writes-one-table",
];

/// A program in front of the real one that takes its behaviour from a list, one line at each call.
fn unreliable(directory: &Path, program: &Path) {
    let name = program.file_name().unwrap();
    let (real, behaviours) = (program.display(), directory.join("behaviours"));
    let behaviours = behaviours.display();
    let script = format!(
        "#!/bin/sh\n\
         behaviour=$(head -n 1 {behaviours}); sed -i 1d {behaviours}\n\
         case \"$behaviour\" in\n\
         refuses) cat >/dev/null; echo 'out of sorts' >&2; exit 1;;\n\
         writes-and-fails) {real} \"$@\"; echo 'lost my voice' >&2; exit 1;;\n\
         writes-one-table) sed /COMMIT/q | {real} \"$@\"; echo 'lost my pen' >&2; exit 1;;\n\
         *) exec {real} \"$@\";;\n\
         esac\n"
    );
    let path = directory.join(name);
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_restore_program_that_fails_at_random_loses_nothing_in_the_end() {
    lab::with_programs(&PROGRAMS, |_| {
        for (variant, seed) in Variant::ALL.into_iter().zip([41, 42]) {
            let family = IpFamily::V4;
            let directory = tempfile::tempdir().unwrap();
            unreliable(
                directory.path(),
                &programs(family, variant).programs().restore,
            );
            let mut random = fastrand::Rng::with_seed(seed);
            let behaviours: Vec<&str> = (0..200).map(|_| BEHAVIOURS[random.usize(..5)]).collect();
            fs::write(directory.path().join("behaviours"), behaviours.join("\n")).unwrap();

            let search = SearchPath::from_environment().with_first(directory.path());
            let unreliable = programs_in(&search, family, variant);
            let mut world = world(family, variant, OPTIONS);
            world.restart(HostKernel::new(unreliable, OwnWrites::default()), OPTIONS);
            let mut cluster = RandomCluster::new(seed);
            let (mut failures, mut partial_failures) = (0, 0);
            for round in 0..40 {
                edit(&mut world, &mut cluster);
                match world.try_sync() {
                    Ok(report) => {
                        partial_failures += usize::from(report.partial_failure.is_some());
                        world.assert_as_fresh(&format!("{variant} round {round}: {report:?}"));
                    }
                    Err(_) => failures += 1,
                }
            }
            assert!(
                failures > 0 && partial_failures > 0,
                "{failures} {partial_failures}"
            );
            fs::write(directory.path().join("behaviours"), "").unwrap();
            world.sync();
            world.assert_as_fresh(&format!("{variant}: in the end"));
        }
    });
}

#[test]
fn a_restore_program_killed_at_any_moment_leaves_a_state_to_go_on_from() {
    lab::with_programs(&PROGRAMS, |_| {
        for (variant, seed) in Variant::ALL.into_iter().zip([43, 44]) {
            let family = IpFamily::V4;
            let mut moments = fastrand::Rng::with_seed(seed);
            let mut cluster = RandomCluster::new(seed);
            let mut world = world(family, variant, OPTIONS);
            let mut killed = 0;
            // A machine on which the programs end sooner kills them sooner.
            let mut longest = 15_000;
            for round in 0..25 {
                edit(&mut world, &mut cluster);
                edit(&mut world, &mut cluster);
                let limits = Limits {
                    program: Duration::from_micros(moments.u64(1..longest)),
                    ..Limits::default()
                };
                let hurried = programs(family, variant).with_limits(limits);
                let hurried = HostKernel::new(hurried, OwnWrites::default());
                world.restart(hurried, OPTIONS);
                // A killed program is an error with which the process could go on; here it ends.
                match world.try_sync() {
                    Ok(_) => longest = (longest * 4 / 5).max(500),
                    Err(_) => killed += 1,
                }
                world.restart(kernel(family, variant), OPTIONS);
                world.full_sync();
                world.assert_as_fresh(&format!("{variant} round {round}"));
            }
            assert!(killed > 2, "{variant}: {killed}");
        }
    });
}

/// Environment variable with the iptables variant; makes the child below run.
const CHILD: &str = "WEFT_SYNCS_UNTIL_KILLED";

/// Not a test by itself: the process that the next one kills.
#[test]
#[ignore = "runs forever, as a child of the test below"]
fn syncs_until_it_is_killed() {
    let Ok(variant) = env::var(CHILD) else {
        return;
    };
    let variant = Variant::ALL
        .into_iter()
        .find(|known| known.to_string() == variant);
    let mut world = world(IpFamily::V4, variant.unwrap(), OPTIONS);
    let mut cluster = RandomCluster::new(u64::from(std::process::id()));
    loop {
        for _ in 0..5 {
            edit(&mut world, &mut cluster);
        }
        // Its parent may have killed a program of it first.
        let _ = world.try_sync();
    }
}

#[test]
fn a_proxy_killed_in_mid_sync_is_followed_by_one_that_converges() {
    lab::with_programs(&PROGRAMS, |_| {
        for variant in Variant::ALL {
            let mut moments = fastrand::Rng::with_seed(45);
            let mut world = world(IpFamily::V4, variant, OPTIONS);
            let mut cluster = RandomCluster::new(45);
            for round in 0..10 {
                let mut child = Command::new(env::current_exe().unwrap())
                    .args([
                        "--exact",
                        "failing_programs::syncs_until_it_is_killed",
                        "--ignored",
                    ])
                    .env(CHILD, variant.to_string())
                    .stdout(Stdio::null())
                    .spawn()
                    .unwrap();
                // Any moment will do: that is the point.
                thread::sleep(Duration::from_millis(moments.u64(20..150)));
                child.kill().unwrap();
                child.wait().unwrap();
                wait_for_orphans();
                edit(&mut world, &mut cluster);
                world.restart(kernel(IpFamily::V4, variant), OPTIONS);
                world.full_sync();
                world.assert_as_fresh(&format!("{variant} round {round}"));
            }
        }
    });
}

/// Waits for processes that a killed process had started. They are children of this process now,
/// which is the first one of the lab's process namespace.
fn wait_for_orphans() {
    assert_eq!(std::process::id(), 1);
    while rustix::process::wait(WaitOptions::empty()).is_ok() {}
}
