//! The aws provider against a test double of EC2.

use std::{net::Ipv4Addr, time::Duration};

use aws_credential_types::{Credentials, provider::SharedCredentialsProvider};
use weft_providers::{AwsProvider, AwsSettings, CallOutcome, Calls, Provider as _, TableChoice};
use weft_routes::{Mark, NextHopKind, ProviderError};
use weft_testkit::clouds::{
    Ec2Double, Ec2Instance, Ec2Options, Ec2Route, Ec2Table, Ec2Target, Fault, FaultKind,
};

use crate::steps::{create, delete, replace, route, to};

mod failures;
mod instances;
mod moto;
mod several_tables;

const SECRET: &str = "wJalrXUtnFEMI/s3cr3t";

fn instance(number: u8) -> Ec2Instance {
    Ec2Instance::new(&format!("i-{number}"), Ipv4Addr::new(172, 16, 0, number))
}

fn options() -> Ec2Options {
    Ec2Options {
        instances: vec![instance(1), instance(2)],
        ..Ec2Options::default()
    }
}

async fn double(options: Ec2Options) -> Ec2Double {
    Ec2Double::start(options).await.unwrap()
}

fn by_id(ids: &[&str]) -> TableChoice {
    TableChoice::Ids(ids.iter().map(|id| (*id).to_owned()).collect())
}

fn settings(endpoint: &str, tables: TableChoice) -> AwsSettings {
    let credentials = Credentials::new("AKIDEXAMPLE", SECRET, None, None, "test");
    let credentials = SharedCredentialsProvider::new(credentials);
    AwsSettings::new(endpoint, "eu-central-1", credentials, tables).unwrap()
}

fn provider(double: &Ec2Double) -> AwsProvider {
    let settings = settings(&double.endpoint(), by_id(&["rtb-1"]));
    AwsProvider::new(settings, Calls::default()).unwrap()
}

fn routed(table: &str, destination: &str, target: Ec2Target) -> Ec2Route {
    Ec2Route {
        table: table.to_owned(),
        destination: destination.parse().unwrap(),
        target,
    }
}

fn to_instance(table: &str, destination: &str, id: &str) -> Ec2Route {
    routed(table, destination, Ec2Target::Instance(id.to_owned()))
}

#[tokio::test]
async fn the_first_create_for_an_instance_is_two_calls_and_every_other_is_one() {
    let double = double(options()).await;
    let calls = Calls::default();
    let settings = settings(&double.endpoint(), by_id(&["rtb-1"]));
    let provider = AwsProvider::new(settings, calls.clone()).unwrap();
    let first = create("10.244.1.0/24", to("i-1"));
    assert_eq!(provider.apply(&first).await.result, Ok(()));
    assert_eq!(double.calls_of("ModifyInstanceAttribute"), 1);
    assert_eq!(double.calls(), 2);
    assert!(!double.instance("i-1").unwrap().source_dest_check);
    let second = create("10.244.2.0/24", to("i-1"));
    assert_eq!(provider.apply(&second).await.result, Ok(()));
    assert_eq!(double.calls(), 3);
    let ok = CallOutcome::of(&Ok(()));
    assert_eq!(calls.total("create", ok), 2);
    assert_eq!(calls.total("source_dest_check", ok), 1);
    assert_eq!(double.routes().len(), 2);
}

#[tokio::test]
async fn a_list_is_one_call_by_id_and_by_tag() {
    let double = double(options()).await;
    double.put_route(to_instance("rtb-1", "10.244.1.0/24", "i-1"));
    for choice in [by_id(&["rtb-1"]), TableChoice::Cluster("weft".to_owned())] {
        double.reset();
        double.put_route(to_instance("rtb-1", "10.244.1.0/24", "i-1"));
        let settings = settings(&double.endpoint(), choice);
        let provider = AwsProvider::new(settings, Calls::default()).unwrap();
        for calls in 1..=2 {
            let expected = vec![route("10.244.1.0/24", to("i-1"))];
            assert_eq!(provider.list().await.result, Ok(expected));
            assert_eq!(double.calls(), calls);
        }
    }
}

#[tokio::test]
async fn tables_by_tag_are_remembered_from_the_list() {
    let double = double(options()).await;
    let choice = TableChoice::Cluster("weft".to_owned());
    let settings = settings(&double.endpoint(), choice);
    let provider = AwsProvider::new(settings, Calls::default()).unwrap();
    provider.list().await.result.unwrap();
    let step = create("10.244.1.0/24", to("i-1"));
    assert_eq!(provider.apply(&step).await.result, Ok(()));
    assert_eq!(double.calls_of("DescribeRouteTables"), 1);
}

#[tokio::test]
async fn the_older_tag_is_looked_for_when_the_newer_finds_nothing() {
    let mut table = Ec2Table::tagged("rtb-9", "other");
    let tag = ("KubernetesCluster".to_owned(), "weft".to_owned());
    table.tags.extend([tag]);
    let double = double(Ec2Options {
        tables: vec![table],
        ..options()
    })
    .await;
    let choice = TableChoice::Cluster("weft".to_owned());
    let settings = settings(&double.endpoint(), choice);
    let provider = AwsProvider::new(settings, Calls::default()).unwrap();
    let step = create("10.244.1.0/24", to("i-1"));
    assert_eq!(provider.apply(&step).await.result, Ok(()));
    assert_eq!(
        double.routes(),
        [to_instance("rtb-9", "10.244.1.0/24", "i-1")]
    );
}

