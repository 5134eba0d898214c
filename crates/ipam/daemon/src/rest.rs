//! HTTP API of the daemon: Azure CNS's paths, and those of Weft's own plugin and tools.
//!
//! Compatible paths always answer 200, and report failures in the body and in a header.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Path, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use ipnet::IpNet;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;
use weft_cns::{
    AddressFilter, GcRequest, GcResponse, IpConfigRequest, IpConfigResponse, IpConfigsRequest,
    IpConfigsResponse, IpSubnet, PodContext, PodIpInfo, ReleaseIpConfigResponse,
    ReleaseIpConfigsResponse, Response as Outcome, ReturnCode, header, path,
};
use weft_ipam::pool::{Key, Lease, PodIdentity, Refusal, Reply};
use weft_model::SharedStr;

use crate::{
    handle::{DaemonHandle, Snapshot, Stopping},
    metrics::IpamMetrics,
    report,
};

/// Maximum length of a body in bytes. The longest is a GC request, which lists every attachment of
/// a node.
const BODY_LIMIT: usize = 1 << 20;
/// Maximum length of the name of a container, interface or network.
const NAME_LIMIT: usize = 512;
/// Network of clients that name none, such as Azure's.
const NETWORK: &str = "azure";
const INTERFACE: &str = "eth0";
/// Weft's own: explains the addresses of a pod.
pub(super) const EXPLAIN: &str = "/v1/pods/{namespace}/{name}";
/// CNS's health page.
pub(super) const HEALTH: &str = "/network/health";

/// The HTTP API with its dependencies.
#[derive(Clone, Debug)]
pub struct RestApi {
    /// Handle of the daemon.
    pub handle: DaemonHandle,
    /// Metrics to update.
    pub metrics: IpamMetrics,
    /// Maximum time an ADD waits.
    pub wait: Duration,
}

impl RestApi {
    /// All routes of the socket.
    pub fn router(self) -> Router {
        Router::new()
            .route(path::REQUEST_IP_CONFIGS, post(request_ip_configs))
            .route(path::RELEASE_IP_CONFIGS, post(release_ip_configs))
            .route(path::REQUEST_IP_CONFIG, post(request_ip_config))
            .route(path::RELEASE_IP_CONFIG, post(release_ip_config))
            .route(path::CHECK_IP_CONFIGS, post(check_ip_configs))
            .route(path::GC, post(collect))
            .route(path::STATUS, get(status))
            .route(path::DEBUG_ADDRESSES, post(addresses))
            .route(path::DEBUG_POD_CONTEXT, post(pod_context).get(pod_context))
            .route(path::DEBUG_REST_DATA, post(rest_data).get(rest_data))
            .route(HEALTH, get(health))
            .route(EXPLAIN, get(explain))
            .layer(DefaultBodyLimit::max(BODY_LIMIT))
            .with_state(self)
    }

