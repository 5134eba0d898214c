//! The hcloud provider against a test double of Hetzner's API.

use std::time::Duration;

use weft_providers::{
    CallOutcome, Calls, HcloudProvider, HcloudSettings, HcloudToken, Provider as _,
};
use weft_routes::{Mark, ProviderError, RouteTarget};
use weft_testkit::clouds::{Fault, FaultKind, HcloudDouble, HcloudOptions, HcloudRoute};

use crate::steps::{create, delete, replace, route, via};

mod failures;
mod instances;
mod secrecy;

const TOKEN: &str = "s3cr3t-t0ken";

async fn double(options: HcloudOptions) -> HcloudDouble {
    let token = Some(TOKEN.to_owned());
    HcloudDouble::start(HcloudOptions { token, ..options })
        .await
        .unwrap()
}

fn settings(double: &HcloudDouble, network: &str) -> HcloudSettings {
    let token = HcloudToken::given(TOKEN).unwrap();
    HcloudSettings {
        poll: Duration::from_millis(5),
        ..HcloudSettings::new(&double.endpoint(), token, network).unwrap()
    }
}

fn provider(double: &HcloudDouble) -> HcloudProvider {
    HcloudProvider::new(settings(double, "weft"), Calls::default()).unwrap()
}

fn routed(destination: &str, gateway: &str) -> HcloudRoute {
    HcloudRoute {
        destination: destination.to_owned(),
        gateway: gateway.to_owned(),
    }
}

#[tokio::test]
async fn a_list_is_one_call_also_the_first_one_by_name() {
    let double = double(HcloudOptions::default()).await;
    double.set_routes(vec![routed("10.244.1.0/24", "10.0.0.2")]);
    let provider = provider(&double);
    let expected = vec![route("10.244.1.0/24", via("10.0.0.2"))];
    assert_eq!(provider.list().await.result, Ok(expected.clone()));
    assert_eq!((double.calls(), double.calls_of("list_networks")), (1, 1));
    assert_eq!(provider.list().await.result, Ok(expected));
    assert_eq!((double.calls(), double.calls_of("get_network")), (2, 1));
}

#[tokio::test]
async fn a_network_can_be_given_by_its_number() {
    let double = double(HcloudOptions::default()).await;
    let provider = HcloudProvider::new(settings(&double, "4711"), Calls::default()).unwrap();
    assert_eq!(provider.list().await.result, Ok(Vec::new()));
    assert_eq!((double.calls(), double.calls_of("get_network")), (1, 1));
}

#[tokio::test]
async fn a_missing_network_is_not_an_empty_table() {
    let double = double(HcloudOptions::default()).await;
    for network in ["other", "4712"] {
        let provider = HcloudProvider::new(settings(&double, network), Calls::default()).unwrap();
        let result = provider.list().await.result;
        assert!(
            matches!(result, Err(ProviderError::Invalid(_))),
            "{result:?}"
        );
    }
}

#[tokio::test]
async fn a_network_that_vanished_is_looked_for_by_its_name_again() {
    let double = double(HcloudOptions::default()).await;
    let provider = provider(&double);
    provider.list().await.result.unwrap();
    double.add_fault(Fault::fail("get_network", 1, "not_found"));
    provider.list().await.result.unwrap_err();
    assert_eq!(provider.list().await.result, Ok(Vec::new()));
    assert_eq!(double.calls_of("list_networks"), 2);
}

#[tokio::test]
async fn a_create_is_one_call_and_the_polls_of_its_action() {
    let double = double(HcloudOptions::default()).await;
    let calls = Calls::default();
    let provider = HcloudProvider::new(settings(&double, "4711"), calls.clone()).unwrap();
    let step = create("10.244.1.5/24", via("10.0.0.2"));
    assert_eq!(provider.apply(&step).await.result, Ok(()));
    assert_eq!(double.routes(), [routed("10.244.1.0/24", "10.0.0.2")]);
    assert_eq!(double.count("add_route", "ok"), 1);
    assert_eq!(double.count("get_actions", "ok"), 1);
    assert_eq!(double.calls(), 2);
    let ok = CallOutcome::of(&Ok(()));
    assert_eq!((calls.total("create", ok), calls.total("poll", ok)), (1, 1));
}

#[tokio::test]
async fn a_route_is_deleted_and_replaced() {
    let double = double(HcloudOptions::default()).await;
    double.set_routes(vec![
        routed("10.244.1.0/24", "10.0.0.2"),
        routed("10.244.2.0/24", "10.0.0.3"),
    ]);
    let provider = provider(&double);
    let step = delete("10.244.1.0/24", via("10.0.0.2"));
    assert_eq!(provider.apply(&step).await.result, Ok(()));
    let step = replace("10.244.2.0/24", via("10.0.0.3"), via("10.0.0.4"));
    assert_eq!(provider.apply(&step).await.result, Ok(()));
    assert_eq!(double.routes(), [routed("10.244.2.0/24", "10.0.0.4")]);
}

