//! Settings of the provider `hcloud`, from environment variables.

use std::{num::ParseIntError, path::Path, time::Duration};

use http::{Uri, uri::InvalidUri};

use super::token::{HcloudToken, TokenError};

/// Settings of the provider `hcloud`.
#[derive(Debug)]
pub struct HcloudSettings {
    /// Base URL of the API, with its version: `https://api.hetzner.cloud/v1`.
    pub endpoint: Uri,
    /// API token.
    pub token: HcloudToken,
    /// Name or number of the network.
    pub network: String,
    /// Capacity of the network, in routes.
    pub quota: usize,
    /// Timeout of one call.
    pub timeout: Duration,
    /// Interval of polling actions.
    pub poll: Duration,
    /// Timeout of an action; after it the outcome is uncertain.
    pub action_timeout: Duration,
}

/// The settings are invalid.
#[derive(Debug, thiserror::Error)]
pub enum HcloudSettingsError {
    /// A required variable is missing.
    #[error("{0} is not set")]
    Missing(&'static str),
    /// The endpoint is not a URL.
    #[error("HCLOUD_ENDPOINT is not a URL")]
    Endpoint(#[source] InvalidUri),
    /// The endpoint has no scheme or no host.
    #[error("HCLOUD_ENDPOINT needs http:// or https:// and a host")]
    IncompleteEndpoint,
    /// The token cannot be read.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The quota is not a number.
    #[error("WEFT_HCLOUD_ROUTE_QUOTA is not a number")]
    Quota(#[source] ParseIntError),
}

const ENDPOINT: &str = "https://api.hetzner.cloud/v1";

/// Default capacity of a network, as of Hetzner's limits reported in 2026.
const QUOTA: usize = 100;

impl HcloudSettings {
    /// Reads the variables that hcloud's cloud controller manager reads.
    pub fn from_variables(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, HcloudSettingsError> {
        let filled = |name| variable(name).filter(|value| !value.trim().is_empty());
        let endpoint = filled("HCLOUD_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let token = match (filled("HCLOUD_TOKEN"), filled("HCLOUD_TOKEN_FILE")) {
            (Some(token), _) => HcloudToken::given(&token)?,
            (None, Some(file)) => HcloudToken::in_file(Path::new(&file))?,
            (None, None) => return Err(HcloudSettingsError::Missing("HCLOUD_TOKEN")),
        };
        let network = filled("HCLOUD_NETWORK");
        let settings = Self::new(
            &endpoint,
            token,
            &network.ok_or(HcloudSettingsError::Missing("HCLOUD_NETWORK"))?,
        )?;
        let quota = filled("WEFT_HCLOUD_ROUTE_QUOTA");
        let quota = quota.map_or(Ok(QUOTA), |text| text.trim().parse());
        Ok(Self {
            quota: quota.map_err(HcloudSettingsError::Quota)?,
            ..settings
        })
    }

    /// Settings with default timeouts and quota.
    pub fn new(
        endpoint: &str,
        token: HcloudToken,
        network: &str,
    ) -> Result<Self, HcloudSettingsError> {
        let endpoint: Uri = endpoint
            .trim_end_matches('/')
            .parse()
            .map_err(HcloudSettingsError::Endpoint)?;
        let known = matches!(endpoint.scheme_str(), Some("http" | "https"));
        if !known || endpoint.host().is_none() {
            return Err(HcloudSettingsError::IncompleteEndpoint);
        }
        Ok(Self {
            endpoint,
            token,
            network: network.trim().to_owned(),
            quota: QUOTA,
            timeout: Duration::from_secs(15),
            poll: Duration::from_millis(500),
            action_timeout: Duration::from_secs(60),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<HcloudSettings, HcloudSettingsError> {
        HcloudSettings::from_variables(|name| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn token_and_network_are_needed_and_the_rest_has_defaults() {
        let settings = read(&[("HCLOUD_TOKEN", "t0ken"), ("HCLOUD_NETWORK", "prod")]).unwrap();
        assert_eq!(settings.endpoint, ENDPOINT);
        assert_eq!((settings.network.as_str(), settings.quota), ("prod", QUOTA));
        assert!(!format!("{settings:?}").contains("t0ken"));
        for (given, missing) in [
            (("HCLOUD_TOKEN", "t0ken"), "HCLOUD_NETWORK is not set"),
            (("HCLOUD_NETWORK", "prod"), "HCLOUD_TOKEN is not set"),
        ] {
            assert_eq!(read(&[given]).unwrap_err().to_string(), missing);
        }
    }

    #[test]
    fn invalid_settings_are_refused_at_the_start() {
        let with = |name, value| {
            let both = [("HCLOUD_TOKEN", "t0ken"), ("HCLOUD_NETWORK", "prod")];
            read(&[both[0], both[1], (name, value)]).unwrap_err()
        };
        let error = with("HCLOUD_ENDPOINT", "api.example");
        assert!(matches!(error, HcloudSettingsError::IncompleteEndpoint));
        let error = with("WEFT_HCLOUD_ROUTE_QUOTA", "many");
        assert!(matches!(error, HcloudSettingsError::Quota(_)));
    }
}
