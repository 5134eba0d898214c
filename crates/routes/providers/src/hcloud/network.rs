//! The network whose routes are managed, by number or name.

use parking_lot::Mutex;
use weft_routes::ProviderError;

use super::{
    api::{Api, Purpose},
    wire,
};
use crate::Answer;

/// Identifier of the network: a number, or a name whose number is looked up once.
#[derive(Debug)]
pub(super) struct NetworkId {
    name: Option<String>,
    number: Mutex<Option<u64>>,
}

impl NetworkId {
    /// A text of digits is a number, as for hcloud's own tools.
    pub(super) fn new(name_or_number: &str) -> Self {
        let number = name_or_number.parse().ok();
        Self {
            name: number.is_none().then(|| name_or_number.to_owned()),
            number: Mutex::new(number),
        }
    }

    /// Reads the network in one call, also by name: the answer contains the whole network.
    pub(super) async fn read(&self, api: &Api) -> Answer<wire::Network> {
        let Some(number) = self.known() else {
            return self.find(api).await;
        };
        let path = format!("networks/{number}");
        let answer = api.read::<wire::NetworkReply>(Purpose::List, &path).await;
        if matches!(answer.result, Err(ProviderError::Invalid(_))) {
            self.forget();
        }
        Answer {
            result: answer.result.map(|reply| reply.network),
            rate: answer.rate,
        }
    }

    /// The number, without a call if it is known already.
    pub(super) async fn number<T>(&self, api: &Api) -> Result<u64, Answer<T>> {
        if let Some(number) = self.known() {
            return Ok(number);
        }
        let Answer { result, rate } = self.find(api).await;
        result.map(|network| network.id).map_err(|error| Answer {
            result: Err(error),
            rate,
        })
    }

    async fn find(&self, api: &Api) -> Answer<wire::Network> {
        let name = self.name.as_deref().unwrap_or_default();
        let name_encoded: String = form_urlencoded::byte_serialize(name.as_bytes()).collect();
        let path = format!("networks?name={name_encoded}");
        let answer = api.read::<wire::NetworksReply>(Purpose::List, &path).await;
        let missing = || ProviderError::Invalid("no network has the configured name".into());
        let result = answer.result.and_then(|reply| {
            let mut networks = reply.networks.into_iter();
            networks
                .find(|network| network.name == name)
                .ok_or_else(missing)
        });
        if let Ok(network) = &result {
            *self.number.lock() = Some(network.id);
        }
        Answer {
            result,
            rate: answer.rate,
        }
    }

    fn known(&self) -> Option<u64> {
        *self.number.lock()
    }

    /// Forgets the number: the network may have been created again under another one.
    fn forget(&self) {
        if self.name.is_some() {
            *self.number.lock() = None;
        }
    }
}
