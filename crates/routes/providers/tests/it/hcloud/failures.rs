//! Failed calls of Hetzner's API, and their classification.

use weft_providers::Answer;
use weft_testkit::clouds::HcloudLatency;

use super::*;

/// Every code, and what a create, a delete and a list become by it.
#[tokio::test]
async fn every_code_of_the_api_arrives_as_what_to_do_about_it() {
    let double = double(HcloudOptions::default()).await;
    let provider = provider(&double);
    provider.list().await.result.unwrap();
    let table = [
        ("rate_limit_exceeded", ["rate_limited"; 3]),
        ("conflict", ["retry"; 3]),
        ("locked", ["locked"; 3]),
        ("uniqueness_error", ["conflict"; 3]),
        ("resource_limit_exceeded", ["quota"; 3]),
        ("protected", ["forbidden"; 3]),
        ("token_readonly", ["forbidden"; 3]),
        ("unauthorized", ["forbidden"; 3]),
        ("forbidden", ["forbidden"; 3]),
        ("maintenance", ["retry"; 3]),
        ("service_error", ["uncertain", "uncertain", "retry"]),
        ("server_error", ["uncertain", "uncertain", "retry"]),
        ("bad_gateway", ["uncertain", "uncertain", "retry"]),
        ("timeout", ["uncertain", "uncertain", "retry"]),
        ("json_error", ["invalid"; 3]),
        ("not_found", ["invalid", "gone", "invalid"]),
    ];
    for (code, expected) in table {
        double.add_fault(Fault::fail("add_route", 1, code));
        double.add_fault(Fault::fail("delete_route", 1, code));
        double.add_fault(Fault::fail("get_network", 1, code));
        let next_hop = via("10.0.0.2");
        let created = provider
            .apply(&create("10.244.1.0/24", next_hop.clone()))
            .await;
        let deleted = provider.apply(&delete("10.244.1.0/24", next_hop)).await;
        // By name, the number is forgotten when the network is not found, and asked for again.
        let listed = provider.list().await;
        let labels = [label(&created), label(&deleted), label(&listed)];
        assert_eq!(labels, expected, "{code}");
        provider.list().await.result.unwrap();
    }
}

fn label<T>(answer: &Answer<T>) -> &'static str {
    let result = answer.result.as_ref();
    result.map_or_else(ProviderError::label, |_| "ok")
}

#[tokio::test]
async fn a_locked_network_says_so_while_an_action_runs() {
    let double = double(HcloudOptions {
        latency: HcloudLatency {
            // Both ask within this, also where both have to wait for the processor.
            action: Duration::from_secs(2),
            ..HcloudLatency::NONE
        },
        ..HcloudOptions::default()
    })
    .await;
    let provider = provider(&double);
    provider.list().await.result.unwrap();
    let steps = [1, 2].map(|index| create(&format!("10.244.{index}.0/24"), via("10.0.0.2")));
    let both = futures::future::join(provider.apply(&steps[0]), provider.apply(&steps[1])).await;
    let mut labels = [label(&both.0), label(&both.1)];
    labels.sort_unstable();
    assert_eq!(labels, ["locked", "ok"]);
    assert_eq!(double.routes().len(), 1);
}

#[tokio::test]
async fn a_destination_that_is_taken_is_a_conflict_and_a_gateway_outside_is_refused() {
    let double = double(HcloudOptions::default()).await;
    double.set_routes(vec![routed("10.244.1.0/24", "10.0.0.9")]);
    let provider = provider(&double);
    let taken = provider
        .apply(&create("10.244.1.0/25", via("10.0.0.2")))
        .await;
    assert_eq!(taken.result, Err(ProviderError::Conflict));
    let outside = provider
        .apply(&create("10.244.2.0/24", via("192.168.0.2")))
        .await;
    assert_eq!(label(&outside), "invalid");
    let gone = provider
        .apply(&delete("10.244.7.0/24", via("10.0.0.2")))
        .await;
    assert_eq!(gone.result, Err(ProviderError::Gone));
}

#[tokio::test]
async fn a_full_table_is_a_matter_of_quota() {
    let double = double(HcloudOptions {
        quota: 1,
        ..HcloudOptions::default()
    })
    .await;
    let provider = provider(&double);
    let first = provider
        .apply(&create("10.244.1.0/24", via("10.0.0.2")))
        .await;
    assert_eq!(first.result, Ok(()));
    let second = provider
        .apply(&create("10.244.2.0/24", via("10.0.0.2")))
        .await;
    assert_eq!(second.result, Err(ProviderError::Quota));
}

#[tokio::test]
async fn an_action_that_fails_fails_the_step() {
    let double = double(HcloudOptions::default()).await;
    let provider = provider(&double);
    for (code, expected) in [
        ("action_failed", "uncertain"),
        ("server_error", "uncertain"),
    ] {
        let code = code.to_owned();
        double.add_fault(Fault::on("add_route", FaultKind::ActionFails { code }));
        let answer = provider
            .apply(&create("10.244.1.0/24", via("10.0.0.2")))
            .await;
        assert_eq!(label(&answer), expected);
    }
    assert_eq!(double.routes(), []);
}

#[tokio::test]
async fn a_failed_poll_is_not_a_failed_action() {
    let double = double(HcloudOptions::default()).await;
    double.add_fault(Fault::fail("get_actions", 2, "bad_gateway"));
    double.add_fault(Fault::on("get_actions", FaultKind::Garbage));
    double.add_fault(Fault::on("get_actions", FaultKind::DropBefore));
    let answer = provider(&double)
        .apply(&create("10.244.1.0/24", via("10.0.0.2")))
        .await;
    assert_eq!(answer.result, Ok(()));
    assert_eq!(double.calls_of("get_actions"), 5);
}

