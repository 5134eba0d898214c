//! Property tests: selectors, watches, patches, and arbitrary requests that must not crash the server.

use std::collections::{BTreeMap, BTreeSet};

use http::Method;
use proptest::prelude::*;
use serde_json::{Value, json};
use weft_apiserver::ApiServer;
use weft_model::{FieldSelector, LabelSelector};

use crate::support::{self, Lines, MAPS, config_map};

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

/// One requirement of a label selector: its text and its meaning.
fn requirement() -> impl Strategy<Value = Requirement> {
    let parts = (0..6_u8, "[ab]", prop::collection::btree_set("[xyz]", 1..3));
    parts.prop_map(|(what, key, values)| Requirement { what, key, values })
}

#[derive(Debug, Clone)]
struct Requirement {
    what: u8,
    key: String,
    values: BTreeSet<String>,
}

impl Requirement {
    fn text(&self) -> String {
        let Self { what, key, values } = self;
        let all: Vec<&str> = values.iter().map(String::as_str).collect();
        let (first, all) = (all[0], all.join(","));
        match what {
            0 => format!("{key}={first}"),
            1 => format!("{key}!={first}"),
            2 => format!("{key} in ({all})"),
            3 => format!("{key} notin ({all})"),
            4 => key.clone(),
            _ => format!("!{key}"),
        }
    }

    fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        let first = self.values.first();
        match self.what {
            0 => value.is_some() && value == first,
            1 => value != first,
            2 => value.is_some_and(|value| self.values.contains(value)),
            3 => value.is_none_or(|value| !self.values.contains(value)),
            4 => value.is_some(),
            _ => value.is_none(),
        }
    }
}

type Labels = BTreeMap<String, String>;

fn labels() -> impl Strategy<Value = Labels> {
    prop::collection::btree_map("[ab]", "[xyz]", 0..3)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2048) })]

    #[test]
    fn a_label_selector_means_what_it_says(requirements in prop::collection::vec(requirement(), 0..4), labels in labels()) {
        let text: Vec<String> = requirements.iter().map(Requirement::text).collect();
        let selector = LabelSelector::parse(&text.join(",")).unwrap();
        let expected = requirements.iter().all(|requirement| requirement.holds(&labels));
        prop_assert_eq!(selector.matches(|key| labels.get(key).map(String::as_str)), expected, "{}", selector);
    }
}

/// An event between two reads of a watch.
#[derive(Debug, Clone)]
enum Act {
    Put(u8, Labels),
    Delete(u8),
    /// The watch breaks after this many events, and is resumed at its version.
    Break(usize),
    /// The history is compacted: the client must list again.
    Compact,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0..5_u8, labels()).prop_map(|(name, labels)| Act::Put(name, labels)),
        2 => (0..5_u8).prop_map(Act::Delete),
        3 => (0..4_usize).prop_map(Act::Break),
        1 => Just(Act::Compact),
    ]
}

/// A client that keeps a copy by list and watch, as a reflector does.
struct Follower<'a> {
    server: &'a ApiServer,
    selector: String,
    copy: BTreeMap<String, Value>,
    version: String,
    watch: Option<Lines>,
}

impl Follower<'_> {
    async fn list(&mut self) {
        let list = support::get(
            self.server,
            &format!("{MAPS}?labelSelector={}", self.selector),
        )
        .await;
        let items = list.at("/items");
        let items = items.as_array().unwrap().iter();
        self.copy = items
            .map(|item| {
                (
                    item["metadata"]["name"].to_string(),
                    item["metadata"].clone(),
                )
            })
            .collect();
        list.at("/metadata/resourceVersion")
            .as_str()
            .unwrap()
            .clone_into(&mut self.version);
        self.watch = None;
    }

    async fn open(&mut self) {
        let (selector, version) = (&self.selector, &self.version);
        let query = format!("watch=1&timeoutSeconds=1&resourceVersion={version}");
        let path = format!("{MAPS}?{query}&labelSelector={selector}");
        self.watch = Some(Lines::open(self.server, &path).await);
    }

    /// Applies up to `most` events; with paused time, an idle watch ends at once.
    async fn follow(&mut self, most: usize) {
        if self.watch.is_none() {
            self.open().await;
        }
        let mut watch = self.watch.take().unwrap();
        for _ in 0..most {
            let Some(event) = watch.next().await else {
                break;
            };
            let object = event["object"].clone();
            if event["type"] == "ERROR" {
                assert_eq!(object["code"], 410, "{object}");
                self.list().await;
                return;
            }
            object["metadata"]["resourceVersion"]
                .as_str()
                .unwrap()
                .clone_into(&mut self.version);
            let name = object["metadata"]["name"].to_string();
            let known = match event["type"].as_str().unwrap() {
                "DELETED" => self.copy.remove(&name),
                _ => self.copy.insert(name.clone(), object["metadata"].clone()),
            };
            let new = event["type"] == "ADDED";
            assert_eq!(known.is_none(), new, "{} of {name}", event["type"]);
        }
    }
}

/// A selector, escaped for a query.
fn escaped(text: &str) -> String {
    text.replace(' ', "%20")
        .replace('=', "%3D")
        .replace('!', "%21")
}

async fn put(server: &ApiServer, name: u8, labels: &Labels) {
    let mut map = config_map(&format!("m{name}"));
    map["metadata"]["labels"] = json!(labels);
    if support::post(server, MAPS, &map).await.status.as_u16() == 409 {
        support::put(server, &format!("{MAPS}/m{name}"), &map).await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn replaying_a_watch_yields_the_list(requirement in requirement(), acts in prop::collection::vec(act(), 1..40)) {
        paused_runtime().block_on(async {
            let server = ApiServer::builder().build();
            let selector = escaped(&requirement.text());
            let mut follower = Follower { server: &server, selector, copy: BTreeMap::new(), version: String::new(), watch: None };
            follower.list().await;
            follower.open().await;
            for act in &acts {
                match act {
                    Act::Put(name, labels) => put(&server, *name, labels).await,
                    Act::Delete(name) => drop(support::delete(&server, &format!("{MAPS}/m{name}")).await),
                    Act::Break(most) => follower.follow(*most).await,
                    Act::Compact => {
                        follower.watch = None;
                        server.faults().compact();
                    }
                }
            }
            // Twice, since the first watch may end with a 410.
            follower.follow(usize::MAX).await;
            follower.follow(usize::MAX).await;
            let replayed = std::mem::take(&mut follower.copy);
            follower.list().await;
            prop_assert_eq!(replayed, follower.copy);
            Ok(())
        })?;
    }
}

fn paused_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
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
            // The magic of protobuf makes the decoder read further.
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
