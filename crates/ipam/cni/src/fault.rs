//! CNI error objects and their codes.

use serde::Serialize;

use crate::SpecVersion;

/// The codes this plugin answers with: the specification's below 100, its own from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The version of the configuration is not supported.
    IncompatibleVersion = 1,
    /// A variable of the environment is missing or invalid.
    InvalidEnvironment = 4,
    /// Reading or writing failed.
    InputOutput = 5,
    /// The configuration is not JSON of the expected shape.
    Undecodable = 6,
    /// A field of the configuration is invalid.
    InvalidConfig = 7,
    /// A retry may succeed.
    TryAgainLater = 11,
    /// STATUS: an ADD cannot be served.
    Unavailable = 50,
    /// STATUS: an ADD cannot be served, and pods that run may lack connectivity.
    Limited = 51,
    /// A bug of this plugin.
    Bug = 100,
    /// The daemon refused; a retry will not help.
    Refused = 101,
    /// The daemon's response is not one of the CNS API.
    InvalidResponse = 102,
    /// CHECK: the pod's addresses are not those that the daemon holds for it.
    Differs = 103,
}

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Read by the runtime.
    pub code: Code,
    /// Operation that failed.
    pub message: String,
    /// Cause of the failure.
    pub details: String,
}

impl Fault {
    pub(crate) fn new(
        code: Code,
        message: impl Into<String>,
        details: impl std::fmt::Display,
    ) -> Self {
        Self {
            code,
            message: message.into(),
            details: details.to_string(),
        }
    }

    /// The error object of the specification.
    pub(crate) fn to_json(&self, version: SpecVersion) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Object<'a> {
            cni_version: SpecVersion,
            code: u32,
            msg: &'a str,
            #[serde(skip_serializing_if = "str::is_empty")]
            details: &'a str,
        }
        serde_json::to_string(&Object {
            cni_version: version,
            code: self.code as u32,
            msg: &self.message,
            details: &self.details,
        })
        .expect("numbers and strings are always JSON")
    }
}
