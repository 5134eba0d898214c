use std::{env, io, path::Path, sync::Arc};

use crate::{
    AwsProvider, AwsSettings, AwsSettingsError, Calls, HcloudProvider, HcloudSettings,
    HcloudSettingsError, SharedProvider,
};

/// Why a provider cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is none of that name.
    #[error("no provider is called {name:?}; there are {}, netlink", KNOWN.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The settings of hcloud.
    #[error("settings of the provider hcloud")]
    Hcloud(#[from] HcloudSettingsError),
    /// The settings of aws.
    #[error("settings of the provider aws")]
    Aws(#[from] AwsSettingsError),
    /// The HTTP client cannot be made: no certificates, as a rule.
    #[error("HTTP client of the provider {name}")]
    Client {
        /// Which provider.
        name: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// The names that [`open`] knows, as `--cloud-provider` has them. `netlink` is opened by
/// [`NetlinkProvider::open`](crate::NetlinkProvider::open): it belongs to a node and not to a cloud.
pub const KNOWN: [&str; 2] = ["aws", "hcloud"];

/// Opens a provider by name, with its settings from the environment and from its cloud
/// configuration. Nothing is asked of the cloud yet, so that a cloud that is down does not keep
/// anybody from starting; only AWS may be asked for a region that nothing else tells.
pub async fn open(
    name: &str,
    cloud_config: Option<&Path>,
    calls: Calls,
) -> Result<SharedProvider, OpenError> {
    let variable = |name: &str| env::var(name).ok();
    let client = |name| move |source| OpenError::Client { name, source };
    Ok(match name {
        "aws" => {
            let settings = AwsSettings::load(cloud_config, variable).await?;
            Arc::new(AwsProvider::new(settings, calls).map_err(client("aws"))?)
        }
        "hcloud" => {
            let settings = HcloudSettings::from_variables(variable)?;
            Arc::new(HcloudProvider::new(settings, calls).map_err(client("hcloud"))?)
        }
        #[cfg(feature = "memory")]
        "memory" => {
            let profile = weft_routes::simulation::Profile::MEMORY;
            let provider = crate::MemoryProvider::new(profile, Vec::new());
            Arc::new(provider.counting(calls))
        }
        unknown => {
            let name = unknown.to_owned();
            return Err(OpenError::Unknown { name });
        }
    })
}
