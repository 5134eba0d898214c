//! Faults over HTTP, for playgrounds whose clients are other processes.
//!
//! `POST /weft/faults` adds a rule, `DELETE /weft/faults` takes all back, `POST
//! /weft/faults/compact` forgets history, `POST /weft/faults/cut` ends watches. Only there when
//! the server was started with it.

use std::{sync::Arc, time::Duration};

use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;

use crate::{
    api::{Api, Context},
    fault::{Cut, Fault, Faults, Matcher, Times, WatchError},
    reply::Reply,
    request::Verb,
    status::{ApiError, Outcome},
};

/// Where the endpoint lives.
pub(crate) const PREFIX: &str = "/weft/faults";

/// Which requests, what happens, how often.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Order {
    verb: Option<String>,
    resource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    path: Option<String>,
    user_agent: Option<String>,
    streaming_list: Option<bool>,
    status: Option<u16>,
    retry_after: Option<u64>,
    message: Option<String>,
    delay_millis: Option<u64>,
    disconnect: bool,
    expire_watch: bool,
    mid_frame: bool,
    times: Option<u64>,
    rate: Option<f64>,
    seconds: Option<u64>,
}

pub(super) fn answer(api: &Arc<Api>, context: &Context) -> Outcome<Reply> {
    let faults = Faults { api: api.clone() };
    let action = context.info.path.strip_prefix(PREFIX).unwrap_or_default();
    match (&context.method, action) {
        (&Method::DELETE, "") => faults.clear(),
        (&Method::POST, "/compact") => faults.compact(),
        (&Method::POST, "/expire-tokens") => faults.expire_continue_tokens(),
        (&Method::POST, "/cut") => {
            let order = read(context)?;
            let how = if order.mid_frame {
                Cut::MidFrame
            } else {
                Cut::Clean
            };
            let count = faults.cut_watches(&order.matcher()?, how);
            return Ok(Reply::value(StatusCode::OK, json!({ "cut": count })));
        }
        (&Method::POST, "") => {
            let order = read(context)?;
            faults.inject(order.matcher()?, order.fault()?, order.times());
        }
        _ => return Err(ApiError::page_not_found()),
    }
    Ok(Reply::value(StatusCode::OK, json!({})))
}

fn read(context: &Context) -> Outcome<Order> {
    if context.body.is_empty() {
        return Ok(Order::default());
    }
    serde_json::from_slice(&context.body).map_err(|error| ApiError::bad_request(error.to_string()))
}

/// A way to narrow a matcher by a text.
type Setter = fn(Matcher, &str) -> Matcher;

impl Order {
    fn matcher(&self) -> Outcome<Matcher> {
        let mut matcher = Matcher::any();
        if let Some(verb) = &self.verb {
            let known = [
                Verb::Get,
                Verb::List,
                Verb::Watch,
                Verb::Create,
                Verb::Update,
                Verb::Patch,
                Verb::Delete,
                Verb::DeleteCollection,
            ];
            let found = known.into_iter().find(|known| known.name() == verb);
            let unknown = || ApiError::bad_request(format!("unknown verb {verb:?}"));
            matcher = matcher.verb(found.ok_or_else(unknown)?);
        }
        let texts: [(&Option<String>, Setter); 5] = [
            (&self.resource, Matcher::resource),
            (&self.namespace, Matcher::namespace),
            (&self.name, Matcher::name),
            (&self.path, Matcher::path),
            (&self.user_agent, Matcher::user_agent),
        ];
        for (text, set) in texts {
            if let Some(text) = text {
                matcher = set(matcher, text);
            }
        }
        if let Some(asked) = self.streaming_list {
            matcher = matcher.streaming_list(asked);
        }
        Ok(matcher)
    }

    fn fault(&self) -> Outcome<Fault> {
        if let Some(code) = self.status {
            let code = StatusCode::from_u16(code)
                .map_err(|error| ApiError::bad_request(error.to_string()))?;
            let message = self
                .message
                .clone()
                .unwrap_or_else(|| "injected fault".to_owned());
            return Ok(Fault::Status {
                code,
                retry_after: self.retry_after,
                message,
            });
        }
        if let Some(millis) = self.delay_millis {
            return Ok(Fault::Delay(Duration::from_millis(millis)));
        }
        if self.disconnect {
            return Ok(Fault::Disconnect);
        }
        if self.expire_watch {
            return Ok(Fault::WatchError(WatchError::Expired));
        }
        Err(ApiError::bad_request(
            "one of status, delayMillis, disconnect, expireWatch is needed",
        ))
    }

    fn times(&self) -> Times {
        match (self.times, self.rate, self.seconds) {
            (Some(count), ..) => Times::Next(count),
            (_, Some(rate), _) => Times::Rate(rate),
            (_, _, Some(seconds)) => Times::For(Duration::from_secs(seconds)),
            _ => Times::Always,
        }
    }
}
