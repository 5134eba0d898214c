//! State of one server, and the pipeline that every request passes.
//!
//! classify → faults → authenticate → authorise → read the body → handle → render. Handlers are
//! synchronous except where they wait: for a resource version, a pod's response or a watch event.
//! A write is answered when it is durable.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, header, request::Parts};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use weft_listener::ConnectionPool;

use crate::{
    admission::Policies,
    auth::{Authenticator, Authorizer, User},
    clock::Clock,
    controllers::ControllerQueue,
    custom::Definitions,
    encoding::paths::shortened,
    fault::{Fault, FaultRules, Interference, OpenWatches, no_streaming_lists},
    handler,
    kind::{Origin, Registry, ResourceType},
    meta::Meta as _,
    negotiate::{Encoding, Negotiated, ResponseKind},
    pod_dialer::PodDialer,
    query::Query,
    random::Random,
    rendering::{LARGE, Rendering},
    reply::{Body, BoxError, Payload, Reply, gathered, response, whole},
    request::{RequestInfo, Verb},
    rules::{event::Expiry, service::Allocator},
    stats::RequestLog,
    status::{ApiError, Outcome},
    store::{Store, Stored},
    write_lock::{self, WriteLock},
};

/// Largest request body.
pub(crate) const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// `Warning` headers of one answer; further warnings are dropped.
const MAX_WARNINGS: usize = 100;

/// State of one server, shared by all its connections and tasks.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) store: Arc<Store>,
    pub(crate) registry: Registry,
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    pub(crate) faults: FaultRules,
    pub(crate) watches: OpenWatches,
    pub(crate) requests: RequestLog,
    pub(crate) authenticator: Authenticator,
    pub(crate) authorizer: Authorizer,
    pub(crate) allocator: Allocator,
    /// Ends every watch and every background task.
    pub(crate) shutdown: CancellationToken,
    /// Connections that are not closed yet.
    pub(crate) connections: TaskTracker,
    pub(crate) pool: ConnectionPool,
    /// Wakes the task of [`crate::controllers`]: `controller_queue` has work.
    pub(crate) wake_controllers: Notify,
    pub(crate) controller_queue: ControllerQueue,
    pub(crate) event_expiry: Expiry,
    pub(crate) policies: Policies,
    pub(crate) definitions: Definitions,
    pub(crate) write_lock: WriteLock,
    pub(crate) rendering: Rendering,
    /// Serves `/weft/faults`.
    pub(crate) fault_endpoint: bool,
    /// The HTTPS address, once the server listens.
    pub(crate) address: OnceLock<SocketAddr>,
    /// Connects `pods/proxy` to pods; without it those requests are answered 503.
    pub(crate) pod_dialer: Option<PodDialer>,
}

/// A connection broken on purpose.
#[derive(Debug, thiserror::Error)]
#[error("connection broken by an injected fault")]
pub struct Disconnected;

/// One authenticated request with its body, as handlers see it.
pub(crate) struct Context {
    pub(crate) info: RequestInfo,
    pub(crate) query: Query,
    pub(crate) method: Method,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) user: User,
    pub(crate) interference: Interference,
    /// Texts for `Warning` headers, at most [`MAX_WARNINGS`].
    pub(crate) warnings: parking_lot::Mutex<Vec<String>>,
}

impl Context {
    pub(crate) fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn warn(&self, text: impl Into<String>) {
        let mut warnings = self.warnings.lock();
        let text = shortened(text.into());
        if warnings.len() < MAX_WARNINGS && !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    /// The representation to answer in.
    pub(crate) fn negotiated(&self, kind: &ResourceType) -> Outcome<Negotiated> {
        let response = match self.info.verb {
            Verb::Watch => ResponseKind::Watch,
            Verb::List => ResponseKind::Collection,
            _ => ResponseKind::Object,
        };
        crate::negotiate::negotiate(self.header(header::ACCEPT), kind.origin(), response)
    }

    /// The field manager of a write: that of the query, else the user agent up to its first `/`,
    /// else `unknown`.
    pub(crate) fn manager(&self, named: Option<&str>) -> String {
        if let Some(name) = named {
            return name.to_owned();
        }
        let agent = self.info.user_agent.split('/').next().unwrap_or_default();
        if agent.is_empty() {
            "unknown".to_owned()
        } else {
            agent.to_owned()
        }
    }
}

impl Api {
    /// Answers one request.
    pub(crate) async fn serve<B>(
        self: Arc<Self>,
        request: Request<B>,
    ) -> Result<Response<Body>, Disconnected>
    where
        B: hyper::body::Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = request.into_parts();
        let raw_query = parts.uri.query().unwrap_or_default();
        let query = Query::parse(raw_query);
        let mut info = RequestInfo::new(&parts.method, parts.uri.path(), raw_query, &query);
        let agent = parts
            .headers
            .get(header::USER_AGENT)
            .and_then(|v| v.to_str().ok());
        agent.unwrap_or_default().clone_into(&mut info.user_agent);