    fn answer(
        &self,
        url: &'static str,
        verb: &'static str,
        since: Instant,
        code: ReturnCode,
        body: &impl Serialize,
    ) -> Response {
        self.metrics
            .requested(url, verb, code.name(), since.elapsed());
        match serde_json::to_vec(body) {
            Ok(body) => {
                let headers = [
                    (CONTENT_TYPE, HeaderValue::from_static(header::JSON)),
                    (
                        HeaderName::from_static(header::RETURN_CODE),
                        HeaderValue::from_static(code.name()),
                    ),
                ];
                (headers, body).into_response()
            }
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    }

    async fn add(
        &self,
        request: IpConfigsRequest,
        headers: &HeaderMap,
    ) -> Result<Vec<Lease>, Outcome> {
        let key = key_of(&request)?;
        let context = request.orchestrator_context.unwrap_or_default();
        if context.pod_name.is_empty() {
            let code = ReturnCode::EMPTY_ORCHESTRATOR_CONTEXT;
            return Err(Outcome::failure(code, "the request names no pod"));
        }
        let wait = self.wait_limit(headers);
        let added = self
            .handle
            .add(key, identity(&context), request.desired_ip_addresses, wait);
        match added.await.map_err(stopping)? {
            Reply::Assigned(leases) => Ok(leases),
            Reply::Refused(refusal) => Err(refused(&refusal)),
            Reply::Released => Err(unexpected("an ADD was answered as a DEL")),
        }
    }

    /// The client's time limit, at most our own.
    fn wait_limit(&self, headers: &HeaderMap) -> Duration {
        let told = headers.get(header::WAIT_MILLISECONDS);
        let told = told.and_then(|value| value.to_str().ok()?.parse().ok());
        told.map_or(self.wait, |millis| {
            self.wait.min(Duration::from_millis(millis))
        })
    }

    /// Releases the addresses of the key in a request.
    pub(super) async fn release(&self, request: &IpConfigsRequest) -> Outcome {
        let key = match key_of(request) {
            Ok(key) => key,
            Err(outcome) => return outcome,
        };
        match self.handle.delete(key).await {
            Ok(Reply::Released) => Outcome::success(),
            Ok(Reply::Refused(refusal)) => refused(&refusal),
            Ok(Reply::Assigned(_)) => unexpected("a DEL was answered as an ADD"),
            Err(error) => stopping(error),
        }
    }
}

fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, Box<Response>> {
    serde_json::from_slice(body).map_err(|error| {
        let text = format!("cannot decode the body: {error}");
        Box::new((StatusCode::BAD_REQUEST, text).into_response())
    })
}

fn unexpected(message: &str) -> Outcome {
    Outcome::failure(ReturnCode::UNEXPECTED_ERROR, message)
}

fn stopping(error: Stopping) -> Outcome {
    unexpected(&error.to_string())
}

fn refused(refusal: &Refusal) -> Outcome {
    let code = match refusal {
        // A retry may succeed.
        Refusal::Exhausted(_) | Refusal::NotReady | Refusal::Closed => {
            ReturnCode::FAILED_TO_ALLOCATE_IP_CONFIG
        }
        Refusal::Desired(_) => ReturnCode::ADDRESS_UNAVAILABLE,
        Refusal::Deleted
        | Refusal::DeletedWhileWaiting
        | Refusal::FormerNode
        | Refusal::OtherPod => ReturnCode::INVALID_REQUEST,
    };
    Outcome::failure(code, refusal.to_string())
}

/// Key of network, container and interface. Upstream's key is the interface id, which Weft's plugin
/// sets to the container id.
fn key_of(request: &IpConfigsRequest) -> Result<Key, Outcome> {
    let wrong = |message: String| Outcome::failure(ReturnCode::INVALID_PARAMETER, message);
    let container = if request.pod_interface_id.is_empty() {
        &request.infra_container_id
    } else {
        &request.pod_interface_id
    };
    let network = request.network_name.as_deref().unwrap_or_default();
    if container.is_empty() {
        return Err(wrong("the request names no container".to_owned()));
    }
    for (what, name) in [
        ("container", container.as_str()),
        ("network", network),
        ("interface", &request.ifname),
    ] {
        if name.len() > NAME_LIMIT {
            return Err(wrong(format!("the name of the {what} is too long")));
        }
    }
    let or = |name: &'static str, given: &str| match given {
        "" => name.to_owned(),
        given => given.to_owned(),
    };
    let (network, interface) = (or(NETWORK, network), or(INTERFACE, &request.ifname));
    Ok(Key::new(&network, container, &interface))
}

fn identity(context: &PodContext) -> PodIdentity {
    let uid = context.pod_uid.as_deref().filter(|uid| !uid.is_empty());
    PodIdentity {
        namespace: SharedStr::interned(&context.pod_namespace),
        name: SharedStr::new(&context.pod_name),
        uid: uid.map(Into::into),
    }
}

