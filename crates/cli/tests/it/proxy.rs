//! `weft proxy` as far as it takes no kernel.

use std::{fs, path::PathBuf};

use crate::weft::{Run, run, weft};

fn defaults() -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(path.join("../proxy/core/testdata/defaults.yaml")).unwrap()
}

/// Runs with a file of these fields, if any, and returns what was written as well.
fn write_config(fields: Option<&str>, arguments: &[&str]) -> (Run, String) {
    let directory = tempfile::tempdir().unwrap();
    let written = directory.path().join("written.yaml");
    let mut command = weft(&["proxy", "--write-config-to"]);
    command.arg(&written).args(arguments);
    if let Some(fields) = fields {
        let file = directory.path().join("config.yaml");
        let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
        fs::write(&file, format!("{head}{fields}")).unwrap();
        command.arg("--config").arg(&file);
    }
    let run = run(&mut command);
    (run, fs::read_to_string(&written).unwrap_or_default())
}

#[test]
fn defaults_are_written_as_kube_proxy_writes_them() {
    for fields in [None, Some("")] {
        let (run, written) = write_config(fields, &[]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(0), ""), "{run:?}");
        assert_eq!(written, defaults());
    }
}

#[test]
fn flags_are_written_too() {
    let flags = [
        "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48",
        "--hostname-override=Node-0",
        "--iptables-min-sync-period=0s",
        "--masquerade-all",
    ];
    let (run, written) = write_config(None, &flags);
    assert_eq!(run.code, Some(0), "{run:?}");
    let expected = defaults()
        .replace(
            "clusterCIDR: \"\"",
            "clusterCIDR: 10.244.0.0/16,fd00:10:244::/48",
        )
        .replace("hostnameOverride: \"\"", "hostnameOverride: node-0")
        .replace("minSyncPeriod: 1s", "minSyncPeriod: 0s")
        .replacen("masqueradeAll: false", "masqueradeAll: true", 1);
    assert_eq!(written, expected);
}

#[test]
fn what_is_ignored_is_told() {
    let (run, written) = write_config(Some("colour: red\n"), &["--masquerade-all"]);
    assert_eq!((run.code, written), (Some(0), defaults()), "{run:?}");
    for warning in [
        "unknown field \"colour\"",
        "--masquerade-all is ignored because --config is set",
    ] {
        assert!(run.stderr.contains(warning), "{}", run.stderr);
    }
}

#[test]
fn a_wrong_configuration_is_told_at_once_and_in_full() {
    let fields = "mode: ipvs\niptables: {masqueradeBit: 40}\n";
    let (run, written) = write_config(Some(fields), &[]);
    assert_eq!((run.code, written.as_str()), (Some(2), ""));
    assert_eq!(
        run.stderr,
        "error: the configuration of the proxy is not valid\n  \
         cause: mode: \"ipvs\": weft proxy has the iptables and nftables modes only; use kube-proxy \
         for this one, or change the mode to iptables or nftables; iptables.masqueradeBit: 40: must be 0 to 31\n"
    );
    let (run, _) = write_config(Some("iptables: {syncPeriod: soon}\n"), &[]);
    assert_eq!(run.code, Some(2));
    assert!(
        run.stderr
            .contains("iptables.syncPeriod: `soon` is not a duration"),
        "{}",
        run.stderr
    );
    let (run, _) = write_config(None, &["--proxy-mode=kernelspace"]);
    assert_eq!(run.code, Some(2));
    let words = "iptables and nftables modes only";
    assert!(run.stderr.contains(words), "{}", run.stderr);
    let (run, written) = write_config(None, &["--proxy-mode=nftables"]);
    assert_eq!(run.code, Some(0));
    assert!(written.contains("mode: nftables"), "{written}");
}

#[test]
fn the_file_may_be_named_before_the_verb_as_well() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, "kind: Pod\n").unwrap();
    let path = file.path().to_str().unwrap();
    for arguments in [["--config", path, "proxy"], ["proxy", "--config", path]] {
        let run = run(&mut weft(&arguments));
        assert_eq!(run.code, Some(2));
        assert!(run.stderr.contains("kind \"Pod\""), "{}", run.stderr);
    }
}

#[test]
fn version_is_a_flag_as_in_kube_proxy() {
    let version = run(&mut weft(&["version"])).stdout;
    for flag in ["--version", "--version=true", "--version=raw"] {
        let run = run(&mut weft(&["proxy", flag]));
        assert_eq!((run.code, &run.stdout), (Some(0), &version), "{flag}");
    }
}
