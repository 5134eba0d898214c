//! `weft routes` with doubles of Hetzner Cloud and AWS.

use std::{collections::BTreeMap, fs, net::Ipv4Addr, process::Command};

use weft_testkit::{
    clouds::{
        Ec2Double, Ec2Instance, Ec2Options, Ec2Table, Ec2Target, HcloudDouble, HcloudLatency,
        HcloudOptions, HcloudServer,
    },
    free_port,
};

use super::stage::{Stage, becomes, eventually};
use crate::weft::{run, weft};

pub(super) const TOKEN: &str = "s3cr3t-token-of-the-project";

pub(super) fn hcloud(stage: &Stage) -> HcloudDouble {
    hcloud_with(stage, HcloudLatency::NONE)
}

pub(super) fn hcloud_with(stage: &Stage, latency: HcloudLatency) -> HcloudDouble {
    let server = |number: u8| HcloudServer {
        id: number.into(),
        name: format!("server-{number}"),
        ip: Some(Ipv4Addr::new(10, 0, 1, number)),
    };
    let options = HcloudOptions {
        token: Some(TOKEN.to_owned()),
        servers: (1..=20).map(server).collect(),
        calls_per_hour: Some(3600),
        latency,
        ..HcloudOptions::default()
    };
    stage
        .runtime
        .block_on(HcloudDouble::start(options))
        .unwrap()
}

pub(super) fn with_hcloud<'a>(command: &'a mut Command, double: &HcloudDouble) -> &'a mut Command {
    command
        .env("HCLOUD_TOKEN", TOKEN)
        .env("HCLOUD_ENDPOINT", double.endpoint())
        .env("HCLOUD_NETWORK", "weft")
}

pub(super) fn hcloud_table(double: &HcloudDouble) -> BTreeMap<String, String> {
    let routes = double.routes().into_iter();
    routes
        .map(|route| (route.destination, route.gateway))
        .collect()
}

#[test]
fn hetzner_gets_its_routes_and_tells_how_they_stand() {
    let stage = Stage::new();
    let double = hcloud(&stage);
    let port = format!("--secure-port={}", free_port());
    let mut command = stage.routes("hcloud", &[&port]);
    let mut running = stage.start("hcloud.log", with_hcloud(&mut command, &double));
    for number in 1..=3 {
        stage.add_node(number, &format!("hcloud://{number}"));
    }
    becomes(&Stage::routes_to(1..=3), || hcloud_table(&double));
    becomes(&Some("False/RouteCreated".to_owned()), || {
        stage.condition(3)
    });
    stage.delete_node(2);
    becomes(&Stage::routes_to([1, 3]), || hcloud_table(&double));
    assert_eq!(double.calls_of("get_network"), 1, "one list, at the start");

    let server = format!(
        "--server=https://127.0.0.1:{}",
        &port["--secure-port=".len()..]
    );
    let status = eventually("the table in the status", || {
        let status = run(&mut weft(&["routes", "status", &server]));
        let complete = status.stdout.contains("10.244.3.0/24  10.0.1.3");
        if complete {
            Ok(status.stdout)
        } else {
            Err(format!("{status:?}"))
        }
    });
    assert!(
        status.starts_with("provider hcloud, mode watch, running\n"),
        "{status}"
    );
    assert!(
        status.contains("2 routes, 2 of 100 after open steps, "),
        "{status}"
    );

    let id = running.0.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &id])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
    let log = stage.log("hcloud.log");
    assert!(!log.contains(TOKEN), "{log}");
}

#[test]
fn aws_gets_its_routes() {
    let stage = Stage::new();
    let instance =
        |number: u8| Ec2Instance::new(&format!("i-{number}"), Ipv4Addr::new(10, 0, 1, number));
    let options = Ec2Options {
        tables: vec![Ec2Table::tagged("rtb-7", "weft")],
        instances: (1..=4).map(instance).collect(),
        ..Ec2Options::default()
    };
    let double = stage.runtime.block_on(Ec2Double::start(options)).unwrap();
    let config = stage.directory.path().join("cloud.conf");
    fs::write(&config, "[Global]\nKubernetesClusterID = weft\n").unwrap();
    let config = format!("--cloud-config={}", config.display());
    let mut command = stage.routes("aws", &[&config, "--secure-port=0"]);
    command
        .env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        .env("AWS_SECRET_ACCESS_KEY", TOKEN)
        .env("AWS_REGION", "eu-central-1")
        .env("AWS_ENDPOINT_URL_EC2", double.endpoint());
    let _running = stage.start("aws.log", &mut command);
    for number in 1..=3 {
        stage.add_node(number, &format!("aws:///eu-central-1a/i-{number}"));
    }
    let table = || -> BTreeMap<String, String> {
        let routes = double.routes().into_iter();
        routes
            .map(|route| match route.target {
                Ec2Target::Instance(id) => (route.destination.to_string(), id),
                other => (route.destination.to_string(), format!("{other:?}")),
            })
            .collect()
    };
    let to = |number: u8| (format!("10.244.{number}.0/24"), format!("i-{number}"));
    becomes(&(1..=3).map(to).collect(), table);
    becomes(&Some("False/RouteCreated".to_owned()), || {
        stage.condition(1)
    });
    stage.delete_node(1);
    becomes(&(2..=3).map(to).collect(), table);
    assert!(!stage.log("aws.log").contains(TOKEN));
}

#[test]
fn a_token_that_is_refused_is_an_error_in_the_log_and_not_in_words() {
    let stage = Stage::new();
    let double = hcloud(&stage);
    let mut command = stage.routes("hcloud", &["--secure-port=0", "--log-level=trace"]);
    with_hcloud(&mut command, &double).env("HCLOUD_TOKEN", "another-s3cr3t");
    let _running = stage.start("refused.log", &mut command);
    stage.add_node(1, "hcloud://1");
    eventually("permission denied", || {
        let log = stage.log("refused.log");
        if log.contains("permission denied") {
            Ok(())
        } else {
            Err(log)
        }
    });
    assert!(!stage.log("refused.log").contains("another-s3cr3t"));
}
