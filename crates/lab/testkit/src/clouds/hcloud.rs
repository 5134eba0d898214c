//! A double of the Hetzner Cloud API.

use std::{
    collections::BTreeMap,
    io,
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use http::StatusCode;
use ipnet::Ipv4Net;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    Fault,
    bucket::Bucket,
    fault::FaultKind,
    server::{ApiCall, Cloud, Double, Reply, Running},
};

mod network;
mod paging;
mod refusal;

use network::{Change, Network};
use paging::Page;
use refusal::Refusal;

/// A double of the Hetzner Cloud API: one network, its routes, and servers.
///
/// Endpoints are counted as `get_network`, `list_networks`, `add_route`, `delete_route`,
/// `get_actions`, `list_servers`, `get_server`, `list_locations` and `other`.
#[derive(Debug)]
pub struct HcloudDouble {
    double: Arc<Double<Hcloud>>,
    running: Running,
}

/// Options of the Hetzner Cloud double.
#[derive(Clone, Debug)]
pub struct HcloudOptions {
    /// Loopback port to listen on; 0 selects a free one.
    pub port: u16,
    /// The accepted token; any non-empty one if absent.
    pub token: Option<String>,
    /// ID of the network.
    pub network: u64,
    /// Name of the network.
    pub network_name: String,
    /// Address range of the network.
    pub ip_range: Ipv4Net,
    /// Range of its only subnet, from which servers have their addresses.
    pub subnet: Ipv4Net,
    /// The servers of the project.
    pub servers: Vec<HcloudServer>,
    /// Time that calls take.
    pub latency: HcloudLatency,
    /// Limit of calls per hour; without it there are no `RateLimit-*` headers either.
    pub calls_per_hour: Option<u32>,
    /// Most routes in the network.
    pub quota: usize,
}

impl Default for HcloudOptions {
    fn default() -> Self {
        let net = |address, length| {
            Ipv4Net::new(address, length).expect("constant lengths are at most 32")
        };
        Self {
            port: 0,
            token: None,
            network: 4711,
            network_name: "weft".to_owned(),
            ip_range: net(Ipv4Addr::new(10, 0, 0, 0), 8),
            subnet: net(Ipv4Addr::new(10, 0, 0, 0), 16),
            servers: Vec::new(),
            latency: HcloudLatency::NONE,
            calls_per_hour: None,
            quota: 100,
        }
    }
}

/// Time that calls take, by class.
#[derive(Clone, Copy, Debug)]
pub struct HcloudLatency {
    /// Calls that only read.
    pub list: Duration,
    /// Calls that change routes, until they are accepted.
    pub mutation: Duration,
    /// From acceptance until the change is made; the network is locked meanwhile.
    pub action: Duration,
}

impl HcloudLatency {
    /// No delays.
    pub const NONE: Self = Self {
        list: Duration::ZERO,
        mutation: Duration::ZERO,
        action: Duration::ZERO,
    };

    /// Approximate times of the real API.
    pub const REAL: Self = Self {
        list: Duration::from_millis(80),
        mutation: Duration::from_millis(150),
        action: Duration::from_secs(1),
    };
}

/// A server. As JSON: `{"id": 1, "name": "node-1", "ip": "10.0.0.2"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HcloudServer {
    /// ID, as in the provider ID `hcloud://<id>`.
    pub id: u64,
    /// Name; in a cluster also the name of the Node.
    pub name: String,
    /// Address in the network; absent if it is not attached.
    #[serde(default)]
    pub ip: Option<Ipv4Addr>,
}

/// A route, as the API writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HcloudRoute {
    /// Destination CIDR.
    pub destination: String,
    /// Address of the server to which the packets are sent.
    pub gateway: String,
}

impl HcloudDouble {
    /// Starts serving on loopback.
    pub async fn start(options: HcloudOptions) -> io::Result<Self> {
        let port = options.port;
        let double = Arc::new(Double::new(Hcloud::new(options)));
        let running = Running::start(port, double.clone()).await?;
        Ok(Self { double, running })
    }