        let interference = if handler::is_fault_endpoint(&self, &info.path) {
            Interference::default()
        } else {
            self.faults.interfere(&info)
        };
        if !interference.delay.is_zero() {
            tokio::time::sleep(interference.delay).await;
        }
        if interference.answer == Some(Fault::Disconnect) {
            self.requests.record(&info, 0);
            return Err(Disconnected);
        }
        let answer = self
            .clone()
            .answer(&info, parts, query, interference, body)
            .await;
        self.requests.record(&info, answer.status().as_u16());
        Ok(answer)
    }

    async fn answer<B>(
        self: Arc<Self>,
        info: &RequestInfo,
        parts: Parts,
        query: Query,
        interference: Interference,
        body: B,
    ) -> Response<Body>
    where
        B: hyper::body::Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let mut context = Context {
            info: info.clone(),
            query,
            method: parts.method,
            headers: parts.headers,
            body: Bytes::new(),
            user: User::anonymous(),
            interference,
            warnings: parking_lot::Mutex::default(),
        };
        let identity = parts.extensions.get::<User>().cloned();
        let writes = !matches!(
            info.verb,
            Verb::Get | Verb::List | Verb::Watch | Verb::NonResource
        );
        let outcome = match self.admit(&mut context, identity) {
            // A write that cannot be persisted is refused before any watcher sees it.
            Ok(()) if writes && !self.store.keeps_writes() => Err(not_persisted()),
            // The body of a read has no meaning, so it is not read into memory.
            Ok(()) if matches!(context.method, Method::GET | Method::HEAD) => Ok(()),
            Ok(()) => read_body(body).await.map(|bytes| context.body = bytes),
            Err(error) => Err(error),
        };
        let context = Arc::new(context);
        let outcome = match outcome {
            Ok(()) if writes => write_lock::write(&self, &context).await,
            Ok(()) => handler::handle(&self, &context).await,
            Err(error) => Err(error),
        };
        let outcome = match (outcome, &context.interference.answer) {
            (
                Err(_),
                Some(Fault::Body {
                    code,
                    content_type,
                    body,
                }),
            ) => {
                let kind = header::HeaderValue::from_str(content_type)
                    .unwrap_or(header::HeaderValue::from_static("application/json"));
                Ok(Reply::new(
                    *code,
                    Payload::Raw(Bytes::from(body.clone()), kind),
                ))
            }
            (outcome, _) => outcome,
        };
        let outcome = match outcome {
            Ok(_) if writes && !self.store.durable().await => Err(not_persisted()),
            outcome => outcome,
        };
        let reply = outcome.unwrap_or_else(|error| Reply::error(&error));
        self.respond(&context, reply).await
    }

    /// Applies injected answers, then authenticates, then authorises.
    fn admit(&self, context: &mut Context, identity: Option<User>) -> Outcome<()> {
        match &context.interference.answer {
            Some(Fault::Status {
                code,
                retry_after,
                message,
            }) => {
                return Err(ApiError::injected(*code, message, *retry_after));
            }
            // The caller replaces this error by the injected body.
            Some(Fault::Body { code, .. }) => return Err(ApiError::injected(*code, "", None)),
            Some(Fault::NoStreamingLists) => return Err(no_streaming_lists()),
            _ => {}
        }
        context.user = self
            .authenticator
            .authenticate(self, &context.headers, identity)?;
        context.user = self
            .authorizer
            .impersonate(self, &context.headers, &context.user)?;
        if context.interference.answer == Some(Fault::Unauthorised) {
            return Err(crate::auth::refusal(self, &context.info, &context.user));
        }
        self.authorizer
            .authorize(self, &context.info, &context.user)
    }

    /// Updates indexes and queues after a write; the caller still holds the store's writer.
    pub(crate) fn after_write(&self, kind: &ResourceType, stored: &Stored) {
        self.authorizer.written(&self.store, &kind.group);
        if kind.is("apiextensions.k8s.io", "CustomResourceDefinition") {
            crate::custom::serve_established(self);
        }
        if self.controller_queue.written(kind, stored) {
            self.wake_controllers.notify_one();
        }
    }

    /// Updates indexes and queues after a removal; the caller still holds the store's writer.
    pub(crate) fn after_delete(&self, kind: &ResourceType, stored: &Stored) {
        self.authorizer.written(&self.store, &kind.group);
        if kind.is("apiextensions.k8s.io", "CustomResourceDefinition") {
            crate::custom::serve_established(self);
        }
        if self.controller_queue.removed(&self.store, stored) {
            self.wake_controllers.notify_one();
        }
    }

    /// Stores an object without defaulting, admission or validation; false when the resource is not
    /// served or the value is not an object.
    pub(crate) fn store_raw(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        object: Value,
    ) -> bool {
        let served = self.registry.served();
        let kind = served
            .types()
            .find(|kind| kind.qualified_resource() == resource);
        let (Some(kind), Value::Object(mut object)) = (kind, object) else {
            return false;
        };
        let writer = self.store.write();
        object.insert("kind".into(), kind.kind.clone().into());
        object.insert("apiVersion".into(), kind.api_version().into());
        let version = writer.next_version().to_string();
        let uid = self.random.uuid();
        let metadata = object.metadata_mut();
        metadata.insert("name".into(), name.into());
        if !namespace.is_empty() {
            metadata.insert("namespace".into(), namespace.into());
        }
        metadata.insert("resourceVersion".into(), version.into());
        crate::meta::default_to(metadata, "uid", uid);
        crate::meta::default_to(metadata, "creationTimestamp", self.clock.now_text());
        crate::view::to_storage(kind, &mut object);
        writer.put(&kind.storage, Arc::new(Stored::new(kind, object)));
        true
    }

    async fn respond(&self, context: &Context, reply: Reply) -> Response<Body> {
        let Reply {
            mut code,
            mut headers,
            payload,
        } = reply;
        let accept = context.header(header::ACCEPT);
        let encoding = crate::negotiate::negotiate(accept, Origin::Builtin, ResponseKind::Object)
            .map_or(Encoding::Json, |negotiated| negotiated.encoding);
        let (kind, body, compressed) = if is_large(context, encoding, &payload) {
            let render = || render(context, encoding, payload);
            match self.rendering.large(render).await {
                Ok(rendered) => rendered,
                Err(error) => {
                    let reply = Reply::error(&error);
                    (code, headers) = (reply.code, reply.headers);
                    self::render(context, encoding, reply.payload)
                }
            }
        } else {
            render(context, encoding, payload)
        };
        let mut answer = response(code, body);
        let out = answer.headers_mut();
        if compressed {
            out.insert(
                header::CONTENT_ENCODING,
                header::HeaderValue::from_static("gzip"),
            );
            out.append(
                header::VARY,
                header::HeaderValue::from_static("Accept-Encoding"),
            );
        }
        out.insert(header::CONTENT_TYPE, kind);
        out.insert(
            header::CACHE_CONTROL,
            header::HeaderValue::from_static("no-cache, private"),
        );
        if let Ok(id) = header::HeaderValue::from_str(&self.random.uuid()) {
            out.insert("audit-id", id);
        }
        let warnings = context.warnings.lock();
        for text in warnings.iter() {
            let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
            if let Ok(value) = header::HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
                out.append(header::WARNING, value);
            }
        }
        let mut replaced = None;
        for (name, value) in headers {
            replaced = name.or(replaced);
            if let Some(name) = &replaced {
                // Headers of a reply win over the common ones, except that warnings add up.
                if *name == header::CONTENT_TYPE || *name == header::CACHE_CONTROL {
                    out.insert(name.clone(), value);
                } else {
                    out.append(name.clone(), value);
                }
            }
        }
        answer
    }
}

