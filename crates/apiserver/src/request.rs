//! Classification of requests by method, path and query, as upstream's RequestInfo.

use http::Method;

use crate::query::Query;

/// The verb of a request, as RBAC rules spell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// One object is read.
    Get,
    /// A collection is read.
    List,
    /// A collection is watched.
    Watch,
    /// An object is created.
    Create,
    /// An object is replaced.
    Update,
    /// An object is patched.
    Patch,
    /// An object is deleted.
    Delete,
    /// A collection is deleted.
    DeleteCollection,
    /// A request for a path that is not a resource: health, discovery, version.
    NonResource,
}

impl Verb {
    /// The verb as RBAC rules spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get | Self::NonResource => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

/// A classified request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestInfo {
    /// The verb; for non-resource requests [`Verb::NonResource`].
    pub verb: Verb,
    /// The HTTP method.
    pub method: Method,
    /// The API group; empty for the core group.
    pub group: String,
    /// The API version.
    pub version: String,
    /// The plural resource; empty for non-resource requests.
    pub resource: String,
    /// The subresource, such as `status`; empty for the object itself.
    pub subresource: String,
    /// The namespace of the path; empty for cluster scope or all namespaces.
    pub namespace: String,
    /// The object's name; empty for collections.
    pub name: String,
    /// The path as sent.
    pub path: String,
    /// The query string as sent.
    pub query: String,
    /// A watch with `sendInitialEvents=true`.
    pub streaming_list: bool,
    /// The header `User-Agent`.
    pub user_agent: String,
}

impl RequestInfo {
    /// Classifies a request; every path has a class, also one that is not served.
    pub(crate) fn new(method: &Method, path: &str, raw_query: &str, query: &Query) -> Self {
        let mut info = Self {
            verb: Verb::NonResource,
            method: method.clone(),
            group: String::new(),
            version: String::new(),
            resource: String::new(),
            subresource: String::new(),
            namespace: String::new(),
            name: String::new(),
            path: path.to_owned(),
            query: raw_query.to_owned(),
            streaming_list: query.get("sendInitialEvents").is_some_and(is_true),
            user_agent: String::new(),
        };
        let decoded: Vec<String> = path.split('/').skip(1).map(crate::query::decode).collect();
        let mut parts: Vec<&str> = decoded.iter().map(String::as_str).collect();
        if parts.last() == Some(&"") {
            parts.pop();
        }
        let rest = match parts[..] {
            ["api", version, ref rest @ ..] if !rest.is_empty() => {
                version.clone_into(&mut info.version);
                rest
            }
            ["apis", group, version, ref rest @ ..] if !rest.is_empty() => {
                group.clone_into(&mut info.group);
                version.clone_into(&mut info.version);
                rest
            }
            _ => return info,
        };
        let (watched, rest) = match rest {
            ["watch", rest @ ..] if !rest.is_empty() => (true, rest),
            rest => (false, rest),
        };
        info.read_resource(rest);
        info.verb = info.verb_of(method, query, watched);
        info
    }

    fn read_resource(&mut self, rest: &[&str]) {
        let (namespace, rest) = match rest {
            // `namespaces/x/finalize` is a subresource of the Namespace, not a resource inside it.
            ["namespaces", _, "finalize" | "status"] => ("", rest),
            ["namespaces", namespace, inside @ ..] if !inside.is_empty() => (*namespace, inside),
            _ => ("", rest),
        };
        namespace.clone_into(&mut self.namespace);
        if let [resource, below @ ..] = rest {
            (*resource).clone_into(&mut self.resource);
            below
                .first()
                .copied()
                .unwrap_or_default()
                .clone_into(&mut self.name);
            self.subresource = match below.get(1..).unwrap_or_default() {
                // The rest is the path on the pod; authorization covers `pods/proxy` as a whole.
                ["proxy", ..] if *resource == "pods" && self.group.is_empty() => "proxy".to_owned(),
                rest => rest.join("/"),
            };
        }
    }

    fn verb_of(&self, method: &Method, query: &Query, watched: bool) -> Verb {
        let named = !self.name.is_empty();
        match *method {
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE if named => Verb::Delete,
            Method::DELETE => Verb::DeleteCollection,
            _ if named && !watched => Verb::Get,
            _ if watched || query.get("watch").is_some_and(is_true) => Verb::Watch,
            _ => Verb::List,
        }
    }

    /// False for non-resource requests.
    pub(crate) fn is_resource(&self) -> bool {
        !self.resource.is_empty()
    }
}

/// Upstream's boolean parameters: everything except `false` and `0` is true.
pub(crate) fn is_true(text: &str) -> bool {
    !(text.eq_ignore_ascii_case("false") || text == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(method: &Method, target: &str) -> RequestInfo {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        RequestInfo::new(method, path, query, &Query::parse(query))
    }

    #[test]
    fn paths_are_taken_apart() {
        let info = read(
            &Method::GET,
            "/apis/apps/v1/namespaces/t1/deployments/d1/scale",
        );
        assert_eq!(
            (info.verb, info.group.as_str(), info.version.as_str()),
            (Verb::Get, "apps", "v1")
        );
        assert_eq!(
            (info.namespace.as_str(), info.resource.as_str()),
            ("t1", "deployments")
        );
        assert_eq!(
            (info.name.as_str(), info.subresource.as_str()),
            ("d1", "scale")
        );
    }

    #[test]
    fn a_namespace_is_an_object_and_a_scope() {
        let object = read(&Method::PUT, "/api/v1/namespaces/t2/finalize");
        assert_eq!(
            (object.resource.as_str(), object.name.as_str()),
            ("namespaces", "t2")
        );
        assert_eq!(
            (object.subresource.as_str(), object.namespace.as_str()),
            ("finalize", "")
        );
        let place = read(&Method::GET, "/api/v1/namespaces/t2/pods");
        assert_eq!(
            (place.resource.as_str(), place.namespace.as_str()),
            ("pods", "t2")
        );
        assert_eq!(place.verb, Verb::List);
        let named = read(&Method::GET, "/api/v1/namespaces/t2");
        assert_eq!((named.verb, named.name.as_str()), (Verb::Get, "t2"));
    }

    #[test]
    fn every_path_below_pods_proxy_is_the_proxy_subresource() {
        for rest in ["proxy", "proxy/", "proxy/ask/me?watch=1"] {
            let info = read(
                &Method::GET,
                &format!("/api/v1/namespaces/t/pods/p:80/{rest}"),
            );
            assert_eq!(
                (info.verb, info.name.as_str(), info.subresource.as_str()),
                (Verb::Get, "p:80", "proxy"),
                "{rest}"
            );
        }
    }

    #[test]
    fn watches_are_distinguished_from_lists_and_named_reads() {
        assert_eq!(read(&Method::GET, "/api/v1/pods?watch=1").verb, Verb::Watch);
        assert_eq!(read(&Method::GET, "/api/v1/pods?watch=0").verb, Verb::List);
        assert_eq!(
            read(&Method::GET, "/api/v1/watch/namespaces/t6/pods").verb,
            Verb::Watch
        );
        assert_eq!(
            read(&Method::GET, "/api/v1/namespaces/a/pods/p?watch=1").verb,
            Verb::Get
        );
        assert_eq!(read(&Method::GET, "/healthz").verb, Verb::NonResource);
        assert_eq!(read(&Method::GET, "/apis/apps/v1").verb, Verb::NonResource);
    }
}
