//! Parameters of `make bench` and `make conformance`, from the environment.

use std::{env, path::PathBuf};

/// `PART=proxy`, `QUICK=1` and `CCM=path`, as make passes them on.
pub(crate) struct Request {
    /// Only this part.
    pub(crate) part: Option<String>,
    /// The least that is worth running: what CI has time for.
    pub(crate) quick: bool,
    /// A cloud-controller-manager for Hetzner Cloud in place of the one among the peers.
    pub(crate) ccm: Option<PathBuf>,
}

impl Request {
    pub(crate) fn from_environment() -> Self {
        let given = |name| env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            part: given("PART"),
            quick: given("QUICK").is_some_and(|value| value != "0"),
            ccm: given("CCM").map(PathBuf::from),
        }
    }

    /// All parts, quickly.
    pub(crate) fn quick() -> Self {
        Self {
            part: None,
            quick: true,
            ccm: None,
        }
    }
}
