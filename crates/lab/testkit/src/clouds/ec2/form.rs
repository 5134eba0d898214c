//! Parameters of a call to the EC2 query API.

use ipnet::IpNet;

use super::refusal::Refusal;
use crate::clouds::server::pairs;

/// The parameters of a call.
#[derive(Debug)]
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    pub(super) fn read(body: &[u8]) -> Self {
        Self(pairs(body))
    }

    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(super) fn required(&self, name: &str) -> Result<&str, Refusal> {
        let missing = || Refusal::new("MissingParameter", name);
        self.parameter(name).ok_or_else(missing)
    }

    /// The values of `prefix.1`, `prefix.2` and so on.
    pub(super) fn list(&self, prefix: &str) -> Vec<&str> {
        let name = |index| format!("{prefix}.{index}");
        let values = (1..).map(|index| self.parameter(&name(index)));
        values.map_while(|value| value).collect()
    }

    /// Filters by name, each with the values of which one has to match.
    pub(super) fn filters(&self) -> Vec<(&str, Vec<&str>)> {
        let filter = |index: usize| {
            let name = self.parameter(&format!("Filter.{index}.Name"))?;
            Some((name, self.list(&format!("Filter.{index}.Value"))))
        };
        (1..).map_while(filter).collect()
    }

    pub(super) fn destination(&self) -> Result<IpNet, Refusal> {
        let v4 = self.parameter("DestinationCidrBlock");
        let text = v4.map_or_else(|| self.required("DestinationIpv6CidrBlock"), Ok)?;
        let bad = || Refusal::new("InvalidParameterValue", text);
        let net: IpNet = text.parse().map_err(|_| bad())?;
        let right = net == net.trunc() && v4.is_some() == matches!(net, IpNet::V4(_));
        if right { Ok(net) } else { Err(bad()) }
    }

    pub(super) fn source_dest_check(&self) -> Result<bool, Refusal> {
        let value = self.required("SourceDestCheck.Value")?;
        let bad = |_| Refusal::new("InvalidParameterValue", value);
        value.parse().map_err(bad)
    }

    /// Offset and size of the requested page of a list.
    pub(super) fn page(&self, largest: usize) -> (usize, usize) {
        let number = |name| self.parameter(name).and_then(|text| text.parse().ok());
        let size = number("MaxResults").unwrap_or(largest);
        (number("NextToken").unwrap_or(0), size.min(largest))
    }
}