/// Smaller answers are not worth compressing.
const GZIP_FROM: usize = 128 * 1024;

fn accepts_gzip(context: &Context) -> bool {
    let accepted = context.header(header::ACCEPT_ENCODING).unwrap_or_default();
    accepted
        .split(',')
        .any(|coding| coding.split(';').next().is_some_and(|c| c.trim() == "gzip"))
}

/// True when rendering the answer must wait for a permit of [`crate::rendering`].
fn is_large(context: &Context, encoding: Encoding, payload: &Payload) -> bool {
    let is_plain = encoding == Encoding::Json && !is_pretty(context);
    let is_copied = is_plain && !accepts_gzip(context);
    match payload {
        Payload::Deferred { size, .. } => *size > LARGE,
        Payload::Pieces { size, .. } => !is_copied && *size > LARGE,
        Payload::Json(bytes) => !is_copied && bytes.len() > LARGE,
        Payload::Raw(bytes, _) => accepts_gzip(context) && bytes.len() > LARGE,
        Payload::Value(value) => crate::encoding::size::take(&mut { LARGE }, value).is_err(),
        Payload::Stream(_) => false,
    }
}

/// The body of an answer, its content type, and true when it is compressed.
fn render(
    context: &Context,
    encoding: Encoding,
    payload: Payload,
) -> (header::HeaderValue, Body, bool) {
    let (kind, content) = represent(context, encoding, payload);
    match content {
        Content::Whole(bytes) if accepts_gzip(context) && bytes.len() > GZIP_FROM => {
            let compressed = crate::encoding::gzip::compress(&bytes);
            (kind, whole(compressed), true)
        }
        Content::Whole(bytes) => (kind, whole(bytes), false),
        Content::Stream(body) => (kind, body, false),
    }
}

