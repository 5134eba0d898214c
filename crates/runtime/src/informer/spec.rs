//! Watch specifications, and the keys by which informers are shared.

use std::{any::TypeId, fmt, time::Duration};

use thiserror::Error;
use weft_model::{FieldSelector, LabelSelector, SharedStr};

use crate::{Kind, Object};

/// Scope, selectors and list mode of a watch.
///
/// Scope and selectors decide whether two consumers share an informer; the rest is taken from the
/// first consumer.
#[derive(Clone, Debug)]
pub struct WatchSpec {
    namespace: Option<SharedStr>,
    labels: Option<SharedStr>,
    fields: Option<SharedStr>,
    pub(crate) list: ListMode,
    pub(crate) idle_timeout: Duration,
}

/// Kind of request that obtains the initial state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListMode {
    /// A streaming list where the server has it, pages otherwise.
    Auto,
    /// Pages of at most this many objects from the newest state.
    Paged(u32),
    /// One unpaged list from the server's cache, which may be a moment old.
    FromCache,
}

/// Page size where the server has no streaming lists, as in client-go.
pub(crate) const PAGE: u32 = 500;

/// A selector that does not parse.
#[derive(Debug, Error)]
#[error("cannot parse {which} selector {text:?}: {message}")]
pub struct SelectorError {
    which: &'static str,
    text: String,
    message: String,
}

impl Default for WatchSpec {
    fn default() -> Self {
        Self::all()
    }
}

impl WatchSpec {
    /// Everything of the kind.
    pub fn all() -> Self {
        Self {
            namespace: None,
            labels: None,
            fields: None,
            list: ListMode::Auto,
            idle_timeout: Duration::from_secs(60),
        }
    }

    /// Only one namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(SharedStr::interned(namespace));
        self
    }

    /// Only what the server selects by labels.
    pub fn labels(mut self, selector: &str) -> Result<Self, SelectorError> {
        let parsed = LabelSelector::parse(selector);
        self.labels = canonical("label", selector, parsed)?;
        Ok(self)
    }

    /// Only what the server selects by fields, such as `spec.nodeName=n1`.
    pub fn fields(mut self, selector: &str) -> Result<Self, SelectorError> {
        let parsed = FieldSelector::parse(selector);
        self.fields = canonical("field", selector, parsed)?;
        Ok(self)
    }

    /// Sets the list mode.
    #[must_use]
    pub fn list(mut self, list: ListMode) -> Self {
        self.list = list;
        self
    }

    /// Time without an event or a bookmark after which a watch counts as dead.
    #[must_use]
    pub fn idle_timeout(mut self, idle_timeout: Duration) -> Self {
        self.idle_timeout = idle_timeout;
        self
    }
}

/// Canonical text of a selector, so that selectors of the same meaning share an informer.
fn canonical<S: fmt::Display, E: fmt::Display>(
    which: &'static str,
    text: &str,
    parsed: Result<S, E>,
) -> Result<Option<SharedStr>, SelectorError> {
    let selector = parsed.map_err(|error| SelectorError {
        which,
        text: text.to_owned(),
        message: error.to_string(),
    })?;
    let canonical = selector.to_string();
    Ok((!canonical.is_empty()).then(|| SharedStr::new(&canonical)))
}

/// Identity of an informer: consumers with equal keys share one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct InformerKey {
    /// The cluster watched.
    pub cluster: SharedStr,
    /// The kind watched.
    pub kind: Kind,
    /// The namespace watched, or all.
    pub namespace: Option<SharedStr>,
    /// Label selector in canonical form.
    pub labels: Option<SharedStr>,
    /// Field selector in canonical form.
    pub fields: Option<SharedStr>,
    projection: TypeId,
    projection_name: &'static str,
}

impl InformerKey {
    pub(crate) fn new<K: Object>(cluster: &SharedStr, kind: &Kind, spec: &WatchSpec) -> Self {
        Self {
            cluster: cluster.clone(),
            kind: kind.clone(),
            namespace: spec.namespace.clone(),
            labels: spec.labels.clone(),
            fields: spec.fields.clone(),
            projection: TypeId::of::<K>(),
            projection_name: std::any::type_name::<K>(),
        }
    }

    /// Name of the Rust type that objects are decoded into.
    pub fn projection(&self) -> &'static str {
        self.projection_name
    }
}

impl fmt::Display for InformerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        for (name, value) in [
            ("namespace", &self.namespace),
            ("labels", &self.labels),
            ("fields", &self.fields),
        ] {
            if let Some(value) = value {
                write!(f, " {name}={value}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for InformerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} in {} as {}", self.cluster, self.projection_name)
    }
}
