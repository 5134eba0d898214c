//! Restore, save and their failures, with the real programs of both variants.

use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, Instant},
};

use weft_host::{
    command::CommandError,
    iptables::{
        Absence, Iptables, Limits, RestoreError, SearchPath, Variant, VariantChoice, Version,
    },
};
use weft_model::{IpFamily, error_text};
use weft_testkit::lab;

use crate::support::{IPTABLES, all, open, saved};

const INPUT: &str = "*filter\n:WEFT-A - [0:0]\n-A WEFT-A -j RETURN\nCOMMIT\n\
                     *nat\n:WEFT-B - [0:0]\n:WEFT-C - [0:0]\n\
                     -A WEFT-B -p udp -m udp --dport 53 -j WEFT-C\nCOMMIT\n";

#[test]
fn what_is_restored_is_saved_again() {
    lab::with_programs(&IPTABLES, |_| {
        for tables in all() {
            let spent = tables.restore(INPUT.as_bytes()).unwrap();
            assert!(!spent.wall.is_zero() && !spent.cpu.is_zero(), "{spent:?}");
            let (nat, spent) = saved(&tables, Some("nat"));
            assert!(!spent.wall.is_zero() && !spent.cpu.is_zero(), "{spent:?}");
            assert!(nat.contains("\n:WEFT-C - [0:0]\n"), "{nat}");
            assert!(
                nat.contains("\n-A WEFT-B -p udp -m udp --dport 53 -j WEFT-C\n"),
                "{nat}"
            );
            assert!(!nat.contains("WEFT-A"), "one table was asked for: {nat}");
            let (everything, _) = saved(&tables, None);
            for line in INPUT.lines().filter(|line| line.starts_with("-A")) {
                assert!(everything.contains(line), "no {line} in {everything}");
            }
        }
    });
}

#[test]
fn chains_that_the_input_does_not_name_stay() {
    lab::with_programs(&IPTABLES, |_| {
        for tables in all() {
            tables.restore(INPUT.as_bytes()).unwrap();
            tables
                .restore(b"*nat\n:WEFT-D - [0:0]\n-F WEFT-B\n-X WEFT-C\nCOMMIT\n")
                .unwrap();
            let exists = |chain| tables.has_chain("nat", chain).unwrap();
            assert_eq!(
                ["WEFT-B", "WEFT-C", "WEFT-D"].map(exists),
                [true, false, true],
                "{tables:?}"
            );
        }
    });
}

#[test]
fn the_rules_of_one_chain_are_those_that_save_prints() {
    lab::with_programs(&IPTABLES, |_| {
        for tables in all() {
            let input = "*nat\n:WEFT-A - [0:0]\n:WEFT-AB - [0:0]\n:WEFT-C - [0:0]\n\
                         -A WEFT-A -p udp -m comment --comment \"-A WEFT-A x\" -m udp --dport 53 -j WEFT-AB\n\
                         -A WEFT-A\n-A WEFT-AB -j RETURN\n-A OUTPUT -j WEFT-A\nCOMMIT\n";
            tables.restore(input.as_bytes()).unwrap();
            let (saved, _) = saved(&tables, Some("nat"));
            for chain in ["WEFT-A", "WEFT-AB", "WEFT-C", "OUTPUT"] {
                let (rules, spent) = tables.chain_rules("nat", chain).unwrap();
                assert!(!spent.wall.is_zero());
                let lines = rules.iter().map(|rule| format!("-A {chain} {rule}"));
                let lines: Vec<String> = lines.map(|line| line.trim_end().to_owned()).collect();
                let of_chain = |line: &&str| line.split(' ').take(2).eq(["-A", chain]);
                let expected: Vec<&str> = saved.lines().filter(of_chain).collect();
                assert_eq!(lines, expected, "{tables:?}");
            }
            assert!(tables.chain_rules("nat", "WEFT-NONE").is_err());
        }
    });
}

#[test]
fn a_table_that_is_not_one_is_an_error_and_not_a_missing_chain() {
    lab::with_programs(&IPTABLES, |_| {
        for tables in all() {
            let error = tables.has_chain("loom", "WEFT-A").unwrap_err();
            assert!(error.to_string().contains("-S WEFT-A -t loom"), "{error}");
        }
    });
}

#[test]
fn a_refused_input_names_its_line_and_changes_nothing() {
    lab::with_programs(&IPTABLES, |_| {
        for tables in all() {
            let input =
                b"*nat\n:WEFT-A - [0:0]\n-A WEFT-A -j RETURN\n-A WEFT-A -m no-such\nCOMMIT\n";
            let error = tables.restore(input).unwrap_err();
            assert_eq!(error.lines(), [4], "{}", error_text(&error));
            assert!(!error.is_lock_busy());
            let text = error_text(&error);
            assert!(text.contains("restore -w 5 --noflush"), "{text}");
            assert!(text.contains("no-such"), "{text}");
            assert!(!tables.has_chain("nat", "WEFT-A").unwrap());
        }
    });
}

#[test]
fn a_chain_in_use_is_refused_by_line_and_is_not_a_busy_lock() {
    lab::with_programs(&IPTABLES, |_| {
        for tables in all() {
            let error = tables
                .restore(b"*nat\n:A - [0:0]\n:B - [0:0]\n-A A -j B\n-X B\nCOMMIT\n")
                .unwrap_err();
            // iptables-nft ends with status 4 here, as for a lock.
            assert!(!error.is_lock_busy(), "{}", error_text(&error));
            assert_eq!(error.lines(), [5], "{}", error_text(&error));
        }
    });
}

