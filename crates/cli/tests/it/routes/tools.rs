//! `weft routes plan`, observe mode, polling, and command lines that are refused.

use std::process::Command;

use super::{
    providers::{hcloud, hcloud_table, with_hcloud},
    stage::{Stage, becomes, eventually},
};
use crate::weft::{run, weft};

#[test]
fn plan_prints_what_would_be_done_and_does_nothing() {
    let stage = Stage::new();
    let double = hcloud(&stage);
    stage.add_node(1, "hcloud://1");
    stage.add_node(2, "hcloud://19");
    let planned = run(with_hcloud(&mut stage.routes("hcloud", &["plan"]), &double));
    assert_eq!(planned.code, Some(0), "{planned:?}");
    assert_eq!(
        planned.stdout,
        "routes: +1 ~0 -0 =0, 1 refused\n\
         + 10.244.1.0/24 via 10.0.1.1 (node node-1) [missing]\n\
         ! 10.244.2.0/24 (node node-2): 10.0.1.2 is not an address of the node's instance\n\
         quota: 1 of 100 routes afterwards\n"
    );
    assert_eq!(double.routes(), []);
}

#[test]
fn an_observer_needs_no_lease_and_changes_nothing() {
    let stage = Stage::new();
    let double = hcloud(&stage);
    let flags = ["--secure-port=0"];
    let mut leading = stage.routes("hcloud", &flags);
    let mut observing = stage.routes("hcloud", &["--secure-port=0", "--observe"]);
    let observer = stage.start("observer.log", with_hcloud(&mut observing, &double));
    stage.add_node(1, "hcloud://1");
    eventually("a wish in the log", || {
        let log = stage.log("observer.log");
        if log.contains("route would change") {
            Ok(())
        } else {
            Err(log)
        }
    });
    assert_eq!(double.routes(), []);
    let _leader = stage.start("leader.log", with_hcloud(&mut leading, &double));
    becomes(&Stage::routes_to([1]), || hcloud_table(&double));
    drop(observer);
}

#[test]
fn with_the_gate_off_it_looks_every_period() {
    let stage = Stage::new();
    let double = hcloud(&stage);
    let off = "--feature-gates=CloudControllerManagerWatchBasedRoutesReconciliation=false";
    let flags = [
        off,
        "--route-reconciliation-period=300ms",
        "--secure-port=0",
    ];
    let mut command = stage.routes("hcloud", &flags);
    let _running = stage.start("polling.log", with_hcloud(&mut command, &double));
    stage.add_node(1, "hcloud://1");
    becomes(&Stage::routes_to([1]), || hcloud_table(&double));
    let before = double.calls_of("get_network");
    eventually("five more lists", || {
        let lists = double.calls_of("get_network") - before;
        if lists >= 5 {
            Ok(())
        } else {
            Err(lists.to_string())
        }
    });
    assert!(!stage.log("polling.log").contains("has no effect"));
}

fn refused(command: &mut Command, part: &str) {
    let answer = run(command);
    assert_eq!(answer.code, Some(2), "{answer:?}");
    assert!(answer.stderr.contains(part), "{answer:?}");
}

#[test]
fn a_command_line_that_makes_no_sense_is_refused_with_a_reason() {
    let needs = "--cloud-provider: say which provider has the routes";
    refused(&mut weft(&["routes", "--cluster-cidr=10.0.0.0/8"]), needs);
    let no_range = "--cluster-cidr: say which range is managed";
    refused(&mut weft(&["routes", "--cloud-provider=memory"]), no_range);
    let twice = [
        "routes",
        "--cloud-provider=memory",
        "--cluster-cidr=10.0.0.0/8,11.0.0.0/8",
    ];
    refused(&mut weft(&twice), "two ranges are one of each family");
    let controllers = ["controller", "--controllers=rout"];
    refused(
        &mut weft(&controllers),
        "there is no \"rout\"; there are route",
    );
    let lease = [
        "routes",
        "--cloud-provider=memory",
        "--cluster-cidr=10.0.0.0/8",
        "--leader-elect-lease-duration=5s",
    ];
    refused(&mut weft(&lease), "must be longer than renew deadline");
}

#[test]
fn an_unknown_provider_is_refused_with_the_known_ones() {
    let stage = Stage::new();
    let answer = run(&mut stage.routes("hetzner", &["--secure-port=0"]));
    assert_eq!(answer.code, Some(1), "{answer:?}");
    assert!(
        answer.stderr.contains("aws, hcloud or netlink"),
        "{answer:?}"
    );
}

#[test]
fn the_controller_runs_routes_and_can_leave_them_to_others() {
    let stage = Stage::new();
    let double = hcloud(&stage);
    stage.add_node(1, "hcloud://1");
    let controller = |flags: &[&str]| {
        let mut command = stage.routes("hcloud", flags);
        let mut arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        arguments[0] = "controller".into();
        command = weft(&[]);
        command.args(arguments).arg("--secure-port=0");
        command
    };
    let mut without = controller(&["--controllers=*,-route"]);
    let idle = stage.start("idle.log", with_hcloud(&mut without, &double));
    eventually("started", || {
        let log = stage.log("idle.log");
        if log.contains("started") {
            Ok(())
        } else {
            Err(log)
        }
    });
    assert_eq!(double.calls(), 0);
    drop(idle);
    let mut with = controller(&[]);
    let _running = stage.start("routes.log", with_hcloud(&mut with, &double));
    becomes(&Stage::routes_to([1]), || hcloud_table(&double));
}