#[tokio::test]
async fn a_replacement_of_a_route_that_is_gone_already_is_made() {
    let double = double(HcloudOptions::default()).await;
    let step = replace("10.244.2.0/24", via("10.0.0.3"), via("10.0.0.4"));
    assert_eq!(provider(&double).apply(&step).await.result, Ok(()));
    assert_eq!(double.routes(), [routed("10.244.2.0/24", "10.0.0.4")]);
}

#[tokio::test]
async fn outstanding_actions_are_polled_together() {
    let double = double(HcloudOptions::default()).await;
    let provider = HcloudProvider::new(
        HcloudSettings {
            poll: Duration::from_secs(1),
            ..settings(&double, "4711")
        },
        Calls::default(),
    )
    .unwrap();
    let steps: Vec<_> = (0..30)
        .map(|index| create(&format!("10.244.{index}.0/24"), via("10.0.0.2")))
        .collect();
    let applied = steps.iter().map(|step| provider.apply(step));
    for answer in futures::future::join_all(applied).await {
        assert_eq!(answer.result, Ok(()));
    }
    assert_eq!(double.routes().len(), 30);
    // Twenty-five fit into one question; a slow machine may begin the last ones a poll later.
    let polls = double.calls_of("get_actions");
    assert!((2..=4).contains(&polls), "{polls}");
}

#[tokio::test]
async fn routes_of_others_and_nonsense_are_listed_and_do_no_harm() {
    let double = double(HcloudOptions::default()).await;
    double.set_routes(vec![
        routed("10.244.1.0/24", "10.0.0.2"),
        routed("rubbish", "not an address"),
    ]);
    let listed = provider(&double).list().await.result.unwrap();
    assert_eq!(listed[0], route("10.244.1.0/24", via("10.0.0.2")));
    assert_eq!(listed[1].destination.text(), "rubbish");
    assert_eq!(
        (listed[1].mark, &listed[1].target),
        (Mark::Foreign, &RouteTarget::Unknown)
    );
}

#[tokio::test]
async fn every_answer_reports_the_calls_that_are_left() {
    let double = double(HcloudOptions {
        calls_per_hour: Some(100),
        ..HcloudOptions::default()
    })
    .await;
    let provider = provider(&double);
    let listed = provider.list().await.rate.unwrap();
    assert_eq!((listed.limit, listed.remaining), (100, 99));
    // One call of a hundred an hour comes back after 36 seconds; the header counts whole seconds.
    let full = listed.reset_after.as_secs();
    assert!((33..=36).contains(&full), "{full}");
    let step = create("10.244.1.0/24", via("10.0.0.2"));
    assert_eq!(provider.apply(&step).await.rate.unwrap().remaining, 97);
    double.add_fault(Fault::fail("get_network", 1, "maintenance"));
    let failed = provider.list().await;
    assert!(matches!(failed.result, Err(ProviderError::Retry(_))));
    assert_eq!(failed.rate.unwrap().limit, 100);
}

#[tokio::test]
async fn an_empty_bucket_says_when_the_next_call_fits() {
    let double = double(HcloudOptions {
        calls_per_hour: Some(2),
        ..HcloudOptions::default()
    })
    .await;
    let provider = provider(&double);
    for _ in 0..2 {
        provider.list().await.result.unwrap();
    }
    let Err(ProviderError::RateLimited { after: Some(after) }) = provider.list().await.result
    else {
        panic!("the third call was answered");
    };
    let wait = after.as_secs();
    assert!((1790..=1800).contains(&wait), "{wait}");
    assert_eq!(double.count("get_network", "rate_limit_exceeded"), 1);
}

#[tokio::test]
async fn only_ipv4_can_be_routed_and_nothing_is_asked_for_the_rest() {
    let double = double(HcloudOptions::default()).await;
    let provider = provider(&double);
    let capabilities = provider.capabilities();
    assert_eq!((capabilities.parallel, capabilities.quota), (1, Some(100)));
    let result = provider
        .apply(&create("a00:100::/64", via("10.0.0.2")))
        .await
        .result;
    assert!(
        matches!(result, Err(ProviderError::Invalid(_))),
        "{result:?}"
    );
    let result = provider
        .apply(&create("rubbish", via("10.0.0.2")))
        .await
        .result;
    assert!(
        matches!(result, Err(ProviderError::Invalid(_))),
        "{result:?}"
    );
    assert_eq!(double.calls(), 0);
}

#[tokio::test]
async fn a_slow_answer_is_given_up_on() {
    let double = double(HcloudOptions::default()).await;
    let provider = HcloudProvider::new(
        HcloudSettings {
            timeout: Duration::from_millis(500),
            ..settings(&double, "4711")
        },
        Calls::default(),
    )
    .unwrap();
    let slow = FaultKind::Slow {
        milliseconds: 60_000,
    };
    double.add_fault(Fault::on("get_network", slow.clone()));
    let listed = provider.list().await.result;
    assert!(matches!(listed, Err(ProviderError::Retry(_))), "{listed:?}");
    double.add_fault(Fault::on("add_route", slow));
    let step = create("10.244.1.0/24", via("10.0.0.2"));
    let created = provider.apply(&step).await.result;
    assert_eq!(created, Err(ProviderError::Uncertain));
}
