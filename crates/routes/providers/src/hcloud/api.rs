//! Calls of the Hetzner Cloud API.

use std::{io, time::SystemTime};

use bytes::Bytes;
use http::{Method, Request, Uri, header};
use http_body_util::Full;
use serde::de::DeserializeOwned;
use weft_routes::{ProviderError, RateLimit};

use super::{
    failure,
    rate::rate_limit,
    settings::HcloudSettings,
    token::{HcloudToken, authorization},
    wire,
};
use crate::{
    Answer, Calls, Secret,
    http::{Effect, HttpAnswer, HttpClient, shortened},
};

/// Authenticated calls, counted by purpose.
#[derive(Debug)]
pub(super) struct Api {
    http: HttpClient,
    endpoint: Uri,
    token: HcloudToken,
    calls: Calls,
}

/// Purpose of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    List,
    Poll,
    Instances,
    Create,
    Delete,
}

impl Purpose {
    /// Value of the metric label `operation`.
    fn operation(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Poll => "poll",
            Self::Instances => "instances",
            Self::Create => "create",
            Self::Delete => "delete",
        }
    }

    pub(super) fn effect(self) -> Effect {
        match self {
            Self::List | Self::Poll | Self::Instances => Effect::Read,
            Self::Create | Self::Delete => Effect::Change,
        }
    }
}

impl Api {
    pub(super) fn new(settings: HcloudSettings, calls: Calls) -> io::Result<Self> {
        Ok(Self {
            http: HttpClient::new(&settings.endpoint, settings.timeout)?,
            endpoint: settings.endpoint,
            token: settings.token,
            calls,
        })
    }

    /// Reads something. Values in the path must be encoded already.
    pub(super) async fn read<T: DeserializeOwned>(
        &self,
        purpose: Purpose,
        path: &str,
    ) -> Answer<T> {
        self.call(purpose, Method::GET, path, Bytes::new()).await
    }

    /// Starts the action that adds or deletes a route.
    pub(super) async fn change(
        &self,
        purpose: Purpose,
        network: u64,
        route: &wire::Route,
    ) -> Answer<wire::Action> {
        let verb = match purpose {
            Purpose::Delete => "delete_route",
            _ => "add_route",
        };
        let path = format!("networks/{network}/actions/{verb}");
        let body = serde_json::to_vec(route).expect("two strings can be written");
        let answer = self.call(purpose, Method::POST, &path, body.into()).await;
        Answer {
            result: answer.result.map(|reply: wire::ActionReply| reply.action),
            rate: answer.rate,
        }
    }

    async fn call<T: DeserializeOwned>(
        &self,
        purpose: Purpose,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Answer<T> {
        let mut rate = None;
        let call = async {
            let token = self.token.current();
            let request = self.request(&token, method, path, body)?;
            let answer = self.http.send(request).await;
            let answer = answer.map_err(|error| error.classify(purpose.effect()))?;
            rate = rate_limit(&answer.headers, SystemTime::now());
            decode(&answer, purpose, rate).map_err(|error| without(&token, error))
        };
        let result = self.calls.count(purpose.operation(), call).await;
        Answer { result, rate }
    }

    fn request(
        &self,
        token: &Secret,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, ProviderError> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}/{path}", self.endpoint))
            .header(header::AUTHORIZATION, authorization(token)?)
            .header(header::CONTENT_TYPE, "application/json")
            .header(
                header::USER_AGENT,
                concat!("weft/", env!("CARGO_PKG_VERSION")),
            );
        let invalid = |_| ProviderError::Invalid("cannot build the request".into());
        request.body(Full::new(body)).map_err(invalid)
    }
}

fn decode<T: DeserializeOwned>(
    answer: &HttpAnswer,
    purpose: Purpose,
    rate: Option<RateLimit>,
) -> Result<T, ProviderError> {
    if answer.status.is_success() {
        let garbage =
            |error: serde_json::Error| ProviderError::Garbage(error.to_string().as_str().into());
        return serde_json::from_slice(&answer.body).map_err(garbage);
    }
    let problem = serde_json::from_slice::<wire::ProblemReply>(&answer.body);
    Err(match problem {
        Ok(reply) => failure::classify(&reply.error, purpose, rate),
        Err(_) => failure::classify_status(answer.status, purpose, rate),
    })
}

/// The error, with the token replaced should the server have repeated it.
fn without(token: &Secret, error: ProviderError) -> ProviderError {
    // Shortened afterwards: half a token would not be recognised.
    let cut = |text: &str| shortened(&token.cut_from(text)).as_str().into();
    match error {
        ProviderError::Retry(text) => ProviderError::Retry(cut(&text)),
        ProviderError::NotReady(text) => ProviderError::NotReady(cut(&text)),
        ProviderError::Invalid(text) => ProviderError::Invalid(cut(&text)),
        ProviderError::Garbage(text) => ProviderError::Garbage(cut(&text)),
        error => error,
    }
}
