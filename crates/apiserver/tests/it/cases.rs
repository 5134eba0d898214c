//! Data-driven tests: requests with the answers of a real kube-apiserver.
//!
//! Each file of `cases/` covers one area; each case is a list of steps in a namespace of its own. The
//! cases run against this server in process or, if `WEFT_TEST_KUBECONFIG` names a kubeconfig, against
//! that server, where they must pass as well.
//!
//! A case in which this server differs on purpose says why. It must pass on the real server and fail on
//! this one; `docs/apiserver.md` lists these cases.

use std::{collections::BTreeMap, time::Duration};

use futures::StreamExt as _;
use http::Request;
use http_body_util::BodyExt as _;
use serde::Deserialize;
use serde_json::{Value, json};
use weft_apiserver::{ApiServer, AuthorizationMode, User};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    #[serde(rename = "case")]
    name: String,
    /// The reason for an allowed difference of this server.
    #[serde(default)]
    differs: Option<String>,
    /// RBAC rules of bob, in every namespace.
    #[serde(default)]
    rights: Option<Value>,
    steps: Vec<Step>,
}

/// One request and the expectations on its answer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    /// Method and target; `{name}` is replaced by a variable.
    r#do: String,
    /// The Content-Type, or a short name of one.
    #[serde(default)]
    r#as: Option<String>,
    #[serde(default)]
    accept: Option<String>,
    /// The sender.
    #[serde(default)]
    by: By,
    /// Request headers.
    #[serde(default)]
    with: BTreeMap<String, String>,
    /// Request headers whose values are hexadecimal bytes.
    #[serde(default)]
    with_bytes: BTreeMap<String, String>,
    #[serde(default)]
    body: Option<Value>,
    /// A body that is not JSON.
    #[serde(default)]
    raw: Option<String>,
    /// The expected status code.
    is: u16,
    /// Expected values by JSON pointer; `~text` must be contained, `*` matches any value.
    #[serde(default)]
    has: BTreeMap<String, Value>,
    /// JSON pointers that must have no value.
    #[serde(default)]
    lacks: Vec<String>,
    /// Variables to set from the answer.
    #[serde(default)]
    keep: BTreeMap<String, String>,
    /// The expected body as text.
    #[serde(default)]
    text: Option<String>,
    /// Expected response headers.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// The events of a watch, as `TYPE name`; bookmarks in between are ignored.
    #[serde(default)]
    events: Option<Vec<String>>,
    /// Repeats the request until the answer fits, for asynchronous effects.
    #[serde(default)]
    until: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum By {
    #[default]
    Admin,
    /// The user `bob-{ns}` with the rights of the case.
    Bob,
    /// Without credentials, except in headers.
    Anonymous,
}

const FILES: &[(&str, &str)] = &[
    ("admission", include_str!("cases/admission.yaml")),
    ("apply", include_str!("cases/apply.yaml")),
    ("auth", include_str!("cases/auth.yaml")),
    ("custom", include_str!("cases/custom.yaml")),
    ("delete", include_str!("cases/delete.yaml")),
    ("discovery", include_str!("cases/discovery.yaml")),
    ("dry_run", include_str!("cases/dry_run.yaml")),
    ("errors", include_str!("cases/errors.yaml")),
    ("list", include_str!("cases/list.yaml")),
    ("patch", include_str!("cases/patch.yaml")),
    ("rights", include_str!("cases/rights.yaml")),
    ("rules", include_str!("cases/rules.yaml")),
    ("selectors", include_str!("cases/selectors.yaml")),
    ("services", include_str!("cases/services.yaml")),
    ("slices", include_str!("cases/slices.yaml")),
    ("status", include_str!("cases/status.yaml")),
    ("tables", include_str!("cases/tables.yaml")),
    ("transport", include_str!("cases/transport.yaml")),
    ("watch", include_str!("cases/watch.yaml")),
];

fn load() -> Vec<(String, Case)> {
    let mut all = Vec::new();
    for (file, text) in FILES {
        let cases: Vec<Case> =
            serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{file}.yaml: {error}"));
        all.extend(
            cases
                .into_iter()
                .map(|case| (format!("{file}: {}", case.name), case)),
        );
    }
    all
}

