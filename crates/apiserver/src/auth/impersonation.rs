//! Acting as somebody else: each part of the other identity needs its own right.

use http::HeaderMap;

use super::{Attributes, User};
use crate::status::{ApiError, Outcome};

const EXTRA_PREFIX: &str = "impersonate-extra-";
const AUTHENTICATION: &str = "authentication.k8s.io";

/// The identity the headers of a request ask for.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    name: &'a str,
    groups: Vec<&'a str>,
    uid: Option<&'a str>,
    /// Keys and values.
    extra: Vec<(&'a str, &'a str)>,
}

impl<'a> Asked<'a> {
    /// What the headers ask for, if anything.
    pub(super) fn read(headers: &'a HeaderMap) -> Outcome<Option<Self>> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let groups: Vec<&str> = headers
            .get_all("impersonate-group")
            .iter()
            .filter_map(|value| value.to_str().ok())
            .collect();
        let extra: Vec<(&str, &str)> = headers
            .iter()
            .filter_map(|(name, value)| {
                Some((
                    name.as_str().strip_prefix(EXTRA_PREFIX)?,
                    value.to_str().ok()?,
                ))
            })
            .collect();
        let uid = text("impersonate-uid");
        match text("impersonate-user") {
            Some(name) => Ok(Some(Self {
                name,
                groups,
                uid,
                extra,
            })),
            None if groups.is_empty() && uid.is_none() && extra.is_empty() => Ok(None),
            None => Err(ApiError::internal(
                "groups, UID or extra fields requested without impersonating a user",
            )),
        }
    }

    /// What one must be allowed to become this identity.
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
        self.name
            .strip_prefix("system:serviceaccount:")?
            .split_once(':')
    }

    /// The identity itself, with the groups it has by nature.
    pub(super) fn user(&self) -> User {
        match self.service_account() {
            _ if self.name == "system:anonymous" && self.groups.is_empty() => User::anonymous(),
            Some((namespace, name)) if self.groups.is_empty() => {
                User::service_account(namespace, name)
            }
            _ => User::new(self.name, self.groups.iter().copied()),
        }
    }
}

/// 403 in the words of upstream.
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
