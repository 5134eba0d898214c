//! Failed calls of EC2, and their classification.

use weft_providers::Answer;
use weft_testkit::clouds::Throttle;

use super::*;

fn label<T>(answer: &Answer<T>) -> &'static str {
    let result = answer.result.as_ref();
    result.map_or_else(ProviderError::label, |_| "ok")
}

/// Each error code, with the class of error that a create, a replace, a delete and a list return.
#[tokio::test]
async fn every_code_of_ec2_arrives_as_what_to_do_about_it() {
    let double = double(options()).await;
    let provider = provider(&double);
    let table = [
        ("RouteAlreadyExists", ["conflict"; 4]),
        (
            "InvalidRoute.NotFound",
            ["conflict", "conflict", "gone", "conflict"],
        ),
        (
            "InvalidParameterValue",
            ["invalid", "conflict", "invalid", "invalid"],
        ),
        (
            "InvalidRouteTableID.NotFound",
            ["conflict", "conflict", "conflict", "invalid"],
        ),
        ("InvalidInstanceID.NotFound", ["not_ready"; 4]),
        ("InvalidInstanceID", ["not_ready"; 4]),
        ("IncorrectInstanceState", ["not_ready"; 4]),
        ("RouteLimitExceeded", ["quota"; 4]),
        ("RequestLimitExceeded", ["rate_limited"; 4]),
        ("Throttling", ["rate_limited"; 4]),
        ("UnauthorizedOperation", ["forbidden"; 4]),
        ("AuthFailure", ["forbidden"; 4]),
        ("ExpiredToken", ["forbidden"; 4]),
        (
            "InternalError",
            ["uncertain", "uncertain", "uncertain", "retry"],
        ),
        (
            "Unavailable",
            ["uncertain", "uncertain", "uncertain", "retry"],
        ),
        ("SomethingNew", ["invalid"; 4]),
    ];
    for (code, expected) in table {
        let actions = [
            "CreateRoute",
            "ReplaceRoute",
            "DeleteRoute",
            "DescribeRouteTables",
        ];
        for action in actions {
            double.add_fault(Fault::fail(action, 1, code));
        }
        let destination = "10.244.1.0/24";
        let created = provider.apply(&create(destination, to("i-1"))).await;
        let replaced = provider
            .apply(&replace(destination, to("i-1"), to("i-2")))
            .await;
        let deleted = provider.apply(&delete(destination, to("i-1"))).await;
        let listed = provider.list().await;
        let labels = [
            label(&created),
            label(&replaced),
            label(&deleted),
            label(&listed),
        ];
        assert_eq!(labels, expected, "{code}");
    }
}

#[tokio::test]
async fn what_is_there_or_missing_is_seen_by_the_double_itself() {
    let double = double(options()).await;
    double.put_route(to_instance("rtb-1", "10.244.1.0/24", "i-2"));
    let provider = provider(&double);
    let taken = provider.apply(&create("10.244.1.0/24", to("i-1"))).await;
    assert_eq!(taken.result, Err(ProviderError::Conflict));
    let missing = provider
        .apply(&replace("10.244.2.0/24", to("i-1"), to("i-2")))
        .await;
    assert_eq!(missing.result, Err(ProviderError::Conflict));
    assert_eq!(
        double.calls_of("CreateRoute"),
        1,
        "a missing route is not created instead"
    );
    let gone = provider.apply(&delete("10.244.2.0/24", to("i-1"))).await;
    assert_eq!(gone.result, Err(ProviderError::Gone));
    let unknown = provider.apply(&create("10.244.3.0/24", to("i-404"))).await;
    assert_eq!(label(&unknown), "not_ready");
}

#[tokio::test]
async fn a_node_that_names_no_instance_costs_no_call() {
    let double = double(options()).await;
    for id in ["hcloud://1", "", "aws:///zone/fargate-1"] {
        let answer = provider(&double)
            .apply(&create("10.244.1.0/24", to(id)))
            .await;
        assert_eq!(label(&answer), "not_ready", "{id}");
    }
    assert_eq!(double.calls(), 0);
}

#[tokio::test]
async fn a_full_table_is_a_matter_of_quota() {
    let double = double(Ec2Options {
        quota: 1,
        ..options()
    })
    .await;
    let provider = provider(&double);
    let first = provider.apply(&create("10.244.1.0/24", to("i-1"))).await;
    assert_eq!(first.result, Ok(()));
    let second = provider.apply(&create("10.244.2.0/24", to("i-1"))).await;
    assert_eq!(second.result, Err(ProviderError::Quota));
}

#[tokio::test]
async fn each_action_is_throttled_for_itself() {
    let one = Throttle {
        burst: 1,
        per_second: 0.001,
    };
    let double = double(Ec2Options {
        throttle: Some((one, one)),
        ..options()
    })
    .await;
    let provider = provider(&double);
    let created = provider.apply(&create("10.244.1.0/24", to("i-1"))).await;
    assert_eq!(created.result, Ok(()));
    let again = provider.apply(&create("10.244.2.0/24", to("i-1"))).await;
    assert_eq!(
        again.result,
        Err(ProviderError::RateLimited { after: None })
    );
    assert_eq!(label(&provider.list().await), "ok");
}

#[tokio::test]
async fn a_lost_answer_to_a_change_is_uncertain_and_to_a_question_is_none() {
    let double = double(options()).await;
    let provider = provider(&double);
    double.add_fault(Fault::on("CreateRoute", FaultKind::DropAfter));
    let created = provider.apply(&create("10.244.1.0/24", to("i-1"))).await;
    assert_eq!(created.result, Err(ProviderError::Uncertain));
    assert_eq!(double.routes().len(), 1, "it happened nevertheless");
    double.add_fault(Fault::on("DeleteRoute", FaultKind::DropBefore));
    let deleted = provider.apply(&delete("10.244.1.0/24", to("i-1"))).await;
    assert_eq!(deleted.result, Err(ProviderError::Uncertain));
    double.add_fault(Fault::on("DescribeRouteTables", FaultKind::DropBefore));
    assert_eq!(label(&provider.list().await), "retry");
}

#[tokio::test]
async fn an_invalid_answer_is_neither_an_empty_table_nor_a_success() {
    let double = double(options()).await;
    let provider = provider(&double);
    for action in ["DescribeRouteTables", "CreateRoute", "DeleteRoute"] {
        double.add_fault(Fault::on(action, FaultKind::Garbage));
    }
    assert_eq!(label(&provider.list().await), "garbage");
    let created = provider.apply(&create("10.244.1.0/24", to("i-1"))).await;
    assert_eq!(label(&created), "garbage");
    let deleted = provider.apply(&delete("10.244.1.0/24", to("i-1"))).await;
    assert_eq!(label(&deleted), "garbage");
}

#[tokio::test]
async fn a_slow_answer_is_given_up_on() {
    let double = double(options()).await;
    let settings = AwsSettings {
        timeout: Duration::from_millis(500),
        ..settings(&double.endpoint(), by_id(&["rtb-1"]))
    };
    let provider = AwsProvider::new(settings, Calls::default()).unwrap();
    let slow = FaultKind::Slow {
        milliseconds: 60_000,
    };
    double.add_fault(Fault::on("CreateRoute", slow.clone()));
    double.add_fault(Fault::on("DescribeRouteTables", slow));
    let created = provider.apply(&create("10.244.1.0/24", to("i-1"))).await;
    assert_eq!(created.result, Err(ProviderError::Uncertain));
    assert_eq!(label(&provider.list().await), "retry");
}
