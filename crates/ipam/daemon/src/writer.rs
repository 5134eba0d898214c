//! Writes the spec of the node's NodeNetworkConfig.

use std::{sync::Arc, time::Duration};

use axum::http::{Request, header::CONTENT_TYPE};
use kube::Client;
use serde_json::{Value, json};
use thiserror::Error;
use weft_ipam::{NodeConfig, SpecWrite, objects::NetworkObjects};

use crate::{feeds::network_kind, views::NodeNetwork};

/// Annotation that changes at every attempt, so that an accepted write invalidates all earlier ones
/// in flight.
pub const ATTEMPT_ANNOTATION: &str = "ipam.weft.dev/attempt";

/// A write that failed, or whose result is unknown.
#[derive(Debug, Error)]
pub(crate) enum WriteError {
    #[error("no response within the time limit")]
    Timeout,
    #[error("cannot send the patch to the API server")]
    Server(#[from] Box<kube::Error>),
    #[error("cannot build the request")]
    Request(#[from] axum::http::Error),
}

impl WriteError {
    pub(crate) fn outcome(&self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Server(error) => match &**error {
                kube::Error::Api(status) if status.code == 409 => "conflict",
                _ => "error",
            },
            Self::Request(_) => "error",
        }
    }
}

#[derive(Clone)]
pub(crate) struct Writer {
    client: Client,
    path: Arc<str>,
    process: Arc<str>,
    limit: Duration,
}

impl Writer {
    pub(crate) fn new(
        client: Client,
        objects: &NetworkObjects,
        process: &str,
        limit: Duration,
    ) -> Self {
        let kind = network_kind(objects);
        Self {
            client,
            path: kind.collection_path(Some(&objects.namespace)).into(),
            process: process.into(),
            limit,
        }
    }

    pub(crate) async fn send(self, write: SpecWrite) -> Result<NodeConfig, WriteError> {
        let request = Request::patch(format!(
            "{}/{}?fieldManager=weft-ipam",
            self.path, write.name
        ))
        .header(CONTENT_TYPE, "application/merge-patch+json")
        .body(self.body(&write).to_string().into_bytes())?;
        let answer = self.client.request::<NodeNetwork>(request);
        match tokio::time::timeout(self.limit, answer).await {
            Ok(Ok(object)) => Ok(object.to_config()),
            Ok(Err(error)) => Err(Box::new(error).into()),
            Err(_) => Err(WriteError::Timeout),
        }
    }

    fn body(&self, write: &SpecWrite) -> Value {
        let SpecWrite {
            precondition, spec, ..
        } = write;
        let attempt = format!("{}/{}", self.process, write.attempt);
        let mut body = json!({
            "metadata": {
                "uid": precondition.uid.as_str(),
                "resourceVersion": precondition.version.as_str(),
                "annotations": { ATTEMPT_ANNOTATION: attempt },
            },
            "spec": {
                "requestedIPCount": spec.requested,
                // An absent list is empty, and null removes it.
                "ipsNotInUse": (!spec.not_in_use.is_empty()).then_some(&spec.not_in_use),
            },
        });
        if let Some(demand) = spec.demand {
            body["spec"]["demandIPCount"] = demand.into();
        }
        body
    }
}