#[tokio::test]
async fn an_action_that_cannot_be_polled_is_uncertain() {
    let double = double(HcloudOptions::default()).await;
    double.add_fault(Fault::fail("get_actions", 1, "forbidden"));
    let answer = provider(&double)
        .apply(&create("10.244.1.0/24", via("10.0.0.2")))
        .await;
    assert_eq!(answer.result, Err(ProviderError::Uncertain));
}

#[tokio::test]
async fn an_action_that_never_ends_is_uncertain_in_the_end() {
    let double = double(HcloudOptions {
        latency: HcloudLatency {
            action: Duration::from_secs(3600),
            ..HcloudLatency::NONE
        },
        ..HcloudOptions::default()
    })
    .await;
    let settings = HcloudSettings {
        action_timeout: Duration::from_millis(50),
        ..settings(&double, "4711")
    };
    let provider = HcloudProvider::new(settings, Calls::default()).unwrap();
    let answer = provider
        .apply(&create("10.244.1.0/24", via("10.0.0.2")))
        .await;
    assert_eq!(answer.result, Err(ProviderError::Uncertain));
}

#[tokio::test]
async fn a_wait_for_an_action_ends_at_its_timeout_although_the_rate_limit_is_spent() {
    let double = double(HcloudOptions {
        latency: HcloudLatency {
            action: Duration::from_secs(3600),
            ..HcloudLatency::NONE
        },
        calls_per_hour: Some(2),
        ..HcloudOptions::default()
    })
    .await;
    let settings = HcloudSettings {
        action_timeout: Duration::from_secs(2),
        ..settings(&double, "4711")
    };
    let provider = HcloudProvider::new(settings, Calls::default()).unwrap();
    let step = create("10.244.1.0/24", via("10.0.0.2"));
    let answer = tokio::time::timeout(Duration::from_secs(60), provider.apply(&step));
    let answer = answer.await.expect("the limit recovers after half an hour");
    assert_eq!(answer.result, Err(ProviderError::Uncertain));
    // The answer before said that no call is left.
    assert_eq!(double.count("get_actions", "ok"), 1);
    assert_eq!(double.count("get_actions", "rate_limit_exceeded"), 0);
}

#[tokio::test]
async fn a_replacement_that_fails_half_way_is_uncertain() {
    let double = double(HcloudOptions::default()).await;
    double.set_routes(vec![routed("10.244.1.0/24", "10.0.0.2")]);
    let provider = provider(&double);
    double.add_fault(Fault::fail("add_route", 1, "locked"));
    let step = replace("10.244.1.0/24", via("10.0.0.2"), via("10.0.0.3"));
    let answer = provider.apply(&step).await;
    assert_eq!(answer.result, Err(ProviderError::Uncertain));
    assert_eq!(double.routes(), []);
}

#[tokio::test]
async fn a_replacement_that_fails_at_its_first_half_changed_nothing() {
    let double = double(HcloudOptions::default()).await;
    double.set_routes(vec![routed("10.244.1.0/24", "10.0.0.2")]);
    double.add_fault(Fault::fail("delete_route", 1, "locked"));
    let step = replace("10.244.1.0/24", via("10.0.0.2"), via("10.0.0.3"));
    let answer = provider(&double).apply(&step).await;
    assert_eq!(answer.result, Err(ProviderError::Locked));
    assert_eq!(double.calls_of("add_route"), 0);
}

#[tokio::test]
async fn a_lost_answer_to_a_change_is_uncertain_and_to_a_question_is_none() {
    let double = double(HcloudOptions::default()).await;
    let provider = provider(&double);
    provider.list().await.result.unwrap();
    double.add_fault(Fault::on("add_route", FaultKind::DropAfter));
    let created = provider
        .apply(&create("10.244.1.0/24", via("10.0.0.2")))
        .await;
    assert_eq!(created.result, Err(ProviderError::Uncertain));
    assert_eq!(double.routes().len(), 1, "it happened nevertheless");
    double.add_fault(Fault::on("delete_route", FaultKind::DropBefore));
    let deleted = provider
        .apply(&delete("10.244.1.0/24", via("10.0.0.2")))
        .await;
    assert_eq!(deleted.result, Err(ProviderError::Uncertain));
    assert_eq!(double.routes().len(), 1, "it did not happen");
    double.add_fault(Fault::on("get_network", FaultKind::DropBefore));
    assert_eq!(label(&provider.list().await), "retry");
}

#[tokio::test]
async fn an_invalid_answer_is_not_an_empty_table() {
    let double = double(HcloudOptions::default()).await;
    let provider = provider(&double);
    provider.list().await.result.unwrap();
    double.add_fault(Fault::on("get_network", FaultKind::Garbage));
    assert_eq!(label(&provider.list().await), "garbage");
    double.add_fault(Fault::on("add_route", FaultKind::Garbage));
    let created = provider
        .apply(&create("10.244.1.0/24", via("10.0.0.2")))
        .await;
    assert_eq!(label(&created), "garbage");
}

#[tokio::test]
async fn a_refused_connection_changed_nothing() {
    let stopped = double(HcloudOptions::default()).await;
    let settings = settings(&stopped, "4711");
    drop(stopped);
    let provider = HcloudProvider::new(settings, Calls::default()).unwrap();
    // The listener may still be on its way out when the first call comes.
    let created = loop {
        let answer = provider
            .apply(&create("10.244.1.0/24", via("10.0.0.2")))
            .await;
        if answer.result != Err(ProviderError::Uncertain) {
            break answer;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(label(&created), "retry");
}
