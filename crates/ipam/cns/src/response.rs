//! What the daemon answers a plugin.

use serde::{Deserialize, Serialize};

use crate::{PodIpInfo, ReturnCode, blank};

/// How it went: part of every answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Response {
    /// What became of it.
    #[serde(default, deserialize_with = "blank::null")]
    pub return_code: ReturnCode,
    /// For people; empty when all is well.
    #[serde(default, deserialize_with = "blank::null")]
    pub message: String,
}

impl Response {
    /// All is well.
    pub fn success() -> Self {
        Self::default()
    }

    /// It did not work.
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
    /// One for each family.
    #[serde(rename = "podIPInfo", default, deserialize_with = "blank::null")]
    pub pod_ip_info: Vec<PodIpInfo>,
    /// How it went. An answer without it is none.
    pub response: Response,
}

/// The address of a pod, in the older form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct IpConfigResponse {
    /// The address.
    #[serde(default, deserialize_with = "blank::null")]
    pub pod_ip_info: PodIpInfo,
    /// How it went. An answer without it is none.
    pub response: Response,
}

/// Answer to giving addresses back.
///
/// The original nests the code, while its client looks for it at the top, so every failed release
/// looks like a success to it. Weft's daemon says it at both places.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Nested", into = "Nested")]
pub struct ReleaseIpConfigsResponse(
    /// How it went.
    pub Response,
);

/// Answer to giving an address back in the older form, likewise at both places.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "NestedOld", into = "NestedOld")]
pub struct ReleaseIpConfigResponse(
    /// How it went.
    pub Response,
);

/// The two places: where the answers nest it, and where upstream's client reads it.
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
