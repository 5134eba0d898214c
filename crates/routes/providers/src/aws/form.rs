//! Parameters of EC2 calls, form-encoded.

use ipnet::IpNet;
use weft_routes::{Cidr, ProviderError};

use super::route_target::RouteTarget;

/// The parameters of a call.
#[derive(Clone, Debug, Default)]
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    pub(super) fn with(mut self, name: impl Into<String>, value: &str) -> Self {
        self.0.push((name.into(), value.to_owned()));
        self
    }

    /// Selects a destination in a table, without host bits: EC2 and its emulators treat them
    /// differently.
    pub(super) fn route(table: &str, destination: &Cidr) -> Result<Self, ProviderError> {
        let bad = |error: weft_routes::CidrError| {
            ProviderError::Invalid(error.to_string().as_str().into())
        };
        let net = destination.net().map_err(bad)?;
        let parameter = match net {
            IpNet::V4(_) => "DestinationCidrBlock",
            IpNet::V6(_) => "DestinationIpv6CidrBlock",
        };
        let table = Self::default().with("RouteTableId", table);
        Ok(table.with(parameter, &net.to_string()))
    }

    pub(super) fn to(self, target: &RouteTarget) -> Self {
        match target {
            RouteTarget::Instance(id) => self.with("InstanceId", id),
            RouteTarget::Interface(id) => self.with("NetworkInterfaceId", id),
        }
    }

    /// Adds a filter for one of these values. All filters of a call have to match.
    pub(super) fn filter<'a>(self, name: &str, values: impl IntoIterator<Item = &'a str>) -> Self {
        let number = 1 + self
            .0
            .iter()
            .filter(|(key, _)| key.ends_with(".Name"))
            .count();
        let named = self.with(format!("Filter.{number}.Name"), name);
        let values = values.into_iter().enumerate();
        values.fold(named, |form, (index, value)| {
            form.with(format!("Filter.{number}.Value.{}", index + 1), value)
        })
    }

    pub(super) fn encode(&self, action: &str) -> String {
        let mut text = form_urlencoded::Serializer::new(String::new());
        text.append_pair("Action", action);
        text.append_pair("Version", "2016-11-15");
        text.extend_pairs(&self.0);
        text.finish()
    }
}