#[test]
fn a_held_lock_differs_from_other_failures() {
    lab::with_programs(&IPTABLES, |_| {
        let limits = Limits {
            // Rounded up to one second, the programs' resolution.
            lock: Duration::from_millis(10),
            ..Limits::default()
        };
        let legacy = open(IpFamily::V4, Variant::Legacy).with_limits(limits);
        let lock = File::create("/run/xtables.lock").unwrap();
        lock.lock().unwrap();

        let error = legacy.restore(INPUT.as_bytes()).unwrap_err();
        assert!(error.is_lock_busy(), "{}", error_text(&error));
        assert!(matches!(
            error,
            RestoreError::Command(CommandError::LockBusy { .. })
        ));
        let error = legacy.has_chain("nat", "WEFT-A").unwrap_err();
        assert!(error.is_lock_busy(), "{error}");
        // Neither reading nor the other variant takes it.
        saved(&legacy, Some("nat"));
        let nft = open(IpFamily::V4, Variant::Nft).with_limits(limits);
        nft.restore(INPUT.as_bytes()).unwrap();

        lock.unlock().unwrap();
        legacy.restore(INPUT.as_bytes()).unwrap();
    });
}

#[test]
fn input_and_output_of_some_megabytes_do_not_wait_for_each_other() {
    lab::with_programs(&IPTABLES, |_| {
        // iptables-nft would do as well, but not without root: its socket buffer is too small.
        let tables = open(IpFamily::V4, Variant::Legacy);
        let rule = |number: u32| {
            let [_, _, high, low] = number.to_be_bytes();
            format!("-A WEFT -d 10.0.{high}.{low}/32 -p tcp -m tcp --dport 80 -j RETURN\n")
        };
        let wanted: String = (0..20_000).map(rule).collect();
        let input = format!("*nat\n:WEFT - [0:0]\n{wanted}COMMIT\n");
        assert!(input.len() > 1 << 20);
        tables.restore(input.as_bytes()).unwrap();
        let (text, spent) = saved(&tables, Some("nat"));
        assert!(text.contains(&wanted), "{} bytes came back", text.len());
        assert!(spent.cpu > Duration::from_millis(1), "{spent:?}");
    });
}

#[test]
fn both_families_are_present_until_ipv6_is_switched_off() {
    lab::with_programs(&IPTABLES, |_| {
        for tables in all() {
            tables.presence().unwrap();
        }
        fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
        for tables in all() {
            let expected = tables.family() == IpFamily::V4;
            assert_eq!(tables.is_present(), expected, "{tables:?}");
        }
        let absence = open(IpFamily::V6, Variant::Nft).presence().unwrap_err();
        assert!(matches!(absence, Absence::Ipv6Disabled), "{absence}");
    });
}

#[test]
fn a_program_put_in_front_replaces_one_of_them() {
    lab::with_programs(&IPTABLES, |_| {
        let directory = tempfile::tempdir().unwrap();
        script(
            &directory.path().join("iptables-nft-restore"),
            "cat >/dev/null; echo 'iptables-nft-restore: line 3 failed' >&2; exit 1",
        );
        let tables = in_front(directory.path());
        let error = tables.restore(INPUT.as_bytes()).unwrap_err();
        assert_eq!(error.lines(), [3]);
        let text = error_text(&error);
        assert!(text.contains(directory.path().to_str().unwrap()), "{text}");
        // The other programs are still the real ones.
        assert!(!tables.has_chain("nat", "WEFT-B").unwrap());
    });
}

#[test]
fn a_restore_that_hangs_is_killed_after_its_time() {
    lab::with_programs(&IPTABLES, |_| {
        let directory = tempfile::tempdir().unwrap();
        script(
            &directory.path().join("iptables-nft-restore"),
            "exec sleep 600",
        );
        let tables = in_front(directory.path()).with_limits(Limits {
            program: Duration::from_millis(100),
            ..Limits::default()
        });
        let started = Instant::now();
        let error = tables.restore(INPUT.as_bytes()).unwrap_err();
        assert!(matches!(
            error,
            RestoreError::Command(CommandError::TimeLimit { .. })
        ));
        assert!(started.elapsed() < Duration::from_secs(60));
    });
}

#[test]
fn a_save_that_fails_or_hangs_is_an_error_as_any_other() {
    lab::with_programs(&IPTABLES, |_| {
        let directory = tempfile::tempdir().unwrap();
        let save = directory.path().join("iptables-nft-save");
        script(&save, "echo '*nat'; echo 'no more' >&2; exit 1");
        let tables = in_front(directory.path());
        let mut lines = 0;
        let error = tables.save_lines(None, &mut |_| lines += 1).unwrap_err();
        assert_eq!((lines, error.message()), (1, Some("no more")), "{error}");

        script(&save, "echo '*nat'; exec sleep 600");
        let tables = tables.with_limits(Limits {
            // Enough for a shell to reach its first line on a busy machine.
            program: Duration::from_secs(2),
            ..Limits::default()
        });
        let error = tables.save_lines(None, &mut |_| lines += 1).unwrap_err();
        assert!(matches!(error, CommandError::TimeLimit { .. }), "{error}");
        assert_eq!(lines, 2);
    });
}

#[test]
fn a_version_of_this_decade_knows_random_fully() {
    lab::with_programs(&IPTABLES, |_| {
        for tables in all() {
            assert!(tables.version() > Version::new(1, 6, 2), "{tables:?}");
            assert!(tables.supports_random_fully());
        }
    });
}

fn script(path: &Path, body: &str) {
    fs::write(path, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn in_front(directory: &Path) -> Iptables {
    let search = SearchPath::from_environment().with_first(directory);
    Iptables::detect_in(&search, IpFamily::V4, VariantChoice::Nft).unwrap()
}
