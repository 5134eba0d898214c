//! Failures as the specification wants them told.

use serde::Serialize;

use crate::SpecVersion;

/// The codes this plugin answers with: the specification's below 100, its own from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The configuration is of a version not spoken here.
    IncompatibleVersion = 1,
    /// A variable of the environment is missing or makes no sense.
    InvalidEnvironment = 4,
    /// Reading or writing failed.
    InputOutput = 5,
    /// The configuration is no JSON of the expected shape.
    Undecodable = 6,
    /// The configuration makes no sense.
    InvalidConfig = 7,
    /// It may work in a moment.
    TryAgainLater = 11,
    /// STATUS: an ADD cannot be served.
    Unavailable = 50,
    /// STATUS: an ADD cannot be served, and pods that run may lack connectivity.
    Limited = 51,
    /// A bug of this plugin.
    Bug = 100,
    /// The daemon refused, and will again.
    Refused = 101,
    /// The daemon answered something that makes no sense.
    Nonsense = 102,
    /// CHECK: the pod's addresses are not those that the daemon holds for it.
    Differs = 103,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// For the runtime.
    pub code: Code,
    /// For people: what failed.
    pub message: String,
    /// For people: why.
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
