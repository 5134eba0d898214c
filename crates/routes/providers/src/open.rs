//! Opens providers by the name in `--cloud-provider`.

use std::{env, io, path::Path, sync::Arc};

use crate::{
    AwsProvider, AwsSettings, AwsSettingsError, Calls, HcloudProvider, HcloudSettings,
    HcloudSettingsError, SharedProvider,
};

/// A provider cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No provider has this name.
    #[error("{name:?} is not a provider: expected {} or netlink", KNOWN.join(", "))]
    Unknown {
        /// The name as given.
        name: String,
    },
    /// The settings of hcloud are invalid.
    #[error("cannot load the settings of provider hcloud")]
    Hcloud(#[from] HcloudSettingsError),
    /// The settings of aws are invalid.
    #[error("cannot load the settings of provider aws")]
    Aws(#[from] AwsSettingsError),
    /// The HTTP client cannot be created, usually for lack of root certificates.
    #[error("cannot create the HTTP client of provider {name}")]
    Client {
        /// Name of the provider.
        name: &'static str,
        /// The underlying error.
        source: io::Error,
    },
}

/// The names that [`open`] accepts, as in `--cloud-provider`. `netlink` is opened by
/// [`NetlinkProvider::open`](crate::NetlinkProvider::open): it belongs to a node and not to a
/// cloud.
pub const KNOWN: [&str; 2] = ["aws", "hcloud"];

/// Opens a provider by name, with its settings from the environment and from its cloud
/// configuration. The cloud is not called yet, so that the process starts while the cloud is down;
/// only the AWS region may be read from the instance metadata service.
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