    /// The value for `HCLOUD_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}/v1", self.running.address)
    }

    /// Number of calls of an endpoint with a result: `ok`, an error code, `cut` or `garbage`.
    pub fn count(&self, endpoint: &str, result: &str) -> u64 {
        self.double.counters().of(endpoint, result)
    }

    /// Number of calls of an endpoint.
    pub fn calls_of(&self, endpoint: &str) -> u64 {
        self.double.counters().endpoint(endpoint)
    }

    /// Number of all calls.
    pub fn calls(&self) -> u64 {
        self.double.counters().total()
    }

    /// Injects a fault.
    pub fn add_fault(&self, fault: Fault) {
        self.double.faults().add(fault);
    }

    /// Removes all pending faults.
    pub fn clear_faults(&self) {
        self.double.faults().clear();
    }

    /// Numbers of calls by endpoint and result.
    pub fn counters(&self) -> BTreeMap<String, BTreeMap<String, u64>> {
        self.double.counters().by_name()
    }

    /// Current routes.
    pub fn routes(&self) -> Vec<HcloudRoute> {
        self.double.cloud.state().network.routes.clone()
    }

    /// Replaces the routes without a call, as another program would.
    pub fn set_routes(&self, routes: Vec<HcloudRoute>) {
        self.double.cloud.state().network.routes = routes;
    }

    /// Replaces the servers.
    pub fn set_servers(&self, servers: Vec<HcloudServer>) {
        self.double.cloud.state().servers = servers;
    }

    /// Removes routes and faults and sets counters to zero.
    pub fn reset(&self) {
        self.double.reset();
    }
}

#[derive(Debug)]
struct Hcloud {
    options: HcloudOptions,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    network: Network,
    servers: Vec<HcloudServer>,
    bucket: Option<Bucket>,
}

impl Hcloud {
    fn new(options: HcloudOptions) -> Self {
        let bucket = options
            .calls_per_hour
            .map(|calls| Bucket::full(calls, f64::from(calls) / 3600.0, Instant::now()));
        let state = State {
            network: Network::new(&options),
            servers: options.servers.clone(),
            bucket,
        };
        Self {
            options,
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        state.network.settle(Instant::now());
        state
    }

    fn answer_authorized(
        &self,
        endpoint: &str,
        call: &ApiCall,
        fault: Option<&FaultKind>,
    ) -> Result<Reply, Refusal> {
        let segments: Vec<&str> = call.path.split('/').skip(2).collect();
        let mut state = self.state();
        let (status, body) = match endpoint {
            "get_network" => {
                state.network.check_id(segments[1])?;
                (StatusCode::OK, json!({"network": state.network_json()}))
            }
            "list_networks" => (StatusCode::OK, state.networks(call)),
            "add_route" | "delete_route" => {
                state.network.check_id(segments[1])?;
                let route =
                    serde_json::from_slice(&call.body).map_err(|_| Refusal::code("json_error"))?;
                let change = match endpoint {
                    "add_route" => Change::Add(route),
                    _ => Change::Delete(route),
                };
                let action = state.network.begin(change, fault, Instant::now())?;
                (StatusCode::CREATED, json!({"action": action}))
            }
            "get_actions" => (StatusCode::OK, state.network.actions(call, &segments)?),
            "list_servers" => (StatusCode::OK, state.list_servers(call)),
            "get_server" => (StatusCode::OK, state.server(segments[1])?),
            "list_locations" => (StatusCode::OK, locations(call)),
            _ => return Err(Refusal::code("not_found")),
        };
        Ok(Reply::json(status, &body))
    }

    fn is_authorized(&self, call: &ApiCall) -> bool {
        let token = call.header("authorization");
        let token = token.and_then(|header| header.strip_prefix("Bearer "));
        match &self.options.token {
            Some(only) => token == Some(only.as_str()),
            None => token.is_some_and(|token| !token.is_empty()),
        }
    }
}

impl State {
    fn network_json(&self) -> Value {
        self.network.to_json(&self.servers)
    }

    fn networks(&self, call: &ApiCall) -> Value {
        let named = call.parameter("name");
        let matches = named.is_none_or(|name| name == self.network.name);
        let found: Vec<Value> = matches.then(|| self.network_json()).into_iter().collect();
        Page::of(call, found).to_json("networks")
    }

    fn list_servers(&self, call: &ApiCall) -> Value {
        let named = call.parameter("name");
        let matching = self.servers.iter();
        let matching = matching.filter(|server| named.is_none_or(|name| name == server.name));
        let servers = matching.map(|server| self.server_json(server)).collect();
        Page::of(call, servers).to_json("servers")
    }

    fn server(&self, id: &str) -> Result<Value, Refusal> {
        let found = self
            .servers
            .iter()
            .find(|server| server.id.to_string() == id);
        let server = found.ok_or_else(|| Refusal::code("not_found"))?;
        Ok(json!({"server": self.server_json(server)}))
    }

