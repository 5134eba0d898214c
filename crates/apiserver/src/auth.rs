//! Authentication and authorization of requests.

mod account_token;
mod escalation;
mod impersonation;
mod policy_rule;
mod rbac;
mod signing_key;
mod token_file;

use std::collections::{BTreeMap, HashMap};

use http::{HeaderMap, HeaderValue, header};
use serde_json::{Value, json};
use weft_model::FieldSelector;

pub use account_token::DEFAULT_ISSUER;
pub(crate) use account_token::{BoundKind, Rejection, TokenIssuer, TokenRequest, Verified};
pub(crate) use escalation::check as check_escalation;
pub use signing_key::{SigningKey, SigningKeyError};
pub use token_file::TokenFileError;
pub(crate) use token_file::read_tokens;

use crate::{
    api::{Api, Context},
    query::Query,
    request::{RequestInfo, Verb},
    status::{ApiError, Outcome},
    store::Store,
};

/// Members of this group are allowed everything.
pub(crate) const MASTERS: &str = "system:masters";
const AUTHENTICATED: &str = "system:authenticated";
const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// An authenticated identity, as in Kubernetes' `UserInfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The user name, for example `system:serviceaccount:default:robot`.
    pub name: String,
    /// Distinguishes users that had the same name at different times; empty when unknown.
    pub uid: String,
    /// Group names.
    pub groups: Vec<String>,
    /// Further attributes, such as the node of the pod whose token was used.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// A user of these groups and of `system:authenticated`.
    pub fn new<'a>(name: &str, groups: impl IntoIterator<Item = &'a str>) -> Self {
        let mut groups: Vec<String> = groups.into_iter().map(str::to_owned).collect();
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        Self {
            name: name.to_owned(),
            uid: String::new(),
            groups,
            extra: BTreeMap::new(),
        }
    }

    /// Adds a value to an extra attribute.
    #[must_use]
    pub fn with_extra(mut self, key: &str, value: &str) -> Self {
        let values = self.extra.entry(key.to_owned()).or_default();
        values.push(value.to_owned());
        self
    }

    /// The `UserInfo` of reviews and admission; empty fields are absent.
    pub(crate) fn to_info(&self) -> Value {
        let mut info = json!({"username": self.name, "groups": self.groups});
        if !self.uid.is_empty() {
            info["uid"] = self.uid.as_str().into();
        }
        if !self.extra.is_empty() {
            info["extra"] = json!(self.extra);
        }
        info
    }

    /// The user of the in-process client and of generated kubeconfigs.
    pub fn admin() -> Self {
        Self::new("kubernetes-admin", [MASTERS])
    }

    /// The user `system:anonymous`, of requests without credentials.
    pub fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.to_owned(),
            uid: String::new(),
            groups: vec![UNAUTHENTICATED.to_owned()],
            extra: BTreeMap::new(),
        }
    }

    /// The identity of a ServiceAccount.
    pub(crate) fn service_account(namespace: &str, name: &str) -> Self {
        let everyone = "system:serviceaccounts";
        let local = format!("{everyone}:{namespace}");
        Self::new(
            &format!("system:serviceaccount:{namespace}:{name}"),
            [everyone, &local],
        )
    }

    pub(crate) fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|known| known == group)
    }
}

/// Authenticates requests by client certificate or bearer token.
#[derive(Debug)]
pub(crate) struct Authenticator {
    /// Users by static token.
    tokens: HashMap<String, User>,
    pub(crate) accounts: TokenIssuer,
}

impl Authenticator {
    pub(crate) fn new(
        tokens: impl IntoIterator<Item = (String, User)>,
        accounts: TokenIssuer,
    ) -> Self {
        Self {
            tokens: tokens.into_iter().collect(),
            accounts,
        }
    }

    /// Verifies a token for one of these audiences.
    pub(crate) fn verify(
        &self,
        api: &Api,
        token: &str,
        wanted: &[String],
    ) -> Result<Verified, Rejection> {
        if let Some(user) = self.tokens.get(token) {
            // Static tokens have no audience: they are valid for the server's own.
            let own = self.accounts.audiences();
            let audiences: Vec<String> = own.into_iter().filter(|a| wanted.contains(a)).collect();
            let user = user.clone();
            return if audiences.is_empty() {
                Err(Rejection::Foreign)
            } else {
                Ok(Verified { user, audiences })
            };
        }
        self.accounts.verify(api, token, wanted)
    }