fn info(lease: &Lease) -> PodIpInfo {
    let subnet = IpNet::new(lease.address, lease.prefix);
    let network = subnet.map_or(lease.address, |net| net.network());
    let subnet = IpSubnet::of(network, lease.prefix);
    PodIpInfo {
        network_container_id: lease.container.to_string(),
        ..PodIpInfo::infra(lease.address, subnet, lease.gateway)
    }
}

fn infos(result: Result<Vec<Lease>, Outcome>) -> IpConfigsResponse {
    match result {
        Ok(leases) => IpConfigsResponse {
            pod_ip_info: leases.iter().map(info).collect(),
            response: Outcome::success(),
        },
        Err(response) => IpConfigsResponse {
            pod_ip_info: Vec::new(),
            response,
        },
    }
}

type Answer = Result<Response, Box<Response>>;

fn flat(answer: Answer) -> Response {
    answer.unwrap_or_else(|refused| *refused)
}

async fn request_ip_configs(
    State(rest): State<RestApi>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let since = Instant::now();
    let answer = async {
        let body = infos(rest.add(read(&body)?, &headers).await);
        let code = body.response.return_code;
        Ok(rest.answer(path::REQUEST_IP_CONFIGS, "POST", since, code, &body))
    };
    flat(answer.await)
}

async fn release_ip_configs(State(rest): State<RestApi>, body: Bytes) -> Response {
    let since = Instant::now();
    let answer = async {
        let outcome = rest.release(&read(&body)?).await;
        let code = outcome.return_code;
        let body = ReleaseIpConfigsResponse(outcome);
        Ok(rest.answer(path::RELEASE_IP_CONFIGS, "POST", since, code, &body))
    };
    flat(answer.await)
}

async fn request_ip_config(
    State(rest): State<RestApi>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let since = Instant::now();
    let answer = async {
        let request: IpConfigRequest = read(&body)?;
        let body = one(&rest, request, &headers).await;
        let code = body.response.return_code;
        Ok(rest.answer(path::REQUEST_IP_CONFIG, "POST", since, code, &body))
    };
    flat(answer.await)
}

/// The older form returns one address, so a node with several containers or families cannot serve
/// it.
async fn one(rest: &RestApi, request: IpConfigRequest, headers: &HeaderMap) -> IpConfigResponse {
    let failed = |response| IpConfigResponse {
        response,
        ..IpConfigResponse::default()
    };
    let shape = rest.handle.read(|snapshot| {
        (
            snapshot.pool.container_count(),
            snapshot.pool.served_families().len(),
        )
    });
    match shape.await {
        Err(error) => return failed(stopping(error)),
        Ok((0 | 1, 1)) => {}
        Ok((containers, families)) => {
            let text = format!(
                "cannot return one address: the node has {containers} network containers and {families} \
                 address families"
            );
            return failed(Outcome::failure(ReturnCode::INVALID_REQUEST, text));
        }
    }
    match rest.add(request.into(), headers).await {
        Err(outcome) => failed(outcome),
        Ok(leases) => match leases.as_slice() {
            [lease] => IpConfigResponse {
                pod_ip_info: info(lease),
                response: Outcome::success(),
            },
            leases => failed(unexpected(&format!(
                "expected exactly one address for the pod, got {}",
                leases.len()
            ))),
        },
    }
}

async fn release_ip_config(State(rest): State<RestApi>, body: Bytes) -> Response {
    let since = Instant::now();
    let answer = async {
        let request: IpConfigRequest = read(&body)?;
        let outcome = rest.release(&request.into()).await;
        let code = outcome.return_code;
        let body = ReleaseIpConfigResponse(outcome);
        Ok(rest.answer(path::RELEASE_IP_CONFIG, "POST", since, code, &body))
    };
    flat(answer.await)
}

async fn check_ip_configs(State(rest): State<RestApi>, body: Bytes) -> Response {
    let since = Instant::now();
    let answer = async {
        let request: IpConfigsRequest = read(&body)?;
        let body = infos(check(&rest, &request).await);
        let code = body.response.return_code;
        Ok(rest.answer(path::CHECK_IP_CONFIGS, "POST", since, code, &body))
    };
    flat(answer.await)
}