    fn server_json(&self, server: &HcloudServer) -> Value {
        let attached = server.ip.map(|ip| {
            json!({"network": self.network.id, "ip": ip, "alias_ips": [],
                   "mac_address": "86:00:00:00:00:01"})
        });
        let private: Vec<Value> = attached.into_iter().collect();
        let location = location();
        json!({
            "id": server.id, "name": server.name, "status": "running",
            "created": "2026-01-01T00:00:00Z", "labels": {}, "location": location,
            "datacenter": {"id": 1, "name": "fsn1-dc1", "location": location},
            "server_type": {"id": 1, "name": "cx22", "architecture": "x86"},
            "public_net": {"ipv4": null, "ipv6": null, "floating_ips": []},
            "private_net": private,
        })
    }
}

/// Programs list locations to check their token.
fn locations(call: &ApiCall) -> Value {
    Page::of(call, vec![location()]).to_json("locations")
}

fn location() -> Value {
    json!({"id": 1, "name": "fsn1", "network_zone": "eu-central"})
}

impl Cloud for Hcloud {
    fn endpoint(&self, call: &ApiCall) -> &'static str {
        let segments: Vec<&str> = call.path.split('/').skip(1).collect();
        match (call.method.as_str(), segments.as_slice()) {
            ("GET", ["v1", "networks"]) => "list_networks",
            ("GET", ["v1", "networks", _]) => "get_network",
            ("POST", ["v1", "networks", _, "actions", "add_route"]) => "add_route",
            ("POST", ["v1", "networks", _, "actions", "delete_route"]) => "delete_route",
            ("GET", ["v1", "actions"] | ["v1", "actions", _]) => "get_actions",
            ("GET", ["v1", "servers"]) => "list_servers",
            ("GET", ["v1", "servers", _]) => "get_server",
            ("GET", ["v1", "locations"]) => "list_locations",
            _ => "other",
        }
    }

    fn latency(&self, endpoint: &str) -> Duration {
        match endpoint {
            "add_route" | "delete_route" => self.options.latency.mutation,
            _ => self.options.latency.list,
        }
    }

    fn answer(&self, endpoint: &str, call: &ApiCall, fault: Option<&FaultKind>) -> Reply {
        if !self.is_authorized(call) {
            return Refusal::code("unauthorized").reply();
        }
        let now = Instant::now();
        let allowed = self
            .state()
            .bucket
            .as_mut()
            .is_none_or(|bucket| bucket.take(now));
        let answer = if allowed {
            self.answer_authorized(endpoint, call, fault)
        } else {
            Err(Refusal::code("rate_limit_exceeded"))
        };
        let mut reply = answer.unwrap_or_else(|refusal| refusal.reply());
        reply.headers.extend(self.rate_headers());
        reply
    }

    fn refuse(&self, code: &str) -> Reply {
        let mut reply = Refusal::code(code).reply();
        reply.headers.extend(self.rate_headers());
        reply
    }

    fn table(&self) -> Value {
        json!(self.state().network.routes)
    }

    fn put_machines(&self, machines: &[u8]) -> Result<(), serde_json::Error> {
        self.state().servers = serde_json::from_slice(machines)?;
        Ok(())
    }

    fn reset(&self) {
        self.state().network = Network::new(&self.options);
    }
}

impl Hcloud {
    fn rate_headers(&self) -> Vec<(&'static str, String)> {
        let (Some(limit), Some(bucket)) = (self.options.calls_per_hour, &self.state().bucket)
        else {
            return Vec::new();
        };
        let full_at = SystemTime::now() + bucket.full_after();
        let reset = full_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        vec![
            ("RateLimit-Limit", limit.to_string()),
            ("RateLimit-Remaining", bucket.remaining().to_string()),
            ("RateLimit-Reset", reset.as_secs().to_string()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
    };

    use super::*;

    async fn get(double: &HcloudDouble, path: &str) -> String {
        let mut stream = TcpStream::connect(double.running.address).await.unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: double\r\nauthorization: Bearer any\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn locations_are_listed_and_faults_can_be_cleared() {
        let double = HcloudDouble::start(HcloudOptions::default()).await.unwrap();
        double.add_fault(Fault::fail("list_locations", 2, "maintenance"));
        assert!(get(&double, "/v1/locations").await.contains("HTTP/1.1 503"));
        double.clear_faults();
        let answer = get(&double, "/v1/locations").await;
        assert!(answer.contains(r#""name":"fsn1""#), "{answer}");
        let results = [("maintenance", 1), ("ok", 1)];
        let results = results.map(|(result, count)| (result.to_owned(), count));
        let expected = BTreeMap::from([("list_locations".to_owned(), results.into())]);
        assert_eq!(double.counters(), expected);
    }
}