    /// The identity of the connection, else that of a bearer token, else anonymous.
    pub(crate) fn authenticate(
        &self,
        api: &Api,
        headers: &HeaderMap,
        identity: Option<User>,
    ) -> Outcome<User> {
        if let Some(user) = identity {
            return Ok(user);
        }
        let Some(token) = headers.get(header::AUTHORIZATION).and_then(bearer) else {
            return Ok(User::anonymous());
        };
        // No token contains bytes that are not UTF-8.
        let token = std::str::from_utf8(token).map_err(|_| ApiError::unauthorized())?;
        match self.verify(api, token, &self.accounts.audiences()) {
            Ok(verified) => Ok(verified.user),
            Err(rejection) => {
                tracing::debug!(?rejection, "token refused");
                Err(ApiError::unauthorized())
            }
        }
    }
}

/// The token of an `Authorization` header; `None` for other schemes and an empty token.
fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let value = value.as_bytes().trim_ascii();
    let mut parts = value.splitn(3, |byte| *byte == b' ');
    let scheme = parts.next()?;
    let token = parts.next().filter(|token| !token.is_empty())?;
    scheme.eq_ignore_ascii_case(b"bearer").then_some(token)
}

/// Texts as Go's `%q` prints a slice.
fn go_list<T: AsRef<str>>(texts: &[T]) -> String {
    let texts: Vec<String> = texts
        .iter()
        .map(|text| format!("{:?}", text.as_ref()))
        .collect();
    format!("[{}]", texts.join(" "))
}

/// Authorization mode of a server, as kube-apiserver's `--authorization-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AuthorizationMode {
    /// Every request is allowed.
    #[default]
    AlwaysAllow,
    /// Roles and bindings decide; without a match a request is refused.
    Rbac,
}

/// Authorises requests by the server's mode.
#[derive(Debug, Default)]
pub(crate) struct Authorizer {
    pub(crate) mode: AuthorizationMode,
    index: rbac::Index,
}

/// Attributes of a request that authorization decides on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) verb: String,
    pub(crate) group: String,
    /// The plural with its subresource: `pods` or `pods/status`.
    pub(crate) resource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The path of a non-resource request; `None` for resources.
    pub(crate) path: Option<String>,
}

impl Attributes {
    fn of_request(info: &RequestInfo) -> Self {
        let resource = match info.subresource.as_str() {
            "" => info.resource.clone(),
            subresource => format!("{}/{subresource}", info.resource),
        };
        Self {
            verb: verb_name(info),
            group: info.group.clone(),
            resource,
            // As upstream: the namespace of a Namespace object is its own name.
            namespace: match info.resource.as_str() {
                "namespaces" if info.group.is_empty() => info.name.clone(),
                _ => info.namespace.clone(),
            },
            name: selected_name(info),
            path: (!info.is_resource()).then(|| info.path.clone()),
        }
    }

