//! Responses of the daemon to requests for addresses and their release.

use serde::{Deserialize, Serialize};

use crate::{PodIpInfo, ReturnCode, blank};

/// Return code and message: part of every response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Response {
    /// Outcome of the request.
    #[serde(default, deserialize_with = "blank::null")]
    pub return_code: ReturnCode,
    /// Human-readable cause of a failure; empty on success.
    #[serde(default, deserialize_with = "blank::null")]
    pub message: String,
}

impl Response {
    /// Success without a message.
    pub fn success() -> Self {
        Self::default()
    }

    /// A failure with its human-readable cause.
    pub fn failure(return_code: ReturnCode, message: impl Into<String>) -> Self {
        Self {
            return_code,
            message: message.into(),
        }
    }
}

/// The addresses of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpConfigsResponse {
    /// One address for each family.
    #[serde(rename = "podIPInfo", default, deserialize_with = "blank::null")]
    pub pod_ip_info: Vec<PodIpInfo>,
    /// Return code and message. Required: a body without them is not a response.
    pub response: Response,
}

/// The address of a pod, in the older form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct IpConfigResponse {
    /// The address.
    #[serde(default, deserialize_with = "blank::null")]
    pub pod_ip_info: PodIpInfo,
    /// Return code and message. Required: a body without them is not a response.
    pub response: Response,
}

/// Response to a release.
///
/// Upstream nests the code, while its client looks for it at the top level, so every failed release
/// looks like a success to it. Weft's daemon sets both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Nested", into = "Nested")]
pub struct ReleaseIpConfigsResponse(
    /// Return code and message.
    pub Response,
);

/// Response to a release in the older form; likewise sets both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "NestedOld", into = "NestedOld")]
pub struct ReleaseIpConfigResponse(
    /// Return code and message.
    pub Response,
);

/// The two places of the code: nested as upstream writes it, and flat as upstream's client reads
/// it.
#[derive(Clone, Serialize, Deserialize)]
struct Nested {
    #[serde(default)]
    response: Option<Response>,
    #[serde(flatten)]
    flat: Response,
}

#[derive(Clone, Serialize, Deserialize)]
struct NestedOld {
    #[serde(rename = "Response", default)]
    response: Option<Response>,
    #[serde(flatten)]
    flat: Response,
}

/// A failure at either place is a failure.
fn worse(nested: Option<Response>, flat: Response) -> Response {
    match nested {
        Some(nested) if flat.return_code.is_success() => nested,
        _ => flat,
    }
}

impl From<Nested> for ReleaseIpConfigsResponse {
    fn from(both: Nested) -> Self {
        Self(worse(both.response, both.flat))
    }
}

impl From<ReleaseIpConfigsResponse> for Nested {
    fn from(answer: ReleaseIpConfigsResponse) -> Self {
        Self {
            response: Some(answer.0.clone()),
            flat: answer.0,
        }
    }
}

impl From<NestedOld> for ReleaseIpConfigResponse {
    fn from(both: NestedOld) -> Self {
        Self(worse(both.response, both.flat))
    }
}

impl From<ReleaseIpConfigResponse> for NestedOld {
    fn from(answer: ReleaseIpConfigResponse) -> Self {
        Self {
            response: Some(answer.0.clone()),
            flat: answer.0,
        }
    }
}
