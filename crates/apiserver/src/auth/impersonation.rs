//! Impersonation headers: each part of the requested identity needs its own right.
//!
//! A header that cannot be parsed is refused: ignoring it would run the request with the rights of
//! its sender.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{ANONYMOUS, AUTHENTICATED, Attributes, UNAUTHENTICATED, User};
use crate::{
    query,
    status::{ApiError, Outcome},
};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA_PREFIX: &str = "impersonate-extra-";
const AUTHENTICATION: &str = "authentication.k8s.io";

/// The identity that the `Impersonate-*` headers name.
#[derive(Debug)]
pub(super) struct RequestedIdentity<'a> {
    name: &'a str,
    groups: Vec<&'a str>,
    uid: Option<&'a str>,
    /// Keys and values.
    extra: Vec<(String, &'a str)>,
}

impl<'a> RequestedIdentity<'a> {
    /// Reads the headers; `None` without any.
    pub(super) fn read(headers: &'a HeaderMap) -> Outcome<Option<Self>> {
        let (mut users, mut groups, mut uids) = (Vec::new(), Vec::new(), Vec::new());
        let mut extra = Vec::new();
        for (name, value) in headers {
            match name.as_str() {
                USER => users.push(text(name, value)?),
                GROUP => groups.push(text(name, value)?),
                UID => uids.push(text(name, value)?),
                other => {
                    if let Some(key) = other.strip_prefix(EXTRA_PREFIX) {
                        extra.push((unescaped(name, key)?, text(name, value)?));
                    }
                }
            }
        }
        let uid = uids.first().copied().filter(|uid| !uid.is_empty());
        match users.first() {
            // Upstream ignores an empty header and continues as the sender.
            Some(&"") => Err(ApiError::bad_request(format!("header {USER} is empty"))),
            Some(name) => Ok(Some(Self {
                name,
                groups,
                uid,
                extra,
            })),
            None if groups.is_empty() && uids.is_empty() && extra.is_empty() => Ok(None),
            None => {
                let identity = Self {
                    name: "",
                    groups,
                    uid,
                    extra,
                };
                let shown = identity.go_dump();
                Err(ApiError::bad_request(format!(
                    "requested {shown} without impersonating a user name"
                )))
            }
        }
    }

    /// The identity as Go's `%#v` prints it, for upstream's message.
    fn go_dump(&self) -> String {
        let list = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| format!("{text:?}")).collect();
            format!("[]string{{{}}}", texts.join(", "))
        };
        let groups = match &self.groups[..] {
            [] => "[]string(nil)".to_owned(),
            groups => list(groups),
        };
        let mut fields: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (key, value) in &self.extra {
            fields.entry(key).or_default().push(value);
        }
        let pair = |(key, values): (&&str, &Vec<&str>)| format!("{key:?}:{}", list(values));
        let pairs: Vec<String> = fields.iter().map(pair).collect();
        let extra = if pairs.is_empty() {
            "(nil)".to_owned()
        } else {
            format!("{{{}}}", pairs.join(", "))
        };
        format!(
            "&user.DefaultInfo{{Name:{:?}, UID:{:?}, Groups:{groups}, \
             Extra:map[string][]string{extra}}}",
            self.name,
            self.uid.unwrap_or_default()
        )
    }

    /// The rights needed to impersonate this identity.
    pub(super) fn rights(&self) -> Vec<Attributes> {
        let right = |group: &str, resource: &str, namespace: &str, name: &str| Attributes {
            verb: "impersonate".to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            path: None,
        };
        let mut rights = vec![match self.service_account() {
            Some((namespace, name)) => right("", "serviceaccounts", namespace, name),
            None => right("", "users", "", self.name),
        }];
        rights.extend(self.groups.iter().map(|name| right("", "groups", "", name)));
        rights.extend(self.uid.map(|uid| right(AUTHENTICATION, "uids", "", uid)));
        rights.extend(
            self.extra
                .iter()
                .map(|(key, value)| right(AUTHENTICATION, &format!("userextras/{key}"), "", value)),
        );
        rights
    }

    fn service_account(&self) -> Option<(&'a str, &'a str)> {
        let rest = self.name.strip_prefix("system:serviceaccount:")?;
        let (namespace, name) = rest.split_once(':')?;
        let is_name = |text: &str| {
            let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            let inner = |byte: u8| fits(byte) || byte == b'-' || byte == b'.';
            text.bytes().all(inner)
                && text.bytes().next().is_some_and(fits)
                && text.bytes().last().is_some_and(fits)
        };
        (is_name(namespace) && is_name(name)).then_some((namespace, name))
    }

    /// The impersonated user, with the groups that Kubernetes adds by itself.
    pub(super) fn user(&self) -> User {
        let mut groups: Vec<String> = self.groups.iter().copied().map(str::to_owned).collect();
        if let Some((namespace, name)) = self.service_account()
            && groups.is_empty()
        {
            groups = User::service_account(namespace, name).groups;
        }
        let has = |group: &str| groups.iter().any(|known| known == group);
        if self.name == ANONYMOUS {
            if !has(UNAUTHENTICATED) {
                groups.push(UNAUTHENTICATED.to_owned());
            }
        } else if !has(AUTHENTICATED) && !has(UNAUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (key, value) in &self.extra {
            let values = extra.entry(key.clone()).or_default();
            values.push((*value).to_owned());
        }
        User {
            name: self.name.to_owned(),
            uid: self.uid.unwrap_or_default().to_owned(),
            groups,
            extra,
        }
    }
}

/// The value of a header; as upstream, any UTF-8 is accepted.
fn text<'a>(name: &HeaderName, value: &'a HeaderValue) -> Outcome<&'a str> {
    std::str::from_utf8(value.as_bytes())
        .map_err(|_| ApiError::bad_request(format!("header {name} is not UTF-8")))
}

/// The key of an extra field, percent-encoded in the name of its header.
fn unescaped(name: &HeaderName, key: &str) -> Outcome<String> {
    let key = query::decode(key);
    if key.contains(char::REPLACEMENT_CHARACTER) {
        return Err(ApiError::bad_request(format!("header {name} is not UTF-8")));
    }
    Ok(key)
}

/// 403 with upstream's message.
pub(super) fn refusal(user: &User, wanted: &Attributes) -> ApiError {
    let scope = match wanted.namespace.as_str() {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let suffix = match wanted.group.as_str() {
        "" => String::new(),
        group => format!(".{group}"),
    };
    let Attributes {
        group,
        resource,
        name,
        ..
    } = wanted;
    ApiError::forbidden_path(format!(
        "{resource}{suffix} {name:?} is forbidden: User {:?} cannot impersonate resource \
         {resource:?} in API group {group:?} {scope}",
        user.name
    ))
}