    /// The attributes of a SubjectAccessReview.
    pub(crate) fn of_review(review: &crate::store::Object) -> Self {
        let text = |part: &str, name: &str| {
            let value = crate::meta::Meta::at(review, &["spec", part, name]);
            value
                .and_then(serde_json::Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let asked = |name: &str| text("resourceAttributes", name);
        let path = text("nonResourceAttributes", "path");
        if !path.is_empty() {
            let verb = text("nonResourceAttributes", "verb");
            return Self {
                verb,
                path: Some(path),
                ..Self::default()
            };
        }
        let resource = match asked("subresource").as_str() {
            "" => asked("resource"),
            subresource => format!("{}/{subresource}", asked("resource")),
        };
        Self {
            verb: asked("verb"),
            group: asked("group"),
            resource,
            namespace: asked("namespace"),
            name: asked("name"),
            path: None,
        }
    }
}

/// The RBAC verb: for non-resource requests the method in lower case.
fn verb_name(info: &RequestInfo) -> String {
    match info.verb {
        Verb::NonResource => info.method.as_str().to_ascii_lowercase(),
        verb => verb.name().to_owned(),
    }
}

/// The name to authorise; a collection request with a `metadata.name` selector counts as a request
/// for that object.
fn selected_name(info: &RequestInfo) -> String {
    let collection = matches!(info.verb, Verb::List | Verb::Watch | Verb::DeleteCollection);
    if !collection || !info.name.is_empty() {
        return info.name.clone();
    }
    let query = Query::parse(&info.query);
    let selector = query.get("fieldSelector").map(FieldSelector::parse);
    selector
        .and_then(Result::ok)
        .and_then(|selector| selector.required("metadata.name").map(str::to_owned))
        .unwrap_or_default()
}

impl Authorizer {
    pub(crate) fn new(mode: AuthorizationMode) -> Self {
        let index = rbac::Index::default();
        Self { mode, index }
    }

    /// Refreshes the RBAC index after a write of a role or binding, so that no later request pays
    /// for it.
    pub(crate) fn written(&self, store: &Store, group: &str) {
        if self.mode == AuthorizationMode::Rbac && group == rbac::GROUP {
            drop(self.index.read(store));
        }
    }

    pub(crate) fn authorize(&self, api: &Api, info: &RequestInfo, user: &User) -> Outcome<()> {
        match self.decide(api, user, &Attributes::of_request(info)) {
            Some(_) => Ok(()),
            None => Err(refusal(api, info, user)),
        }
    }

    /// The reason to allow a request; `None` refuses it.
    pub(crate) fn decide(&self, api: &Api, user: &User, wanted: &Attributes) -> Option<String> {
        match self.mode {
            AuthorizationMode::AlwaysAllow => Some(String::new()),
            AuthorizationMode::Rbac if user.is_in(MASTERS) => Some(String::new()),
            AuthorizationMode::Rbac => rbac::decide(api, user, wanted),
        }
    }

    /// The status of a SelfSubjectRulesReview.
    pub(crate) fn rules_for(&self, api: &Api, user: &User, review: &crate::store::Object) -> Value {
        let namespace = crate::meta::Meta::at(review, &["spec", "namespace"]);
        let namespace = namespace.and_then(Value::as_str).unwrap_or_default();
        match self.mode {
            AuthorizationMode::Rbac if !user.is_in(MASTERS) => rbac::rules(api, user, namespace),
            _ => json!({
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                "incomplete": false,
            }),
        }
    }

    /// Authorises the creation of an object that an update or an apply did not find.
    pub(crate) fn authorize_creation(&self, api: &Api, context: &Context) -> Outcome<()> {
        let creation = RequestInfo {
            verb: Verb::Create,
            ..context.info.clone()
        };
        self.authorize(api, &creation, &context.user)
    }

    /// The user after impersonation headers; refused unless the user has all needed rights.
    pub(crate) fn impersonate(&self, api: &Api, headers: &HeaderMap, user: &User) -> Outcome<User> {
        let Some(identity) = impersonation::RequestedIdentity::read(headers)? else {
            return Ok(user.clone());
        };
        for wanted in identity.rights() {
            if self.decide(api, user, &wanted).is_none() {
                return Err(impersonation::refusal(user, &wanted));
            }
        }
        Ok(identity.user())
    }
}

/// 403 with upstream's message.
pub(crate) fn refusal(api: &Api, info: &RequestInfo, user: &User) -> ApiError {
    let verb = verb_name(info);
    if !info.is_resource() {
        let text = format!(
            "forbidden: User {:?} cannot {verb} path {:?}",
            user.name, info.path
        );
        return ApiError::forbidden_path(text);
    }
    let Attributes { resource, .. } = Attributes::of_request(info);
    let scope = match info.namespace.as_str() {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let detail = format!(
        "User {:?} cannot {verb} resource {resource:?} in API group {:?} {scope}",
        user.name, info.group
    );
    let served = api.registry.served();
    match served.find(&info.group, &info.version, &info.resource) {
        Some(kind) => ApiError::forbidden(kind, &info.name, &detail),
        None => ApiError::forbidden_path(format!("{resource} is forbidden: {detail}")),
    }
}
