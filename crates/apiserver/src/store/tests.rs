//! Tests of pages, history and watches of the store.

use serde_json::json;

use super::*;
use crate::kind::builtin;

fn config_maps() -> Arc<crate::kind::ResourceType> {
    builtin::resource_types()
        .into_iter()
        .find(|kind| kind.kind == "ConfigMap")
        .unwrap()
}

fn put(store: &Store, name: &str, label: &str) -> u64 {
    let kind = config_maps();
    let writer = store.write();
    let version = writer.next_version();
    let object = json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "a", "labels": {"s": label},
            "resourceVersion": version.to_string()},
    });
    let serde_json::Value::Object(object) = object else {
        unreachable!()
    };
    writer.put(&kind.storage, Arc::new(Stored::new(&kind, object)));
    version
}

fn names(page: &Page) -> Vec<&str> {
    page.items.iter().map(|item| item.name.as_str()).collect()
}

#[test]
fn a_page_shows_the_state_of_the_version_it_began_with() {
    let store = Store::new(100, None);
    let storage = config_maps().storage.clone();
    for name in ["c0", "c1", "c2"] {
        put(&store, name, "in");
    }
    let first = store
        .page(
            &storage,
            &PageRequest {
                limit: Some(1),
                ..Default::default()
            },
        )
        .unwrap();
    assert_eq!((names(&first), first.remaining), (vec!["c0"], Some(2)));
    put(&store, "c15", "in");
    store.write().remove(&storage, "a/c2");
    put(&store, "c1", "changed");
    let rest = PageRequest {
        at: Some(first.version),
        after: Some("a/c0"),
        ..Default::default()
    };
    let second = store.page(&storage, &rest).unwrap();
    assert_eq!(names(&second), ["c1", "c2"]);
    assert_eq!(second.items[0].label("s"), Some("in"), "the old content");
    let now = store.page(&storage, &PageRequest::default()).unwrap();
    assert_eq!(names(&now), ["c0", "c1", "c15"]);
}

#[test]
fn history_beyond_the_log_is_too_old() {
    let store = Store::new(2, None);
    let storage = config_maps().storage.clone();
    let first = put(&store, "x", "1");
    for _ in 0..3 {
        put(&store, "x", "2");
    }
    let request = PageRequest {
        at: Some(first),
        ..Default::default()
    };
    assert_eq!(
        store.page(&storage, &request).unwrap_err(),
        ListError::Expired
    );
    let too_old = store.watch(&storage, Filter::default(), WatchStart::After(first));
    assert_eq!(too_old.unwrap_err(), TooOld { oldest: first + 1 });
    assert!(
        store
            .watch(&storage, Filter::default(), WatchStart::After(first + 1))
            .is_ok()
    );
    store.compact();
    assert!(
        store
            .watch(&storage, Filter::default(), WatchStart::After(first + 1))
            .is_err()
    );
}

#[test]
fn leaving_the_selector_is_a_deletion_with_old_content_and_new_version() {
    let store = Store::new(100, None);
    let storage = config_maps().storage.clone();
    let labels = weft_model::LabelSelector::parse("s=in").unwrap();
    let filter = Filter::new(None, labels, Vec::new());
    let start = store.version();
    put(&store, "w", "in");
    let left = put(&store, "w", "out");
    let mut watch = store
        .watch(&storage, filter, WatchStart::After(start))
        .unwrap();
    let Some(Delivery::Change(EventKind::Added, _)) = watch.next_initial() else {
        panic!()
    };
    let Some(Delivery::Change(kind, change)) = watch.next_initial() else {
        panic!()
    };
    assert_eq!(kind, EventKind::Deleted);
    let object = change.object(kind);
    assert_eq!((object.version, object.label("s")), (left, Some("in")));
    assert!(watch.next_initial().is_none());
}

#[tokio::test]
async fn a_dropped_watch_is_forgotten_and_a_closed_one_ends() {
    let store = Store::new(100, None);
    let storage = config_maps().storage.clone();
    let dropped = store
        .watch(&storage, Filter::default(), WatchStart::Now)
        .unwrap();
    drop(dropped);
    let mut closed = store
        .watch(&storage, Filter::default(), WatchStart::Now)
        .unwrap();
    put(&store, "x", "1");
    store.close_watches(&storage);
    assert!(
        closed.next_live().await.is_some(),
        "what was sent is still read"
    );
    assert!(closed.next_live().await.is_none());
}
