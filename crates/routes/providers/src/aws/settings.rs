use std::{num::ParseIntError, path::Path, time::Duration};

use aws_config::{BehaviorVersion, Region};
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_smithy_http_client::{
    Builder,
    tls::{Provider as TlsProvider, rustls_provider::CryptoMode},
};
use http::{Uri, uri::InvalidUri};

use super::cloud_config::{CloudConfig, CloudConfigError};

/// What the provider has to know.
#[derive(Clone, Debug)]
pub struct AwsSettings {
    /// The region: part of what is signed.
    pub region: String,
    /// EC2's query API.
    pub endpoint: Uri,
    /// Who we are.
    pub credentials: SharedCredentialsProvider,
    /// Which route tables.
    pub tables: TableChoice,
    /// How many routes a table holds, if that shall be forecast.
    pub quota: Option<usize>,
    /// How long an answer may take.
    pub timeout: Duration,
}

/// Which route tables are the cluster's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableChoice {
    /// These.
    Ids(Vec<String>),
    /// Those with the tag `kubernetes.io/cluster/<id>`, or the older `KubernetesCluster=<id>`.
    Cluster(String),
}

/// What is wrong with the settings.
#[derive(Debug, thiserror::Error)]
pub enum AwsSettingsError {
    /// The file with settings cannot be used.
    #[error("cloud configuration of AWS")]
    CloudConfig(#[from] CloudConfigError),
    /// Nothing says which route tables.
    #[error("neither RouteTableID nor KubernetesClusterID is set in the cloud configuration")]
    NoTables,
    /// Nothing says which region.
    #[error("no region: set AWS_REGION, or Zone in the cloud configuration")]
    NoRegion,
    /// Nothing says who we are.
    #[error("no source of credentials")]
    NoCredentials,
    /// The endpoint is no address.
    #[error("the endpoint of EC2 is not a URL")]
    Endpoint(#[source] InvalidUri),
    /// The endpoint is an address without a scheme or a host.
    #[error("the endpoint of EC2 needs http:// or https:// and a host")]
    IncompleteEndpoint,
    /// The quota is no number.
    #[error("WEFT_AWS_ROUTE_QUOTA is not a number")]
    Quota(#[source] ParseIntError),
}

const TIMEOUT: Duration = Duration::from_secs(15);

/// What a table holds unless AWS was asked for more, by the older of the figures that are around.
const QUOTA: usize = 50;

impl AwsSettings {
    /// Reads the cloud configuration, and credentials and region where all AWS tools find them:
    /// environment, profile, web identity, container, instance.
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

    /// With the usual time and quota.
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

/// With ring, the one cryptography of this program, in place of the default that takes minutes to
/// compile.
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
