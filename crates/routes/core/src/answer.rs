//! Answers of a provider, as values.

use std::{collections::BTreeMap, net::IpAddr};

use weft_model::SharedStr;

use crate::{ProviderError, RateLimit};

/// Addresses by instance ID.
pub type InstanceAddresses = BTreeMap<SharedStr, Vec<IpAddr>>;

/// Answer of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    /// The value, or the classified error.
    pub result: Result<T, ProviderError>,
    /// The rate limit, if the response reported it.
    pub rate: Option<RateLimit>,
}

impl<T> Answer<T> {
    /// A success without a reported rate limit.
    pub fn ok(value: T) -> Self {
        Self::from(Ok(value))
    }
}

impl<T> From<Result<T, ProviderError>> for Answer<T> {
    fn from(result: Result<T, ProviderError>) -> Self {
        Self { result, rate: None }
    }
}
