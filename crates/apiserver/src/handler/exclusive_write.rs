//! Start of every write request: its target, and exclusive access to the store.

use std::sync::Arc;

use crate::{
    api::{Api, Context},
    kind::{ResourceType, Subresource},
    rules::WriteScope,
    status::{ApiError, Outcome},
    store::{Stored, Writer, object_key},
};

/// The object, or subresource of an object, that a request writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) subresource: Option<Subresource>,
}

impl Target<'_> {
    pub(crate) fn key(&self) -> String {
        object_key(self.namespace, self.name)
    }
}

/// A request that holds the store's writer until dropped: what it reads cannot change.
pub(crate) struct ExclusiveWrite<'a> {
    pub(crate) target: Target<'a>,
    api: &'a Api,
    context: &'a Context,
    kind: &'a ResourceType,
    writer: Writer<'a>,
}

impl<'a> ExclusiveWrite<'a> {
    /// Waits for the store's writer.
    pub(crate) fn begin(
        api: &'a Api,
        context: &'a Context,
        kind: &'a ResourceType,
        subresource: Option<Subresource>,
    ) -> Self {
        Self {
            target: Target {
                namespace: &context.info.namespace,
                name: &context.info.name,
                subresource,
            },
            api,
            context,
            kind,
            writer: api.store.write(),
        }
    }

    pub(crate) fn scope(&self) -> WriteScope<'_> {
        WriteScope {
            api: self.api,
            context: Some(self.context),
            writer: &self.writer,
            kind: self.kind,
        }
    }

    /// The object that the request names, if it exists.
    pub(crate) fn found(&self) -> Option<Arc<Stored>> {
        self.get(&self.target.key())
    }

    /// The object that the request names, or 404.
    pub(crate) fn find(&self) -> Outcome<Arc<Stored>> {
        self.found()
            .ok_or_else(|| ApiError::not_found(self.kind, self.target.name))
    }

    /// An object of the same kind by key.
    pub(crate) fn get(&self, key: &str) -> Option<Arc<Stored>> {
        self.writer.get(&self.kind.storage, key)
    }
}