/// A rendered body.
enum Content {
    Whole(Bytes),
    Stream(Body),
}

/// Encodes a payload; the second value is its content type.
fn represent(
    context: &Context,
    encoding: Encoding,
    payload: Payload,
) -> (header::HeaderValue, Content) {
    let json = header::HeaderValue::from_static("application/json");
    let value = match payload {
        Payload::Raw(bytes, kind) => return (kind, Content::Whole(bytes)),
        Payload::Stream(body) => return (json, Content::Stream(body)),
        Payload::Pieces { pieces, .. } if encoding == Encoding::Json && !is_pretty(context) => {
            let newline = std::iter::once(Bytes::from_static(b"\n"));
            let pieces = pieces.chain(newline);
            if accepts_gzip(context) {
                let text: Vec<u8> = pieces.flat_map(|piece| piece.to_vec()).collect();
                return (json, Content::Whole(Bytes::from(text)));
            }
            return (json, Content::Stream(gathered(Box::new(pieces))));
        }
        Payload::Json(bytes) if encoding == Encoding::Json && !is_pretty(context) => {
            let mut text = Vec::with_capacity(bytes.len() + 1);
            text.extend_from_slice(&bytes);
            text.push(b'\n');
            return (json, Content::Whole(Bytes::from(text)));
        }
        Payload::Value(value) => value,
        Payload::Deferred { make, .. } => make(),
        Payload::Json(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
        Payload::Pieces { pieces, .. } => {
            let mut text = Vec::new();
            for piece in pieces {
                text.extend_from_slice(&piece);
            }
            serde_json::from_slice(&text).unwrap_or_default()
        }
    };
    if encoding == Encoding::Yaml {
        let yaml = crate::encoding::yaml::print(&value);
        return (
            header::HeaderValue::from_static("application/yaml"),
            Content::Whole(Bytes::from(yaml)),
        );
    }
    let mut text = if is_pretty(context) {
        serde_json::to_vec_pretty(&value).unwrap_or_default()
    } else {
        serde_json::to_vec(&value).unwrap_or_default()
    };
    text.push(b'\n');
    (json, Content::Whole(Bytes::from(text)))
}

/// True when JSON is to be indented: by `?pretty`, or for browsers, curl and wget.
fn is_pretty(context: &Context) -> bool {
    if let Some(text) = context.query.get("pretty") {
        return matches!(text, "true" | "1");
    }
    let agent = context.info.user_agent.as_str();
    ["curl", "Wget", "Mozilla/5.0"]
        .iter()
        .any(|reader| agent.starts_with(reader))
}

fn not_persisted() -> ApiError {
    ApiError::internal("cannot persist the write")
}

async fn read_body<B>(body: B) -> Outcome<Bytes>
where
    B: hyper::body::Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    match Limited::new(body, BODY_LIMIT).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => {
            Err(ApiError::too_large(BODY_LIMIT))
        }
        Err(error) => Err(ApiError::bad_request(format!(
            "cannot read the request body: {error}"
        ))),
    }
}