#[test]
fn there_are_enough_cases_and_each_is_named_once() {
    let cases = load();
    assert!(cases.len() >= 450, "{} cases", cases.len());
    let names: std::collections::BTreeSet<&String> = cases.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), cases.len());
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/cases")).unwrap();
    assert_eq!(
        files.count(),
        FILES.len(),
        "a file of cases is not in the list"
    );
}

#[test]
fn every_allowed_difference_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/apiserver.md");
    let documentation = std::fs::read_to_string(path).unwrap();
    for (name, case) in load() {
        let row = format!("| {name} |");
        let listed = documentation.lines().any(|line| line.starts_with(&row));
        assert_eq!(listed, case.differs.is_some(), "{row}");
    }
}

#[tokio::test]
async fn the_server_answers_every_case_as_a_real_one_does() {
    let server = ApiServer::builder()
        .authorization_mode(AuthorizationMode::Rbac)
        .build();
    let kubeconfig = std::env::var_os("WEFT_TEST_KUBECONFIG");
    let is_real = kubeconfig.is_some();
    let clients = match kubeconfig {
        None => Clients {
            admin: server.client(),
            anonymous: server.client_as(User::anonymous()),
        },
        Some(path) => {
            let text = kube::config::Kubeconfig::read_from(path).unwrap();
            let options = kube::config::KubeConfigOptions::default();
            let mut config = kube::Config::from_custom_kubeconfig(text, &options)
                .await
                .unwrap();
            // Some cases expect a 504, which must not be retried.
            config.default_retry = false;
            let mut nobody = config.clone();
            nobody.auth_info = kube::config::AuthInfo::default();
            Clients {
                admin: kube::Client::try_from(config).unwrap(),
                anonymous: kube::Client::try_from(nobody).unwrap(),
            }
        }
    };
    let only = std::env::var("WEFT_TEST_CASE").unwrap_or_default();
    let run = std::process::id();
    let cases = load()
        .into_iter()
        .enumerate()
        .filter(|(_, (name, _))| name.contains(&only));
    // Many cases wait for a watch to time out, so they run concurrently.
    let outcomes: Vec<Option<String>> = futures::stream::iter(cases)
        .map(|(number, (name, case))| {
            let clients = &clients;
            async move {
                let mut player = Player::new(clients, format!("case-{run}-{number}")).await;
                let outcome = match &case.rights {
                    Some(rules) => player.grant(rules).await,
                    None => Ok(()),
                };
                let outcome = match outcome {
                    Ok(()) => player.play(&case).await,
                    failed => failed,
                };
                player.clean_up(case.rights.is_some()).await;
                let complaint = match (outcome, &case.differs) {
                    (Ok(()), Some(_)) if !is_real => "the difference is gone".to_owned(),
                    (Err(_), Some(_)) if !is_real => return None,
                    (Ok(()), _) => return None,
                    (Err(complaint), _) => complaint,
                };
                Some(format!("{name}\n    {complaint}"))
            }
        })
        .buffer_unordered(16)
        .collect()
        .await;
    let count = outcomes.len();
    let failures: Vec<String> = outcomes.into_iter().flatten().collect();
    assert!(
        failures.is_empty(),
        "{} of {count} failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Clients of the server under test.
struct Clients {
    admin: kube::Client,
    anonymous: kube::Client,
}

/// Runs one case.
struct Player<'a> {
    clients: &'a Clients,
    variables: BTreeMap<String, String>,
}

/// A complete answer.
struct Answer {
    status: u16,
    headers: http::HeaderMap,
    text: String,
}

impl<'a> Player<'a> {
    async fn new(clients: &'a Clients, id: String) -> Self {
        let mut variables = BTreeMap::new();
        let namespaced = |group: &str, plural: &str| format!("{group}/namespaces/{id}/{plural}");
        for (name, group, plural) in [
            ("maps", "/api/v1", "configmaps"),
            ("secrets", "/api/v1", "secrets"),
            ("pods", "/api/v1", "pods"),
            ("services", "/api/v1", "services"),
            ("events", "/api/v1", "events"),
            ("newevents", "/apis/events.k8s.io/v1", "events"),
            ("accounts", "/api/v1", "serviceaccounts"),
            ("deployments", "/apis/apps/v1", "deployments"),
            ("leases", "/apis/coordination.k8s.io/v1", "leases"),
            ("slices", "/apis/discovery.k8s.io/v1", "endpointslices"),
            ("policies", "/apis/networking.k8s.io/v1", "networkpolicies"),
            ("roles", RBAC, "roles"),
            ("bindings", RBAC, "rolebindings"),
        ] {
            variables.insert(name.to_owned(), namespaced(group, plural));
        }
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        variables.insert("definitions".to_owned(), definitions.to_owned());
        for kind in ["clusterroles", "clusterrolebindings"] {
            variables.insert(kind.to_owned(), format!("{RBAC}/{kind}"));
        }
        variables.insert("ns".to_owned(), id);
        let player = Self { clients, variables };
        let step: Step = serde_json::from_value(json!({
            "do": "POST /api/v1/namespaces", "body": {"metadata": {"name": "{ns}"}}, "is": 201,
        }))
        .unwrap();
        player.send(&step).await.unwrap();
        player
    }

    /// Grants bob his rights, and waits until they are effective.
    async fn grant(&mut self, rules: &Value) -> Result<(), String> {
        let mut rules = rules.as_array().cloned().unwrap_or_default();
        let mark = json!({"verbs": ["notice"], "apiGroups": ["weft.dev"], "resources": ["rights"]});
        rules.push(mark);
        let review = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let steps = json!([
            {"do": "POST {clusterroles}", "is": 201,
             "body": {"metadata": {"name": "{ns}"}, "rules": rules}},
            {"do": "POST {clusterrolebindings}", "is": 201, "body": {
                "metadata": {"name": "{ns}"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                            "name": "{ns}"},
                "subjects": [{"kind": "User", "name": "bob-{ns}"}],
            }},
            {"do": format!("POST {review}"), "is": 201, "until": true,
             "has": {"/status/allowed": true}, "body": {"spec": {"user": "bob-{ns}",
             "resourceAttributes": {"verb": "notice", "group": "weft.dev", "resource": "rights"}}}},
        ]);
        let case = json!({"case": "rights", "steps": steps});
        self.play(&serde_json::from_value(case).unwrap()).await
    }

    async fn clean_up(&self, has_rights: bool) {
        if has_rights {
            for path in ["{clusterrolebindings}/{ns}", "{clusterroles}/{ns}"] {
                let step = json!({"do": format!("DELETE {path}"), "is": 200});
                let _ = self.send(&serde_json::from_value(step).unwrap()).await;
            }
        }
        let step = json!({"do": "DELETE /api/v1/namespaces/{ns}", "is": 200});
        let _ = self.send(&serde_json::from_value(step).unwrap()).await;
    }

    fn fill(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, value) in &self.variables {
            text = text.replace(&format!("{{{name}}}"), value);
        }
        text
    }

    async fn play(&mut self, case: &Case) -> Result<(), String> {
        for (position, step) in case.steps.iter().enumerate() {
            // The real server remembers a token that was valid for ten seconds.
            let mut tries = if step.until { 400 } else { 1 };
            loop {
                tries -= 1;
                let answer = self.send(step).await?;
                match self.check(step, &answer) {
                    Ok(()) => break,
                    Err(_) if tries > 0 => tokio::time::sleep(Duration::from_millis(50)).await,
                    Err(complaint) => {
                        let shown: String = answer.text.chars().take(600).collect();
                        let what = &step.r#do;
                        return Err(format!(
                            "step {position} ({what}): {complaint}\n    {shown}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    async fn send(&self, step: &Step) -> Result<Answer, String> {
        let line = self.fill(&step.r#do);
        let (method, target) = line.split_once(' ').ok_or("no method")?;
        let kind = match step.r#as.as_deref() {
            Some("merge") => "application/merge-patch+json",
            Some("json-patch") => "application/json-patch+json",
            Some("strategic") => "application/strategic-merge-patch+json",
            Some("apply") => "application/apply-patch+yaml",
            Some("yaml") => "application/yaml",
            Some(kind) => kind,
            None => "application/json",
        };
        let body = match (&step.body, &step.raw) {
            (Some(body), _) => self.fill(&body.to_string()),
            (None, Some(raw)) => self.fill(raw),
            (None, None) => String::new(),
        };
        let mut request = Request::builder().method(method).uri(target);
        if !body.is_empty() && !kind.is_empty() {
            request = request.header("content-type", kind);
        }
        if let Some(accept) = &step.accept {
            request = request.header("accept", accept);
        }
        for (name, value) in &step.with {
            request = request.header(name, self.fill(value));
        }
        for (name, digits) in &step.with_bytes {
            request = request.header(name, bytes_of(digits)?);
        }
        if step.by == By::Bob {
            request = request.header("impersonate-user", self.fill("bob-{ns}"));
        }
        let request = request.body(kube::client::Body::from(body.into_bytes()));
        let request = request.map_err(|error| error.to_string())?;
        let client = match step.by {
            By::Anonymous => &self.clients.anonymous,
            By::Admin | By::Bob => &self.clients.admin,
        };
        let response = client
            .send(request)
            .await
            .map_err(|error| error.to_string())?;
        let (parts, body) = response.into_parts();
        let bytes = body
            .collect()
            .await
            .map_err(|error| error.to_string())?
            .to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            text,
        })
    }

    fn check(&mut self, step: &Step, answer: &Answer) -> Result<(), String> {
        if answer.status != step.is {
            return Err(format!("status {} instead of {}", answer.status, step.is));
        }
        if let Some(text) = &step.text
            && self.fill(text) != answer.text
        {
            return Err(format!("body {:?} instead of {text:?}", answer.text));
        }
        for (name, wanted) in &step.headers {
            let found = answer
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok());
            if !found.is_some_and(|found| fits(&json!(self.fill(wanted)), &json!(found))) {
                return Err(format!("header {name}: {found:?} instead of {wanted:?}"));
            }
        }
        if let Some(events) = &step.events {
            let found: Vec<String> = answer
                .text
                .lines()
                .map(event)
                .filter(|event| event != "BOOKMARK")
                .collect();
            if &found != events {
                return Err(format!("events {found:?} instead of {events:?}"));
            }
        }
        let body: Value = serde_json::from_str(&answer.text).unwrap_or_default();
        for (pointer, wanted) in &step.has {
            let wanted: Value = serde_json::from_str(&self.fill(&wanted.to_string())).unwrap();
            let found = body.pointer(pointer);
            if !found.is_some_and(|found| fits(&wanted, found)) {
                return Err(format!("{pointer} is {found:?} instead of {wanted}"));
            }
        }
        for pointer in &step.lacks {
            if let Some(found) = body.pointer(pointer) {
                return Err(format!("{pointer} is {found} but should be absent"));
            }
        }
        for (name, pointer) in &step.keep {
            let found = body
                .pointer(pointer)
                .ok_or(format!("nothing at {pointer} to keep"))?;
            let text = found
                .as_str()
                .map_or_else(|| found.to_string(), str::to_owned);
            self.variables.insert(name.clone(), text);
        }
        Ok(())
    }
}

/// Decodes hexadecimal digits.
fn bytes_of(digits: &str) -> Result<Vec<u8>, String> {
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| {
            let pair = std::str::from_utf8(pair).map_err(|error| error.to_string())?;
            u8::from_str_radix(pair, 16).map_err(|error| error.to_string())
        })
        .collect()
}

fn fits(wanted: &Value, found: &Value) -> bool {
    match wanted {
        Value::String(text) if text == "*" => true,
        Value::String(text) => match text.strip_prefix('~') {
            Some(part) => found.as_str().is_some_and(|found| found.contains(part)),
            None => wanted == found,
        },
        _ => wanted == found,
    }
}

fn event(line: &str) -> String {
    let event: Value = serde_json::from_str(line).unwrap_or_default();
    let text = |pointer: &str| {
        event
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let name = match text("/type") {
        "ERROR" => event
            .pointer("/object/code")
            .map(ToString::to_string)
            .unwrap_or_default(),
        "BOOKMARK" => {
            match event.pointer("/object/metadata/annotations/k8s.io~1initial-events-end") {
                Some(_) => "end".to_owned(),
                None => String::new(),
            }
        }
        _ => text("/object/metadata/name").to_owned(),
    };
    format!("{} {name}", text("/type")).trim_end().to_owned()
}
