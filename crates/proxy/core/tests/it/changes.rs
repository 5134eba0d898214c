//! Change detection: objects that change Services, and objects that do not.

use serde_json::json;
use weft_model::{IpFamily, ObjectKey};

use crate::world::{key, model, service, set, slice};

#[test]
fn what_does_not_matter_changes_nothing() {
    let mut model = model(IpFamily::V4);
    let endpoints = json!([{"addresses": ["10.0.0.1"], "conditions": {"ready": true}}]);
    set(&mut model, &service(&json!({}), &json!([])));
    set(&mut model, &slice("one", &endpoints));
    assert_eq!(model.take_changes().len(), 1);
    let revision = model.revision();
    let mut annotated = slice("one", &endpoints);
    annotated["metadata"]["annotations"] = json!({"a": "b"});
    annotated["metadata"]["resourceVersion"] = "7".into();
    set(&mut model, &annotated);
    let selector = json!({"selector": {"app": "x"}});
    set(
        &mut model,
        &service(&selector, &json!([{"hostname": "lb"}])),
    );
    assert_eq!(model.revision(), revision);
    // A slice with the same contents in another notation is processed, and found to change nothing.
    let same = json!([{"addresses": ["010.0.0.1"], "conditions": {}, "zone": "x"}]);
    set(&mut model, &slice("one", &same));
    assert!(model.take_changes().is_empty());
}

#[test]
fn there_and_back_again_is_not_a_change() {
    let mut model = model(IpFamily::V4);
    set(&mut model, &service(&json!({}), &json!([])));
    model.take_changes();
    set(
        &mut model,
        &service(
            &json!({"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"]}),
            &json!([]),
        ),
    );
    set(&mut model, &service(&json!({}), &json!([])));
    assert!(model.take_changes().is_empty());
}

#[test]
fn slices_may_come_before_their_service_and_stay_after_it() {
    let mut model = model(IpFamily::V4);
    let endpoints = json!([{"addresses": ["10.0.0.1"]}]);
    set(&mut model, &slice("one", &endpoints));
    assert!(model.take_changes().is_empty());
    set(&mut model, &service(&json!({}), &json!([])));
    let found = model.take_changes().remove(&key()).flatten().unwrap();
    assert_eq!(found.ports[0].cluster.len(), 1);
    model.remove_service(&key());
    assert_eq!(model.take_changes(), [(key(), None)].into());
    set(&mut model, &service(&json!({}), &json!([])));
    let found = model.take_changes().remove(&key()).flatten().unwrap();
    assert_eq!(found.ports[0].cluster.len(), 1);
    model.remove_slice(&ObjectKey::namespaced("shop", "one"));
    let found = model.take_changes().remove(&key()).flatten().unwrap();
    assert!(!found.ports[0].has_endpoints);
}

#[test]
fn a_slice_may_move_to_another_service() {
    let mut model = model(IpFamily::V4);
    set(&mut model, &service(&json!({}), &json!([])));
    let mut moving = slice("one", &json!([{"addresses": ["10.0.0.1"]}]));
    set(&mut model, &moving);
    model.take_changes();
    moving["metadata"]["labels"]["kubernetes.io/service-name"] = "other".into();
    set(&mut model, &moving);
    let found = model.take_changes().remove(&key()).flatten().unwrap();
    assert!(!found.ports[0].has_endpoints);
}

#[test]
fn slices_of_other_kinds_are_ignored() {
    let mut model = model(IpFamily::V4);
    let mut headless = slice("one", &json!([{"addresses": ["10.0.0.1"]}]));
    headless["metadata"]["labels"]["service.kubernetes.io/headless"] = "".into();
    let mut names = slice("two", &json!([{"addresses": ["a.example.com"]}]));
    names["addressType"] = "FQDN".into();
    let mut orphan = slice("three", &json!([{"addresses": ["10.0.0.1"]}]));
    orphan["metadata"]["labels"] = json!({});
    for object in [headless, names, orphan] {
        assert!(set(&mut model, &object).is_empty());
    }
    assert_eq!(model.revision(), 0);
}