#[tokio::test]
async fn a_missing_table_is_not_an_empty_table() {
    let double = double(options()).await;
    for choice in [
        by_id(&["rtb-1", "rtb-404"]),
        TableChoice::Cluster("other".to_owned()),
    ] {
        let settings = settings(&double.endpoint(), choice);
        let provider = AwsProvider::new(settings, Calls::default()).unwrap();
        let result = provider.list().await.result;
        assert!(
            matches!(result, Err(ProviderError::Invalid(_))),
            "{result:?}"
        );
    }
}

#[tokio::test]
async fn a_route_is_replaced_in_one_call_and_deleted_in_one() {
    let double = double(options()).await;
    double.put_route(to_instance("rtb-1", "10.244.1.0/24", "i-1"));
    let provider = provider(&double);
    let step = replace("10.244.1.0/24", to("i-1"), to("i-2"));
    assert_eq!(provider.apply(&step).await.result, Ok(()));
    assert_eq!(
        double.routes(),
        [to_instance("rtb-1", "10.244.1.0/24", "i-2")]
    );
    assert_eq!(double.calls_of("ReplaceRoute"), 1);
    assert_eq!(
        double.calls_of("CreateRoute") + double.calls_of("DeleteRoute"),
        0
    );
    let before = double.calls();
    let step = delete("10.244.1.0/24", to("i-2"));
    assert_eq!(provider.apply(&step).await.result, Ok(()));
    assert_eq!(double.routes(), []);
    assert_eq!(double.calls(), before + 1);
}

#[tokio::test]
async fn both_families_are_routed_without_host_bits() {
    let double = double(options()).await;
    let provider = provider(&double);
    for destination in ["10.244.1.7/24", "fd00:1::7/64"] {
        let step = create(destination, to("aws:///eu-central-1a/i-1"));
        assert_eq!(provider.apply(&step).await.result, Ok(()), "{destination}");
    }
    let expected = [
        to_instance("rtb-1", "10.244.1.0/24", "i-1"),
        to_instance("rtb-1", "fd00:1::/64", "i-1"),
    ];
    assert_eq!(double.routes(), expected);
    let mut listed = provider.list().await.result.unwrap();
    listed.sort_by(|one, other| one.destination.cmp(&other.destination));
    let expected = [
        route("10.244.1.0/24", to("i-1")),
        route("fd00:1::/64", to("i-1")),
    ];
    assert_eq!(listed, expected);
}

#[tokio::test]
async fn a_route_to_a_terminated_instance_is_a_blackhole_and_can_be_led_elsewhere() {
    let double = double(options()).await;
    double.put_route(to_instance("rtb-1", "10.244.1.0/24", "i-1"));
    let gone = Ec2Instance {
        terminated: true,
        ..instance(1)
    };
    double.set_instances(vec![gone, instance(2)]);
    let provider = provider(&double);
    let listed = provider.list().await.result.unwrap();
    assert!(listed[0].blackhole);
    let step = replace("10.244.1.0/24", to("i-1"), to("i-2"));
    assert_eq!(provider.apply(&step).await.result, Ok(()));
    assert!(!provider.list().await.result.unwrap()[0].blackhole);
}

#[tokio::test]
async fn what_others_route_is_listed_as_theirs_and_does_no_harm() {
    let double = double(options()).await;
    double.put_route(to_instance("rtb-1", "10.244.1.0/24", "i-unknown"));
    let gateway = |id: &str| Ec2Target::Gateway(id.to_owned());
    double.put_route(routed("rtb-1", "172.16.0.0/16", gateway("local")));
    double.put_route(routed("rtb-1", "0.0.0.0/0", gateway("igw-1")));
    let interface = Ec2Target::Interface("eni-9".to_owned());
    double.put_route(routed("rtb-1", "10.244.9.0/24", interface));
    let listed = provider(&double).list().await.result.unwrap();
    let mark = |destination: &str| {
        let mut found = listed.iter();
        let found = found.find(|route| route.destination.text() == destination);
        found.unwrap().mark
    };
    assert_eq!(mark("172.16.0.0/16"), Mark::Foreign);
    assert_eq!(mark("0.0.0.0/0"), Mark::Foreign);
    assert_eq!(mark("10.244.9.0/24"), Mark::Foreign);
    assert_eq!(mark("10.244.1.0/24"), Mark::None);
}

#[tokio::test]
async fn the_secret_appears_in_no_debug_text_and_in_no_error() {
    let double = double(options()).await;
    let settings = settings(&double.endpoint(), by_id(&["rtb-1"]));
    assert!(!format!("{settings:#?}").contains(SECRET));
    let provider = AwsProvider::new(settings, Calls::default()).unwrap();
    double.add_fault(Fault::fail(
        "DescribeRouteTables",
        1,
        "SignatureDoesNotMatch",
    ));
    let error = provider.list().await.result.unwrap_err();
    assert_eq!(error, ProviderError::Forbidden);
    // By now the credentials are held.
    assert!(!format!("{provider:#?}").contains(SECRET));
}

#[tokio::test]
async fn the_capabilities_are_those_of_ec2() {
    let double = double(options()).await;
    let capabilities = provider(&double).capabilities();
    assert_eq!(capabilities.next_hop, NextHopKind::Instance);
    assert_eq!(capabilities.families.len(), 2);
    assert!(
        capabilities.settle > Duration::ZERO,
        "reads lag behind writes"
    );
}

#[tokio::test]
async fn a_list_that_lags_behind_catches_up() {
    let double = double(Ec2Options {
        lag: Duration::from_secs(1),
        ..options()
    })
    .await;
    let provider = provider(&double);
    let step = create("10.244.1.0/24", to("i-1"));
    assert_eq!(provider.apply(&step).await.result, Ok(()));
    assert_eq!(provider.list().await.result, Ok(Vec::new()));
    while provider.list().await.result.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
}
