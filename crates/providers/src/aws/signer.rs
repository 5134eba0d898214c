use std::time::{Duration, SystemTime};

use aws_credential_types::{
    Credentials,
    provider::{ProvideCredentials as _, SharedCredentialsProvider, error::CredentialsError},
};
use aws_sigv4::{
    http_request::{SignableBody, SignableRequest, SigningSettings, sign},
    sign::v4,
};
use http::Request;
use tokio::sync::Mutex;
use tracing::warn;
use weft_routes::ProviderError;

/// Signs requests with credentials that are kept as long as they are good.
#[derive(Debug)]
pub(super) struct Signer {
    region: String,
    source: SharedCredentialsProvider,
    /// Held while new ones are fetched, so that they are fetched once.
    held: Mutex<Option<Held>>,
}

#[derive(Debug)]
struct Held {
    credentials: Credentials,
    until: SystemTime,
}

/// Credentials are exchanged so long before they expire; and those that do not say when they do are
/// looked at so often, because files and environments of others change too.
const MARGIN: Duration = Duration::from_secs(300);

impl Signer {
    pub(super) fn new(region: String, source: SharedCredentialsProvider) -> Self {
        Self {
            region,
            source,
            held: Mutex::default(),
        }
    }

    pub(super) async fn sign(
        &self,
        request: &mut Request<()>,
        body: &[u8],
    ) -> Result<(), ProviderError> {
        let identity = self.credentials().await?.into();
        let unsignable = || ProviderError::Invalid("the request cannot be signed".into());
        let parameters = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name("ec2")
            .time(SystemTime::now())
            .settings(SigningSettings::default())
            .build()
            .map_err(|_| unsignable())?
            .into();
        let headers = request.headers().iter();
        let headers =
            headers.filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
        let uri = request.uri().to_string();
        let signable = SignableRequest::new("POST", uri, headers, SignableBody::Bytes(body))
            .map_err(|_| unsignable())?;
        let signed = sign(signable, &parameters).map_err(|_| unsignable())?;
        let (instructions, _) = signed.into_parts();
        instructions.apply_to_request_http1x(request);
        Ok(())
    }

    async fn credentials(&self) -> Result<Credentials, ProviderError> {
        let mut held = self.held.lock().await;
        let now = SystemTime::now();
        if let Some(held) = held.as_ref().filter(|held| now < held.until) {
            return Ok(held.credentials.clone());
        }
        let credentials = self.source.provide_credentials().await.map_err(|error| {
            warn!(%error, "no credentials for AWS");
            match error {
                CredentialsError::CredentialsNotLoaded(_)
                | CredentialsError::InvalidConfiguration(_) => ProviderError::Forbidden,
                _ => ProviderError::Retry("no credentials".into()),
            }
        })?;
        let until = match credentials.expiry() {
            Some(expiry) => expiry.checked_sub(MARGIN).unwrap_or(now),
            None => now + MARGIN,
        };
        *held = Some(Held {
            credentials: credentials.clone(),
            until,
        });
        Ok(credentials)
    }
}
