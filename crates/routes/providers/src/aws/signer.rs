//! Signs EC2 requests with AWS Signature Version 4.

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

/// Signs requests, and caches credentials until shortly before they expire.
#[derive(Debug)]
pub(super) struct Signer {
    region: String,
    source: SharedCredentialsProvider,
    /// Locked while new credentials are fetched, so that they are fetched once.
    held: Mutex<Option<Held>>,
}

#[derive(Debug)]
struct Held {
    credentials: Credentials,
    until: SystemTime,
}

/// Credentials are renewed this long before they expire; those without an expiry are read again
/// after this time, because files and environments change too.
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
        let credentials = self.credentials().await?;
        self.sign_as(credentials, request, body, SystemTime::now())
    }

    fn sign_as(
        &self,
        credentials: Credentials,
        request: &mut Request<()>,
        body: &[u8],
        now: SystemTime,
    ) -> Result<(), ProviderError> {
        let identity = credentials.into();
        let unsignable = || ProviderError::Invalid("cannot sign the request".into());
        let parameters = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name("ec2")
            .time(now)
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
            warn!(%error, "cannot load AWS credentials");
            match error {
                CredentialsError::CredentialsNotLoaded(_)
                | CredentialsError::InvalidConfiguration(_) => ProviderError::Forbidden,
                _ => ProviderError::Retry("cannot load AWS credentials".into()),
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

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    /// The expected signatures are botocore's (of moto 5.2.5) for the same request.
    #[test]
    fn a_request_is_signed_as_botocore_signs_it() {
        let table = [
            (
                None,
                "f535e5de7f554928e46da5b6d3ece8c34bcd58fa56aa39759e913c855c7372b0",
            ),
            (
                Some("t0ken"),
                "77df6a931ab1fcf0dc20215edcc6f1d88a4280475923e06511a0101f95e64bbf",
            ),
        ];
        // 2026-01-02 03:04:05 UTC
        let now = UNIX_EPOCH + Duration::from_secs(1_767_323_045);
        for (token, expected) in table {
            let credentials = Credentials::new(
                "AKIDEXAMPLE",
                "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
                token.map(str::to_owned),
                None,
                "test",
            );
            let source = SharedCredentialsProvider::new(credentials.clone());
            let signer = Signer::new("eu-central-1".to_owned(), source);
            let mut request = Request::post("https://ec2.eu-central-1.amazonaws.com/")
                .header(
                    "content-type",
                    "application/x-www-form-urlencoded; charset=utf-8",
                )
                .header("user-agent", "weft")
                .body(())
                .unwrap();
            let body = b"Action=DescribeRouteTables&Version=2016-11-15";
            signer
                .sign_as(credentials, &mut request, body, now)
                .unwrap();
            let header = request.headers()["authorization"].to_str().unwrap();
            assert!(
                header.ends_with(&format!("Signature={expected}")),
                "{header}"
            );
        }
    }
}
