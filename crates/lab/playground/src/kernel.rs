//! Service endpoints, routes and metrics of a node, read from its kernel and its agents.

use std::{
    collections::BTreeSet,
    io,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use weft_host::namespace;

use crate::{
    network,
    program::{ProgramError, command, output},
};

/// The table of the proxy in nftables, in each family.
const TABLE: &str = "weft";
/// Routing protocol number of Weft's routes.
const OUR_ROUTES: &str = "201";
/// Address of the proxy's metrics and diagnostics, in the node's network.
const PROXY_PAGES: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 10249);
const PATIENCE: Duration = Duration::from_secs(2);

/// Endpoints that a node's kernel has, by Service port: `default/web:http` to `10.244.0.5:8080`. Empty
/// without the tables of a proxy.
pub(crate) fn endpoints(node: &str) -> Result<Endpoints, ProgramError> {
    let mut found = Endpoints::new();
    let tables = listed(node, &["tables"])?;
    for family in ["ip", "ip6"] {
        let is_ours = |object: &Value| {
            let table = &object["table"];
            table["family"] == family && table["name"] == TABLE
        };
        if tables.iter().any(is_ours) {
            let services = listed(node, &["map", family, TABLE, "services"])?;
            let endpoints = listed(node, &["map", family, TABLE, "endpoints"])?;
            found.extend(named(&services, &endpoints));
        }
    }
    Ok(found)
}

/// True if a node has nftables tables, of any program.
pub(crate) fn has_tables(node: &str) -> Result<bool, ProgramError> {
    let tables = listed(node, &["tables"])?;
    Ok(tables.iter().any(|object| object.get("table").is_some()))
}

/// Endpoints as `address:port`, each with its Service port.
pub(crate) type Endpoints = BTreeSet<(String, String)>;

/// Objects that nft lists in a node's network.
fn listed(node: &str, what: &[&str]) -> Result<Vec<Value>, ProgramError> {
    let mut list = command("ip");
    list.args(["netns", "exec", node, "nft", "-j", "list"])
        .args(what);
    let text = output(&mut list, b"")?;
    let mut document: Value = serde_json::from_slice(&text).unwrap_or_default();
    match document["nftables"].take() {
        Value::Array(objects) => Ok(objects),
        _ => Ok(Vec::new()),
    }
}

/// Joins the endpoints of fronts with the names of their Service ports.
fn named(services: &[Value], endpoints: &[Value]) -> Endpoints {
    let names: Vec<(Vec<Value>, &str)> = elements(services)
        .filter_map(|(key, _)| {
            let comment = key["elem"]["comment"].as_str()?;
            Some((concatenation(&key["elem"]["val"])?, comment))
        })
        .collect();
    let targets = elements(endpoints).filter_map(|(key, target)| {
        // An element with further attributes is wrapped.
        let key = key.get("elem").map_or(key, |element| &element["val"]);
        let key = concatenation(key)?;
        let (_, name) = names.iter().find(|(front, _)| key.starts_with(front))?;
        let target = concatenation(target)?;
        let address = target.first()?.as_str()?.parse().ok()?;
        let port = u16::try_from(target.get(1)?.as_u64()?).ok()?;
        Some((
            (*name).to_owned(),
            SocketAddr::new(address, port).to_string(),
        ))
    });
    targets.collect()
}

/// Keys and values of a listed map.
fn elements(objects: &[Value]) -> impl Iterator<Item = (&Value, &Value)> {
    let maps = objects
        .iter()
        .filter_map(|object| object["map"]["elem"].as_array());
    maps.flatten()
        .filter_map(|element| Some((element.get(0)?, element.get(1)?)))
}

fn concatenation(value: &Value) -> Option<Vec<Value>> {
    value["concat"].as_array().cloned()
}

/// Routes of a node that Weft created.
pub(crate) fn routes(node: &str) -> Result<Vec<Route>, ProgramError> {
    let mut routes = Vec::new();
    for family in ["-4", "-6"] {
        let mut show = command("ip");
        show.args(["-n", node, family, "route", "show", "proto", OUR_ROUTES]);
        let text = output(&mut show, b"")?;
        routes.extend(String::from_utf8_lossy(&text).lines().filter_map(route));
    }
    Ok(routes)
}

/// A route of a node with a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) destination: String,
    pub(crate) via: String,
}

fn route(line: &str) -> Option<Route> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let via = words.iter().position(|word| *word == "via")?;
    Some(Route {
        destination: (*words.first()?).to_owned(),
        via: (*words.get(via + 1)?).to_owned(),
    })
}

