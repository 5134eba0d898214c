//! Settings of the provider `aws`.

use std::{num::ParseIntError, path::Path, time::Duration};

use aws_config::{BehaviorVersion, Region};
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_smithy_http_client::{
    Builder,
    tls::{Provider as TlsProvider, rustls_provider::CryptoMode},
};
use http::{Uri, uri::InvalidUri};

use super::cloud_config::{CloudConfig, CloudConfigError};

/// Settings of the provider `aws`.
#[derive(Clone, Debug)]
pub struct AwsSettings {
    /// The region, which is part of the signature.
    pub region: String,
    /// URL of EC2's query API.
    pub endpoint: Uri,
    /// Source of credentials.
    pub credentials: SharedCredentialsProvider,
    /// The route tables to manage.
    pub tables: TableChoice,
    /// Capacity of a table in routes; `None` for no forecast.
    pub quota: Option<usize>,
    /// Timeout of one call.
    pub timeout: Duration,
}

/// Selection of the cluster's route tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableChoice {
    /// Tables with these IDs.
    Ids(Vec<String>),
    /// Tables with the tag `kubernetes.io/cluster/<id>`, or the older `KubernetesCluster=<id>`.
    Cluster(String),
}

/// The settings are invalid.
#[derive(Debug, thiserror::Error)]
pub enum AwsSettingsError {
    /// The cloud configuration is invalid.
    #[error("cannot load the cloud configuration of AWS")]
    CloudConfig(#[from] CloudConfigError),
    /// No route tables are configured.
    #[error("neither RouteTableID nor KubernetesClusterID is set in the cloud configuration")]
    NoTables,
    /// No region is configured.
    #[error("no region: set AWS_REGION, or Zone in the cloud configuration")]
    NoRegion,
    /// No source of credentials was found.
    #[error("no source of credentials")]
    NoCredentials,
    /// The endpoint is not a URL.
    #[error("the endpoint of EC2 is not a URL")]
    Endpoint(#[source] InvalidUri),
    /// The endpoint has no scheme or no host.
    #[error("the endpoint of EC2 needs http:// or https:// and a host")]
    IncompleteEndpoint,
    /// The quota is not a number.
    #[error("WEFT_AWS_ROUTE_QUOTA is not a number")]
    Quota(#[source] ParseIntError),
}

const TIMEOUT: Duration = Duration::from_secs(15);

/// Default capacity of a table: the older of the published figures.
const QUOTA: usize = 50;

impl AwsSettings {
    /// Reads the cloud configuration, and credentials and region from where all AWS tools read
    /// them: environment, profile, web identity, container, instance.
    pub async fn load(
        cloud_config: Option<&Path>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, AwsSettingsError> {
        let file = cloud_config.map(CloudConfig::read).transpose()?;
        let file = file.unwrap_or_default();
        let tables = TableChoice::of(&file).ok_or(AwsSettingsError::NoTables)?;
        let quota = variable("WEFT_AWS_ROUTE_QUOTA").filter(|text| !text.trim().is_empty());
        let quota = quota.map_or(Ok(QUOTA), |text| text.trim().parse());
        let quota = quota.map_err(AwsSettingsError::Quota)?;
        let shared = shared_config(file.region).await;
        let region = shared
            .region()
            .ok_or(AwsSettingsError::NoRegion)?
            .to_string();
        let own = variable("AWS_ENDPOINT_URL_EC2").filter(|url| !url.trim().is_empty());
        let common = || shared.endpoint_url().map(str::to_owned);
        let endpoint = own
            .or_else(common)
            .unwrap_or_else(|| public_endpoint(&region));
        let credentials = shared.credentials_provider();
        let credentials = credentials.ok_or(AwsSettingsError::NoCredentials)?;
        let settings = Self::new(&endpoint, &region, credentials, tables)?;
        Ok(Self {
            quota: Some(quota),
            ..settings
        })
    }

    /// Settings with default timeout and quota.
    pub fn new(
        endpoint: &str,
        region: &str,
        credentials: SharedCredentialsProvider,
        tables: TableChoice,
    ) -> Result<Self, AwsSettingsError> {
        let endpoint: Uri = endpoint.parse().map_err(AwsSettingsError::Endpoint)?;
        let known = matches!(endpoint.scheme_str(), Some("http" | "https"));
        if !known || endpoint.host().is_none() {
            return Err(AwsSettingsError::IncompleteEndpoint);
        }
        Ok(Self {
            region: region.to_owned(),
            endpoint,
            credentials,
            tables,
            quota: Some(QUOTA),
            timeout: TIMEOUT,
        })
    }
}

impl TableChoice {
    fn of(file: &CloudConfig) -> Option<Self> {
        if file.route_tables.is_empty() {
            return file.cluster.clone().map(Self::Cluster);
        }
        Some(Self::Ids(file.route_tables.clone()))
    }
}

/// Loads the SDK configuration, with ring for TLS: the default library takes minutes to compile.
async fn shared_config(region: Option<String>) -> aws_config::SdkConfig {
    let tls = TlsProvider::Rustls(CryptoMode::Ring);
    let client = Builder::new().tls_provider(tls).build_https();
    let mut loader = aws_config::defaults(BehaviorVersion::latest()).http_client(client);
    if let Some(region) = region {
        loader = loader.region(Region::new(region));
    }
    loader.load().await
}

fn public_endpoint(region: &str) -> String {
    let suffix = if region.starts_with("cn-") { ".cn" } else { "" };
    format!("https://ec2.{region}.amazonaws.com{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_by_id_win_over_tables_by_tag() {
        let choice = |text: &str| TableChoice::of(&CloudConfig::parse(text).unwrap());
        let both = "[Global]\nKubernetesClusterID=prod\nRouteTableID=rtb-1\n";
        assert_eq!(
            choice(both),
            Some(TableChoice::Ids(vec!["rtb-1".to_owned()]))
        );
        let tag = "[Global]\nKubernetesClusterID=prod\n";
        assert_eq!(choice(tag), Some(TableChoice::Cluster("prod".to_owned())));
        assert_eq!(choice(""), None);
    }

    #[test]
    fn china_has_a_domain_of_its_own() {
        assert_eq!(
            public_endpoint("eu-west-1"),
            "https://ec2.eu-west-1.amazonaws.com"
        );
        assert_eq!(
            public_endpoint("cn-north-1"),
            "https://ec2.cn-north-1.amazonaws.com.cn"
        );
    }
}
