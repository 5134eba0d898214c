//! Request matcher of fault rules and statistics.

use crate::request::{RequestInfo, Verb};

/// Selects requests; a criterion that is not set matches every request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Matcher {
    verbs: Vec<Verb>,
    resource: Option<String>,
    subresource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    path: Option<String>,
    query: Option<String>,
    streaming_list: Option<bool>,
    user_agent: Option<String>,
}

impl Matcher {
    /// Every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// Only this verb; each call adds an alternative.
    #[must_use]
    pub fn verb(mut self, verb: Verb) -> Self {
        self.verbs.push(verb);
        self
    }

    /// Only this plural resource, for instance `pods`.
    #[must_use]
    pub fn resource(mut self, plural: &str) -> Self {
        self.resource = Some(plural.to_owned());
        self
    }

    /// Only this subresource; an empty one means the object itself.
    #[must_use]
    pub fn subresource(mut self, name: &str) -> Self {
        self.subresource = Some(name.to_owned());
        self
    }

    /// Only this namespace in the path.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// Only the object of this name.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Only paths that contain this text.
    #[must_use]
    pub fn path(mut self, part: &str) -> Self {
        self.path = Some(part.to_owned());
        self
    }

    /// Only query strings, as sent, that contain this text.
    #[must_use]
    pub fn query(mut self, part: &str) -> Self {
        self.query = Some(part.to_owned());
        self
    }

    /// Only watches that ask (or do not ask) for the initial state in their stream.
    #[must_use]
    pub fn streaming_list(mut self, asked: bool) -> Self {
        self.streaming_list = Some(asked);
        self
    }

    /// Only clients whose user agent contains this text.
    #[must_use]
    pub fn user_agent(mut self, part: &str) -> Self {
        self.user_agent = Some(part.to_owned());
        self
    }

    /// True when all criteria match.
    pub fn matches(&self, request: &RequestInfo) -> bool {
        let equal = |wanted: &Option<String>, actual: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == actual)
        };
        let within = |wanted: &Option<String>, actual: &str| {
            wanted
                .as_deref()
                .is_none_or(|wanted| actual.contains(wanted))
        };
        (self.verbs.is_empty() || self.verbs.contains(&request.verb))
            && equal(&self.resource, &request.resource)
            && equal(&self.subresource, &request.subresource)
            && equal(&self.namespace, &request.namespace)
            && equal(&self.name, &request.name)
            && within(&self.path, &request.path)
            && within(&self.query, &request.query)
            && within(&self.user_agent, &request.user_agent)
            && self
                .streaming_list
                .is_none_or(|asked| asked == request.streaming_list)
    }
}