/// A sync of a node's proxy, as `/debug/proxy/syncs` returns it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sync {
    pub(crate) number: u64,
    pub(crate) at: jiff::Timestamp,
    pub(crate) family: String,
    pub(crate) full: bool,
    pub(crate) bytes: u64,
    pub(crate) written: u64,
    #[serde(rename = "rules")]
    pub(crate) elements: u64,
    pub(crate) milliseconds: f64,
}

/// Mean size of a written element in bytes, by the records of a proxy.
pub(crate) fn element_size(syncs: &[Sync]) -> u64 {
    let bytes: u64 = syncs.iter().map(|sync| sync.bytes).sum();
    let written: u64 = syncs.iter().map(|sync| sync.written).sum();
    bytes / written.max(1)
}

/// Last syncs of a node's proxy.
pub(crate) fn syncs(node: &str) -> io::Result<Vec<Sync>> {
    let text = page(node, PROXY_PAGES.into(), "/debug/proxy/syncs")?;
    serde_json::from_slice(&text).map_err(io::Error::other)
}

/// Metrics of an agent of a node, by its port.
pub(crate) fn metrics(node: &str, port: u16) -> io::Result<String> {
    let text = page(node, (Ipv4Addr::LOCALHOST, port).into(), "/metrics")?;
    String::from_utf8(text).map_err(io::Error::other)
}

/// Sends a GET request inside a node's network.
fn page(node: &str, address: SocketAddr, path: &str) -> io::Result<Vec<u8>> {
    let stream = namespace::within(&network::file(node), || {
        TcpStream::connect_timeout(&address, PATIENCE)
    })??;
    stream.set_read_timeout(Some(PATIENCE))?;
    get(stream, path)
}

/// Sends a GET request over a connection. HTTP/1.0, so that the body ends with the connection.
pub(crate) fn get(mut stream: impl io::Read + io::Write, path: &str) -> io::Result<Vec<u8>> {
    let request = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    if head.split_whitespace().nth(1) != Some("200") {
        let status = head.lines().next().unwrap_or_default();
        return Err(io::Error::other(format!("{path}: {status}")));
    }
    Ok(answer.split_off(end + 4))
}

/// Sum of a metric over its labels.
pub(crate) fn metric(text: &str, name: &str) -> f64 {
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let plain = rest.starts_with(' ') || rest.starts_with('{');
        plain.then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
    });
    values.sum()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn endpoints_get_the_names_of_the_fronts_they_belong_to() {
        let map = |elements: Value| [json!({"metainfo": {}}), json!({"map": {"elem": elements}})];
        let front = |address: &str| json!({"concat": [address, "tcp", 80]});
        let service = |address: &str, name: &str| json!([{"elem": {"val": front(address), "comment": name}}, {"concat": [16, 2]}]);
        let endpoint = |address: &str, number: u32, target: &str| {
            let key = json!({"concat": [address, "tcp", 80, number]});
            json!([key, {"concat": [target, 8080]}])
        };
        let services = map(json!([
            service("10.96.0.1", "default/web:http"),
            service("10.96.0.2", "default/web-2:http")
        ]));
        let endpoints = map(json!([
            endpoint("10.96.0.1", 1, "10.0.0.1"),
            endpoint("10.96.0.1", 2, "10.0.0.2"),
            endpoint("10.96.0.2", 1, "10.0.0.3"),
            endpoint("10.96.0.3", 1, "10.0.0.4")
        ]));
        let found: Vec<String> = named(&services, &endpoints)
            .into_iter()
            .map(|(name, target)| format!("{name} {target}"))
            .collect();
        assert_eq!(
            found,
            [
                "default/web-2:http 10.0.0.3:8080",
                "default/web:http 10.0.0.1:8080",
                "default/web:http 10.0.0.2:8080",
            ]
        );
    }

    #[test]
    fn routes_and_metrics_are_read_from_text() {
        assert_eq!(
            route("10.244.1.0/24 via 172.30.0.11 dev eth0 metric 512 "),
            Some(Route {
                destination: "10.244.1.0/24".to_owned(),
                via: "172.30.0.11".to_owned(),
            })
        );
        assert_eq!(route("unreachable 10.244.1.0/24"), None);
        let text = "# HELP a b\na_total{x=\"1\"} 2\na_total{x=\"2\"} 3\na_total_more 5\n";
        assert!((metric(text, "a_total") - 5.0).abs() < f64::EPSILON);
    }
}
