//! CNS return codes: the only sign of failure on the compatible paths, where HTTP always says 200.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Outcome of a request. Numbers without a name are kept as they are.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ReturnCode(pub i32);

macro_rules! codes {
    ($($(#[$doc:meta])* $constant:ident = $number:literal $name:literal;)*) => {
        impl ReturnCode {
            $($(#[$doc])* pub const $constant: Self = Self($number);)*

            /// Every code that has a name here.
            pub const ALL: &[Self] = &[$(Self::$constant),*];

            /// The spelling used in the header [`RETURN_CODE`](crate::header::RETURN_CODE).
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($number => $name,)*
                    _ => "UnknownError",
                }
            }
        }
    };
}

codes! {
    /// The request was carried out.
    SUCCESS = 0 "Success";
    /// A value in the request is invalid.
    INVALID_PARAMETER = 2 "InvalidParameter";
    /// No address is reserved under this key.
    RESERVATION_NOT_FOUND = 5 "ReservationNotFound";
    /// The requested object does not exist.
    NOT_FOUND = 14 "NotFound";
    /// The requested address is not available.
    ADDRESS_UNAVAILABLE = 15 "AddressUnavailable";
    /// No such container.
    UNKNOWN_CONTAINER_ID = 18 "UnknownContainerID";
    /// The request cannot be served in this form.
    INVALID_REQUEST = 23 "InvalidRequest";
    /// The daemon's own state contradicts itself.
    INCONSISTENT_IP_CONFIG_STATE = 29 "InconsistentIPConfigState";
    /// No address could be assigned; the message says why. The spelling of the name is upstream's.
    FAILED_TO_ALLOCATE_IP_CONFIG = 32 "FailedToAllocateIpConfig";
    /// The request names no pod.
    EMPTY_ORCHESTRATOR_CONTEXT = 33 "EmptyOrchestratorContext";
    /// The request names its pod in a format that is not supported.
    UNSUPPORTED_ORCHESTRATOR_CONTEXT = 34 "UnsupportedOrchestratorContext";
    /// The caller's user may not make this request.
    STATUS_UNAUTHORIZED = 42 "StatusUnauthorized";
    /// The path does not exist.
    UNSUPPORTED_API = 43 "UnsupportedAPI";
    /// The daemon could not be reached. Only clients produce it.
    CONNECTION_ERROR = 45 "ConnectionError";
    /// An internal error.
    UNEXPECTED_ERROR = 99 "UnexpectedError";
}

impl ReturnCode {
    /// True if the request was carried out.
    pub const fn is_success(self) -> bool {
        self.0 == Self::SUCCESS.0
    }
}

impl fmt::Display for ReturnCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}
