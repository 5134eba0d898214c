//! HTTP endpoint for fault injection, with everything that [`Faults`] offers.
//!
//! | request | effect |
//! |---|---|
//! | `POST /weft/faults` | adds a rule, returns its `id` |
//! | `DELETE /weft/faults/rules/ID` | removes a rule |
//! | `POST /weft/faults/stall` | stalls matching watches, returns an `id` |
//! | `DELETE /weft/faults/stalls/ID` | releases them |
//! | `POST /weft/faults/cut` | ends matching watches, returns their `count` |
//! | `POST /weft/faults/watch-error` | sends matching watches an ERROR event, returns their `count` |
//! | `POST /weft/faults/drop` | disconnects matching clients for some `seconds` |
//! | `POST /weft/faults/compact` | compacts the history |
//! | `POST /weft/faults/expire-tokens` | expires all continue tokens |
//! | `POST /weft/faults/objects` | stores an object without validation |
//! | `DELETE /weft/faults` | removes all rules and stalls |
//!
//! Only in builds with the feature `fault-endpoint`, and only if the server was started with it.

use std::{sync::Arc, time::Duration};

use http::{Method, StatusCode};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    api::{Api, Context},
    fault::{Cut, Fault, FaultId, Faults, InjectedWatchError, Matcher, Times},
    reply::Reply,
    request::Verb,
    status::{ApiError, Outcome},
};

/// The requests or watches to match; an absent field matches all.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct MatchSpec {
    verb: Option<String>,
    resource: Option<String>,
    subresource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    path: Option<String>,
    query: Option<String>,
    user_agent: Option<String>,
    streaming_list: Option<bool>,
}

/// A rule: the requests it matches, its effect, and how often it applies.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleSpec {
    #[serde(default)]
    r#match: MatchSpec,
    fault: FaultSpec,
    #[serde(default)]
    times: TimesSpec,
}

