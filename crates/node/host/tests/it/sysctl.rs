//! Sysctls of the kernel, and of a directory in their place.

use std::{fs, path::Path, time::Duration};

use weft_host::{
    conntrack_limits::ConntrackLimits,
    sysctl::{Setting, SettingError, Settings},
};
use weft_testkit::lab;

use weft_model::error_text;

const LOCALNET: Setting<'_> = Setting::Sysctl("net/ipv4/conf/all/route_localnet");
const ESTABLISHED: Setting<'_> =
    Setting::Sysctl("net/netfilter/nf_conntrack_tcp_timeout_established");

#[test]
fn a_setting_is_that_of_the_threads_network() {
    lab::inside(|lab| {
        let settings = Settings::default();
        let node = lab.namespace("node");
        node.run(|| settings.write(LOCALNET, "1")).unwrap();
        assert_eq!(node.run(|| settings.read_number(LOCALNET)).unwrap(), 1);
        assert_eq!(settings.read(LOCALNET).unwrap(), "0");
    });
}

#[test]
fn missing_read_only_and_refused_are_different_failures() {
    lab::inside(|_| {
        let settings = Settings::default();
        let missing = Setting::Sysctl("net/ipv4/no_such_thing");
        for error in [
            settings.read(missing).unwrap_err(),
            settings.write(missing, "1").unwrap_err(),
        ] {
            assert!(matches!(error, SettingError::Missing { .. }), "{error}");
            assert_eq!(
                error.to_string(),
                "/proc/sys/net/ipv4/no_such_thing does not exist"
            );
        }

        // Only the initial network namespace may change it.
        let foreign = Setting::Sysctl("net/netfilter/nf_conntrack_max");
        let error = settings.write(foreign, "65536").unwrap_err();
        assert!(error.is_read_only(), "{}", error_text(&error));

        let error = settings.write(LOCALNET, "weft").unwrap_err();
        assert_eq!(
            error_text(&error),
            "cannot write \"weft\" to /proc/sys/net/ipv4/conf/all/route_localnet: \
             Invalid argument (os error 22)"
        );
    });
}

#[test]
fn limits_are_written_as_far_as_this_network_may() {
    lab::inside(|_| {
        let settings = Settings::default();
        let max = Setting::Sysctl("net/netfilter/nf_conntrack_max");
        let limits = ConntrackLimits {
            // Another value than the present one, and no larger hash table, which all namespaces
            // share.
            max_per_core: 4,
            tcp_established_timeout: Duration::from_secs(1234),
            udp_stream_timeout: Duration::from_secs(77),
            tcp_be_liberal: true,
            ..ConntrackLimits::default()
        };
        let before = settings.read(max).unwrap();
        let read_only = limits.apply(&settings, 1).unwrap();
        let texts: Vec<String> = read_only.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            ["cannot write /proc/sys/net/netfilter/nf_conntrack_max: read-only here"]
        );
        assert_eq!(settings.read(max).unwrap(), before);
        assert_eq!(settings.read_number(ESTABLISHED).unwrap(), 1234);
        let number = |name: &str| {
            let name = format!("net/netfilter/nf_conntrack_{name}");
            settings.read_number(Setting::Sysctl(&name)).unwrap()
        };
        assert_eq!(number("udp_timeout_stream"), 77);
        assert_eq!(number("tcp_be_liberal"), 1);
    });
}

#[test]
fn limits_of_another_root_include_the_hash_table() {
    let root = tempfile::tempdir().unwrap();
    let put = |path: &str, value: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, value).unwrap();
    };
    let get = |path: &str| fs::read_to_string(root.path().join(path)).unwrap();
    let max = "proc/sys/net/netfilter/nf_conntrack_max";
    let hash_size = "sys/module/nf_conntrack/parameters/hashsize";
    put(max, "1\n");
    put(hash_size, "16\n");
    let limits = ConntrackLimits {
        max_per_core: 100,
        min: 1000,
        ..ConntrackLimits::default()
    };
    let settings = Settings::under(root.path());
    assert!(limits.apply(&settings, 2).unwrap().is_empty());
    assert_eq!((get(max), get(hash_size)), ("1000".into(), "250".into()));

    fs::remove_file(root.path().join(hash_size)).unwrap();
    let error = limits.apply(&settings, 2).unwrap_err();
    assert!(matches!(error, SettingError::Missing { .. }), "{error}");
    let error = Settings::under(Path::new("/nowhere")).read(LOCALNET);
    assert!(matches!(error, Err(SettingError::Missing { .. })));
}
