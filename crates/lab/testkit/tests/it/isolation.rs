//! Tests that a lab leaves the network and the files of the host as they are.

use std::{fs, path::Path, process::Command};

use weft_testkit::lab;

/// The host's interfaces, policy rules and firewall, as far as this user may read them.
fn host_network() -> Vec<(String, String)> {
    let commands = [
        "ip -o link show",
        "ip rule show",
        "ip -6 rule show",
        "ip route show",
        "iptables-save -t nat",
    ];
    commands
        .into_iter()
        .map(|line| {
            let mut words = line.split_whitespace();
            let path = format!(
                "{}:/usr/sbin:/sbin",
                std::env::var("PATH").unwrap_or_default()
            );
            let output = Command::new(words.next().unwrap())
                .args(words)
                .env("PATH", path)
                .output();
            let text = output.map_or_else(
                |error| error.to_string(),
                |output| String::from_utf8_lossy(&output.stdout).into_owned(),
            );
            // iptables-save writes the time of day into comments.
            let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
            (line.to_owned(), lines.join("\n"))
        })
        .collect()
}

#[test]
fn the_hosts_network_is_the_same_before_and_after() {
    let before = host_network();
    lab::with_programs(&["iptables"], |lab| {
        lab.bridge("weft-stray");
        lab.program(
            "ip",
            &["rule", "add", "to", "192.0.2.0/24", "lookup", "100"],
        );
        lab.program("iptables", &["-t", "nat", "-N", "WEFT-STRAY"]);
        let visible: String = host_network().into_iter().map(|(_, text)| text).collect();
        for trace in ["weft-stray", "192.0.2.0/24", "WEFT-STRAY"] {
            assert!(
                visible.contains(trace),
                "the lab itself does not show {trace}"
            );
        }
    });
    assert_eq!(before, host_network());
}

#[test]
fn a_lab_begins_with_nothing_but_loopback() {
    lab::inside(|lab| {
        let links = lab.program("ip", &["-o", "link", "show"]);
        let names: Vec<&str> = links
            .lines()
            .filter_map(|line| line.split(": ").nth(1))
            .collect();
        // Kernels with built-in tunnels show their fallback devices in every namespace.
        assert!(names.contains(&"lo"), "{links}");
        assert!(
            !names
                .iter()
                .any(|name| name.starts_with("eth") || name.starts_with("en")),
            "{links}"
        );
        assert!(links.contains("LOOPBACK,UP"), "{links}");
    });
}

#[test]
fn run_is_private_and_starts_empty() {
    let on_host: Vec<_> = fs::read_dir("/run")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    lab::inside(|lab| {
        assert_eq!(fs::read_dir("/run").unwrap().count(), 0);
        lab.namespace("stray");
        assert!(Path::new("/run/netns/stray").exists());
    });
    assert!(!Path::new("/run/netns/stray").exists());
    assert!(
        on_host.iter().all(|path| path.exists()),
        "something vanished from /run"
    );
}

#[test]
fn iptables_works_inside_without_the_hosts_rules() {
    lab::with_programs(&["iptables", "iptables-save"], |lab| {
        assert!(!lab.program("iptables-save", &[]).contains("-A "));
        lab.program(
            "iptables",
            &[
                "-t",
                "nat",
                "-A",
                "OUTPUT",
                "-d",
                "192.0.2.1",
                "-j",
                "ACCEPT",
            ],
        );
        let saved = lab.program("iptables-save", &["-t", "nat"]);
        assert!(
            saved.contains("-A OUTPUT -d 192.0.2.1/32 -j ACCEPT"),
            "{saved}"
        );
    });
}