#[derive(Debug, Deserialize)]
#[serde(
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
enum FaultSpec {
    Status {
        code: u16,
        #[serde(default)]
        retry_after: Option<u64>,
        #[serde(default)]
        message: Option<String>,
    },
    Body {
        code: u16,
        content_type: String,
        body: String,
    },
    DelayMillis(u64),
    Disconnect,
    RefuseAuthorisation,
    NoStreamingLists,
    WatchError(WatchErrorSpec),
    IgnoreLimit,
    StaleList(u64),
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
enum WatchErrorSpec {
    Expired,
    TooManyRequests(u64),
    TooLargeVersion,
    Internal,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
enum TimesSpec {
    Next(u64),
    #[default]
    Always,
    Rate(f64),
    Seconds(u64),
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct CutSpec {
    r#match: MatchSpec,
    mid_frame: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct StallSpec {
    r#match: MatchSpec,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ErrorSpec {
    #[serde(default)]
    r#match: MatchSpec,
    error: WatchErrorSpec,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DropSpec {
    #[serde(default)]
    r#match: MatchSpec,
    seconds: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ObjectSpec {
    resource: String,
    #[serde(default)]
    namespace: String,
    name: String,
    object: Value,
}

pub(super) fn answer(api: &Arc<Api>, context: &Context) -> Outcome<Reply> {
    let faults = Faults { api: api.clone() };
    let path = context.info.path.as_str();
    let action = path.strip_prefix(super::FAULT_PATH).unwrap_or_default();
    let answer = match (&context.method, action) {
        (&Method::POST, action) => post(&faults, context, action)?,
        (&Method::DELETE, "") => {
            faults.clear();
            json!({})
        }
        (&Method::DELETE, action) => remove(&faults, action)?,
        _ => return Err(ApiError::page_not_found()),
    };
    Ok(Reply::value(StatusCode::OK, answer))
}

fn post(faults: &Faults, context: &Context, action: &str) -> Outcome<Value> {
    Ok(match action {
        "" => {
            let spec: RuleSpec = read(context)?;
            let (matcher, fault) = (spec.r#match.matcher()?, spec.fault.fault()?);
            let FaultId(id) = faults.inject(matcher, fault, spec.times.times());
            json!({ "id": id })
        }
        "/stall" => {
            let spec: StallSpec = read(context)?;
            let stall = faults.stall_watches(spec.r#match.matcher()?);
            json!({ "id": stall.keep() })
        }
        "/cut" => {
            let spec: CutSpec = read(context)?;
            let how = if spec.mid_frame {
                Cut::MidFrame
            } else {
                Cut::Clean
            };
            json!({ "count": faults.cut_watches(&spec.r#match.matcher()?, how) })
        }
        "/watch-error" => {
            let spec: ErrorSpec = read(context)?;
            let matcher = spec.r#match.matcher()?;
            json!({ "count": faults.send_watch_error(&matcher, &spec.error.error()) })
        }
        "/drop" => {
            let spec: DropSpec = read(context)?;
            let lasting = Duration::from_secs(spec.seconds);
            let FaultId(id) = faults.drop_client(spec.r#match.matcher()?, lasting);
            json!({ "id": id })
        }
        "/compact" => {
            faults.compact();
            json!({})
        }
        "/expire-tokens" => {
            faults.expire_continue_tokens();
            json!({})
        }
        "/objects" => {
            let spec: ObjectSpec = read(context)?;
            let ObjectSpec {
                resource,
                namespace,
                name,
                object,
            } = spec;
            if !faults.inject_raw(&resource, &namespace, &name, object) {
                let text = format!(
                    "cannot store the object: {resource:?} is not a served resource, or the body \
                     has no JSON object"
                );
                return Err(ApiError::bad_request(text));
            }
            json!({})
        }
        _ => return Err(ApiError::page_not_found()),
    })
}

fn remove(faults: &Faults, action: &str) -> Outcome<Value> {
    let id = |text: &str| text.parse().map_err(|_| ApiError::page_not_found());
    if let Some(rule) = action.strip_prefix("/rules/") {
        faults.remove(FaultId(id(rule)?));
    } else if let Some(stall) = action.strip_prefix("/stalls/") {
        faults.api.watches.release(id(stall)?);
    } else {
        return Err(ApiError::page_not_found());
    }
    Ok(json!({}))
}

/// Parses the body; an absent body counts as `{}`.
fn read<T: DeserializeOwned>(context: &Context) -> Outcome<T> {
    let body: &[u8] = match &*context.body {
        [] => b"{}",
        body => body,
    };
    serde_json::from_slice(body).map_err(|error| ApiError::bad_request(error.to_string()))
}

/// Adds one criterion to a matcher.
type Setter = fn(Matcher, &str) -> Matcher;

impl MatchSpec {
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
        let texts: [(&Option<String>, Setter); 7] = [
            (&self.resource, Matcher::resource),
            (&self.subresource, Matcher::subresource),
            (&self.namespace, Matcher::namespace),
            (&self.name, Matcher::name),
            (&self.path, Matcher::path),
            (&self.query, Matcher::query),
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
}

fn status_code(code: u16) -> Outcome<StatusCode> {
    StatusCode::from_u16(code).map_err(|error| ApiError::bad_request(error.to_string()))
}

impl FaultSpec {
    fn fault(self) -> Outcome<Fault> {
        Ok(match self {
            Self::Status {
                code,
                retry_after,
                message,
            } => Fault::Status {
                code: status_code(code)?,
                retry_after,
                message: message.unwrap_or_else(|| "injected fault".to_owned()),
            },
            Self::Body {
                code,
                content_type,
                body,
            } => Fault::Body {
                code: status_code(code)?,
                content_type,
                body: body.into_bytes(),
            },
            Self::DelayMillis(millis) => Fault::Delay(Duration::from_millis(millis)),
            Self::Disconnect => Fault::Disconnect,
            Self::RefuseAuthorisation => Fault::Unauthorised,
            Self::NoStreamingLists => Fault::NoStreamingLists,
            Self::WatchError(error) => Fault::WatchError(error.error()),
            Self::IgnoreLimit => Fault::IgnoreLimit,
            Self::StaleList(version) => Fault::StaleList { version },
        })
    }
}

impl WatchErrorSpec {
    fn error(self) -> InjectedWatchError {
        match self {
            Self::Expired => InjectedWatchError::Expired,
            Self::TooManyRequests(retry_after) => {
                InjectedWatchError::TooManyRequests { retry_after }
            }
            Self::TooLargeVersion => InjectedWatchError::TooLargeVersion,
            Self::Internal => InjectedWatchError::Internal,
        }
    }
}

impl TimesSpec {
    fn times(self) -> Times {
        match self {
            Self::Next(count) => Times::Next(count),
            Self::Always => Times::Always,
            Self::Rate(rate) => Times::Rate(rate),
            Self::Seconds(seconds) => Times::For(Duration::from_secs(seconds)),
        }
    }
}
