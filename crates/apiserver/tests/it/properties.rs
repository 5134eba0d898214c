//! Whatever comes in, nothing crashes, and what must hold holds.

use http::Method;
use proptest::prelude::*;
use serde_json::{Value, json};
use weft_apiserver::ApiServer;
use weft_model::{FieldSelector, LabelSelector};

use crate::support::{self, MAPS, config_map};

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-z]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-c$]{1,3}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2048) })]

    #[test]
    fn a_label_selector_reads_what_it_prints(text in "[a-c=!<>(), ]{0,24}|[ab]( in | notin )\\([a-c,]{0,6}\\)") {
        if let Ok(selector) = LabelSelector::parse(&text) {
            let printed = selector.to_string();
            prop_assert_eq!(LabelSelector::parse(&printed).unwrap(), selector, "{}", printed);
        }
    }

    #[test]
    fn a_field_selector_reads_what_it_prints(text in "[a-c.=!,\\\\ ]{0,24}") {
        if let Ok(selector) = FieldSelector::parse(&text) {
            let printed = selector.to_string();
            prop_assert_eq!(FieldSelector::parse(&printed).unwrap(), selector, "{}", printed);
        }
    }

    #[test]
    fn a_selector_and_its_negation_never_agree(key in "[ab]", value in "[xy]", labels in prop::collection::btree_map("[ab]", "[xy]", 0..3)) {
        let matches = |text: String| {
            LabelSelector::parse(&text).unwrap().matches(|key| labels.get(key).map(String::as_str))
        };
        prop_assert_ne!(matches(format!("{key}={value}")), matches(format!("{key}!={value}")));
        prop_assert_ne!(matches(format!("{key} in ({value})")), matches(format!("{key} notin ({value})")));
        prop_assert_ne!(matches(key.clone()), matches(format!("!{key}")));
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn a_merge_patch_applied_twice_is_applied_once(patch in any_json()) {
        runtime().block_on(async {
            let server = ApiServer::builder().build();
            support::post(&server, MAPS, &config_map("a")).await;
            let body = json!({"metadata": {"annotations": {"p": patch.to_string()}}, "data": patch});
            let path = format!("{MAPS}/a");
            let once = support::patch(&server, &path, "merge-patch+json", &body).await;
            let twice = support::patch(&server, &path, "merge-patch+json", &body).await;
            prop_assert_eq!(once.status, twice.status);
            if once.status.is_success() {
                prop_assert_eq!(once.text, twice.text, "nothing changed, so the version stays");
            }
            Ok(())
        })?;
    }

    #[test]
    fn any_patch_is_answered(kind in "json-patch|merge-patch|strategic-merge-patch", patch in any_json()) {
        runtime().block_on(async {
            let server = ApiServer::builder().build();
            support::post(&server, MAPS, &config_map("a")).await;
            let answer = support::patch(&server, &format!("{MAPS}/a"), &format!("{kind}+json"), &patch).await;
            prop_assert!(answer.status.as_u16() >= 200, "{}", answer.text);
            let kind = answer.at("/kind");
            prop_assert!(kind == "ConfigMap" || kind == "Status");
            Ok(())
        })?;
    }

    #[test]
    fn any_query_is_answered(query in "(limit|continue|resourceVersion|resourceVersionMatch|labelSelector|fieldSelector|dryRun)=[a-z0-9%=,!()]{0,8}(&[a-zA-Z]{0,5}=?[%a-f0-9]{0,4}){0,2}") {
        runtime().block_on(async {
            let server = ApiServer::builder().build();
            let uri = format!("{MAPS}?{query}").parse::<http::Uri>();
            if uri.is_ok() {
                let answer = support::send(&server, support::request(Method::GET, &format!("{MAPS}?{query}"), "")).await;
                let kind = answer.at("/kind");
                prop_assert!(kind == "ConfigMapList" || kind == "Status", "{}", answer.text);
            }
            Ok(())
        })?;
    }

    #[test]
    fn any_body_is_answered(body in prop::collection::vec(any::<u8>(), 0..64), kind in "json|yaml|vnd\\.kubernetes\\.protobuf") {
        runtime().block_on(async {
            let server = ApiServer::builder().build();
            // Text is what strings can carry; protobuf's magic makes its decoder look further.
            let body = format!("k8s\0{}", String::from_utf8_lossy(&body));
            let request = http::Request::builder()
                .method(Method::POST)
                .uri(MAPS)
                .header("content-type", format!("application/{kind}"))
                .body(body)
                .unwrap();
            let answer = support::send(&server, request).await;
            prop_assert!(answer.status.as_u16() >= 200);
            Ok(())
        })?;
    }
}