async fn check(rest: &RestApi, request: &IpConfigsRequest) -> Result<Vec<Lease>, Outcome> {
    let key = key_of(request)?;
    let desired: Vec<IpAddr> = request.desired_ip_addresses.clone();
    let found = rest.handle.read(move |snapshot| {
        snapshot.pool.check(&key, &desired)?;
        let held = snapshot.pool.attachments().get(&key);
        Ok(held.map(|held| held.leases.clone()).unwrap_or_default())
    });
    let found: Result<Vec<Lease>, weft_ipam::pool::CheckError> = found.await.map_err(stopping)?;
    found.map_err(|error| Outcome::failure(ReturnCode::NOT_FOUND, error.to_string()))
}

async fn collect(State(rest): State<RestApi>, body: Bytes) -> Response {
    let since = Instant::now();
    let answer = async {
        let request: GcRequest = read(&body)?;
        if request.network_name.is_empty() {
            let message = "the request names no network";
            let body = GcResponse {
                released: 0,
                response: Outcome::failure(ReturnCode::INVALID_PARAMETER, message),
            };
            let code = body.response.return_code;
            return Ok(rest.answer(path::GC, "POST", since, code, &body));
        }
        let valid: BTreeSet<(SharedStr, SharedStr)> = (request.valid_attachments.iter())
            .map(|held| {
                let ifname = SharedStr::interned(&held.ifname);
                (SharedStr::new(&held.container_id), ifname)
            })
            .collect();
        let network = SharedStr::new(&request.network_name);
        let body = match rest.handle.collect(network, valid).await {
            Ok(released) => GcResponse {
                released,
                response: Outcome::success(),
            },
            Err(error) => GcResponse {
                released: 0,
                response: stopping(error),
            },
        };
        let code = body.response.return_code;
        Ok(rest.answer(path::GC, "POST", since, code, &body))
    };
    flat(answer.await)
}

/// Answers with a report on a snapshot.
async fn show<T: Serialize + Send + 'static>(
    rest: &RestApi,
    url: &'static str,
    verb: &'static str,
    report: impl FnOnce(&Snapshot<'_>) -> T + Send + 'static,
) -> Response {
    let since = Instant::now();
    match rest.handle.read(report).await {
        Ok(seen) => rest.answer(url, verb, since, ReturnCode::SUCCESS, &seen),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

async fn status(State(rest): State<RestApi>, headers: HeaderMap) -> Response {
    let repairs = headers.get(header::CNI_REPAIRS);
    if let Some(repairs) = repairs.and_then(|value| value.to_str().ok()?.parse().ok()) {
        rest.metrics.installer_repaired(repairs);
    }
    show(&rest, path::STATUS, "GET", report::status).await
}

async fn addresses(State(rest): State<RestApi>, body: Bytes) -> Response {
    let filter: AddressFilter = match read(&body) {
        Ok(filter) => filter,
        Err(refused) => return *refused,
    };
    let report = move |snapshot: &Snapshot<'_>| report::addresses(snapshot, &filter);
    show(&rest, path::DEBUG_ADDRESSES, "POST", report).await
}

async fn pod_context(State(rest): State<RestApi>) -> Response {
    show(&rest, path::DEBUG_POD_CONTEXT, "POST", report::pod_context).await
}

async fn rest_data(State(rest): State<RestApi>) -> Response {
    show(&rest, path::DEBUG_REST_DATA, "POST", report::rest_data).await
}

async fn health(State(rest): State<RestApi>) -> Response {
    show(&rest, HEALTH, "GET", report::status).await
}

async fn explain(
    State(rest): State<RestApi>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    let report = move |snapshot: &Snapshot<'_>| report::explain(snapshot, &namespace, &name);
    show(&rest, EXPLAIN, "GET", report).await
}
