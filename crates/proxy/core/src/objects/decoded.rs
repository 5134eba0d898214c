//! Objects decoded from JSON values, for files and tests, where the kind is known only after reading.
//!
//! A running proxy decodes the bytes of watch events directly into the same specs, statuses, endpoints and
//! ports: a JSON value first would cost several times the memory and time.

use std::net::IpAddr;

use serde::Deserialize;
use serde_json::Value;
use weft_model::{ObjectKey, SharedStr, ZONE_LABEL, null_is_default, parse_sloppy};

use super::{
    HEADLESS_LABEL, OTHER_PROXY_LABEL, SERVICE_NAME_LABEL, ServiceCidrSpec, ServiceSpec,
    ServiceStatus, SliceEndpoint, SlicePortSpec, SliceView,
};
use crate::{Model, Problem};

/// An object of one of the kinds that the proxy watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A Service.
    Service {
        /// Namespace and name.
        key: ObjectKey,
        /// Desired state, `spec`.
        spec: Box<ServiceSpec>,
        /// Addresses of the load balancer, `status`.
        status: ServiceStatus,
        /// False if another proxy serves it ([`OTHER_PROXY_LABEL`]).
        ours: bool,
    },
    /// An EndpointSlice.
    Slice {
        /// Namespace and name.
        key: ObjectKey,
        /// The Service it belongs to.
        service: Box<str>,
        /// `IPv4`, `IPv6` or `FQDN`.
        address_type: Box<str>,
        /// Its endpoints.
        endpoints: Box<[SliceEndpoint]>,
        /// Their ports.
        ports: Box<[SlicePortSpec]>,
        /// False if its Service is headless ([`HEADLESS_LABEL`]).
        ours: bool,
    },
    /// A Node.
    Node {
        /// Its name.
        name: SharedStr,
        /// Its zone.
        zone: Option<SharedStr>,
        /// Its addresses, internal ones first.
        addresses: Box<[IpAddr]>,
        /// The networks of its pods, `spec.podCIDRs`.
        pod_cidrs: Box<[Box<str>]>,
    },
    /// A ServiceCIDR.
    ServiceCidr(ServiceCidrSpec),
}

/// An object whose fields do not match its kind.
#[derive(Debug, thiserror::Error)]
#[error("cannot decode {kind} {name}")]
pub struct DecodeError {
    kind: String,
    name: String,
    #[source]
    source: serde_json::Error,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Raw {
    #[serde(deserialize_with = "null_is_default")]
    spec: Value,
    #[serde(deserialize_with = "null_is_default")]
    status: Value,
    address_type: Box<str>,
    #[serde(deserialize_with = "null_is_default")]
    endpoints: Box<[SliceEndpoint]>,
    #[serde(deserialize_with = "null_is_default")]
    ports: Box<[SlicePortSpec]>,
}

impl Object {
    /// Decodes an object; `None` for other kinds.
    pub fn decode(object: &Value) -> Result<Option<Self>, DecodeError> {
        let kind = object["kind"].as_str().unwrap_or_default();
        if !["Service", "EndpointSlice", "Node", "ServiceCIDR"].contains(&kind) {
            return Ok(None);
        }
        let metadata = &object["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default();
        let key = ObjectKey::new(metadata["namespace"].as_str(), name);
        Self::decode_kind(kind, key.clone(), object)
            .map(Some)
            .map_err(|source| DecodeError {
                kind: kind.to_owned(),
                name: key.to_string(),
                source,
            })
    }

    fn decode_kind(kind: &str, key: ObjectKey, object: &Value) -> Result<Self, serde_json::Error> {
        let labels = &object["metadata"]["labels"];
        let label = |name: &str| labels.get(name).and_then(Value::as_str);
        let raw = Raw::deserialize(object)?;
        Ok(match kind {
            "Service" => Self::Service {
                key,
                spec: Option::deserialize(raw.spec)?.unwrap_or_default(),
                status: Option::deserialize(raw.status)?.unwrap_or_default(),
                ours: label(OTHER_PROXY_LABEL).is_none(),
            },
            "EndpointSlice" => Self::Slice {
                key,
                service: label(SERVICE_NAME_LABEL).unwrap_or_default().into(),
                address_type: raw.address_type,
                endpoints: raw.endpoints,
                ports: raw.ports,
                ours: label(HEADLESS_LABEL).is_none(),
            },
            "ServiceCIDR" => Self::ServiceCidr(Option::deserialize(raw.spec)?.unwrap_or_default()),
            _ => Self::Node {
                name: key.name,
                zone: label(ZONE_LABEL).map(SharedStr::new),
                addresses: addresses(&raw.status),
                pod_cidrs: Option::deserialize(raw.spec["podCIDRs"].clone())?.unwrap_or_default(),
            },
        })
    }
}

fn addresses(status: &Value) -> Box<[IpAddr]> {
    let all = status["addresses"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let of_type = |kind: &'static str| {
        let matching = all.iter().filter(move |a| a["type"].as_str() == Some(kind));
        matching.filter_map(|a| parse_sloppy(a["address"].as_str()?))
    };
    of_type("InternalIP").chain(of_type("ExternalIP")).collect()
}

impl Model {
    /// Adds or updates an object. Returns its invalid values.
    pub fn set(&mut self, object: &Object) -> Vec<Problem> {
        match object {
            Object::Service {
                key,
                spec,
                status,
                ours: true,
            } => self.set_service(key, spec, status),
            Object::Service { key, .. } => {
                self.remove_service(key);
                Vec::new()
            }
            Object::Slice {
                key,
                service,
                address_type,
                endpoints,
                ports,
                ours: true,
            } => self.set_slice(
                key,
                SliceView {
                    service,
                    address_type,
                    endpoints,
                    ports,
                },
            ),
            Object::Slice { key, .. } => {
                self.remove_slice(key);
                Vec::new()
            }
            Object::Node { name, zone, .. } => {
                if *name == self.node().name {
                    self.set_zone(zone.clone());
                }
                Vec::new()
            }
            // A setting, and not a part of any Service.
            Object::ServiceCidr(_) => Vec::new(),
        }
    }
}
