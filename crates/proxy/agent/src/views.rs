//! The watched objects, decoded to the fields that the proxy reads.
//!
//! The content of each kind is decoded by the types of `weft-proxy`; what is added here is the metadata that
//! caches need. [`weft_proxy::objects::Object`] reads the same types out of JSON values for files and
//! tests, where a list may mix kinds; watched objects are decoded from bytes without that detour.

use jiff::Timestamp;
use serde::Deserialize;
use weft_model::{SharedStr, null_is_default};
use weft_proxy::objects::{
    SERVICE_NAME_LABEL, ServiceCidrSpec, ServiceSpec, ServiceStatus, SliceEndpoint, SlicePortSpec,
    SliceView,
};
use weft_runtime::{Annotations, Metadata, Pairs, projection};

/// A Service.
#[derive(Debug, Deserialize)]
pub(crate) struct ServiceView {
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) spec: ServiceSpec,
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) status: ServiceStatus,
}

projection!(ServiceView, "", "v1", "services", "Service");

/// An EndpointSlice.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EndpointSliceView {
    metadata: Metadata<TriggerTime>,
    #[serde(default)]
    address_type: SharedStr,
    #[serde(default, deserialize_with = "null_is_default")]
    endpoints: Box<[SliceEndpoint]>,
    #[serde(default, deserialize_with = "null_is_default")]
    ports: Box<[SlicePortSpec]>,
}

projection!(
    EndpointSliceView,
    "discovery.k8s.io",
    "v1",
    "endpointslices",
    "EndpointSlice"
);

impl EndpointSliceView {
    /// The fields that the model uses.
    pub(crate) fn view(&self) -> SliceView<'_> {
        SliceView {
            service: self.service(),
            address_type: &self.address_type,
            endpoints: &self.endpoints,
            ports: &self.ports,
        }
    }

    /// The Service it belongs to.
    pub(crate) fn service(&self) -> &str {
        let labels = &self.metadata.labels;
        labels.get(SERVICE_NAME_LABEL).unwrap_or_default()
    }

    /// Time of the change that led to this state of the slice.
    pub(crate) fn trigger_time(&self) -> Option<Timestamp> {
        self.metadata.annotations.time.as_deref()?.parse().ok()
    }
}

/// A ServiceCIDR: networks that ClusterIPs are taken from.
#[derive(Debug, Deserialize)]
pub(crate) struct ServiceCidrView {
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) spec: ServiceCidrSpec,
}

projection!(
    ServiceCidrView,
    "networking.k8s.io",
    "v1",
    "servicecidrs",
    "ServiceCIDR"
);

/// The only annotation of a slice that is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TriggerTime {
    #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    time: Option<Box<str>>,
}

impl Annotations for TriggerTime {
    fn pairs(&self) -> Pairs<'_> {
        let name = weft_proxy::objects::TRIGGER_TIME_ANNOTATION;
        Box::new(self.time.iter().map(move |time| (name, &**time)))
    }
}
