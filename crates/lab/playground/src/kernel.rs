//! Rules, routes and metrics of a node, read from its kernel and its agents.

use std::{
    collections::BTreeSet,
    io,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use weft_host::namespace;

use crate::{
    network,
    program::{ProgramError, command, find, output},
};

/// Routing protocol number of Weft's routes.
const OUR_ROUTES: &str = "201";
/// Address of the proxy's metrics and diagnostics, in the node's network.
const PROXY_PAGES: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 10249);
const PATIENCE: Duration = Duration::from_secs(2);

/// Rules of a node as text, for both families and both iptables variants.
pub(crate) fn rules(node: &str) -> Result<String, ProgramError> {
    let programs = [
        "iptables-nft-save",
        "ip6tables-nft-save",
        "iptables-legacy-save",
        "ip6tables-legacy-save",
    ];
    let mut text = String::new();
    for program in programs
        .into_iter()
        .filter(|program| find(program).is_some())
    {
        let mut save = command("ip");
        save.args(["netns", "exec", node, program]);
        text += &String::from_utf8_lossy(&output(&mut save, b"")?);
    }
    Ok(text)
}

/// Number of endpoints of a Service port in the rules, over both families.
pub(crate) fn endpoints(rules: &str, service_port: &str) -> usize {
    let named = rules.lines().filter(|line| {
        let mut words = line.split_whitespace().map(|word| word.trim_matches('"'));
        words.any(|word| word == service_port)
    });
    named
        .filter(|line| line.contains("-j DNAT") && line.contains("--to-destination"))
        .count()
}

/// DNAT targets in the rules, with their Service ports: `default/web:http 10.244.0.5:8080`. The Service
/// of the API server is left out.
pub(crate) fn targets(rules: &str) -> BTreeSet<String> {
    let lines = rules.lines().filter(|line| line.contains("-j DNAT"));
    let targets = lines.filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |flag: &str| {
            let place = words.iter().position(|word| *word == flag)?;
            words.get(place + 1).map(|word| word.trim_matches('"'))
        };
        let service = after("--comment")?;
        let is_ours = service != "default/kubernetes:https";
        is_ours.then(|| Some(format!("{service} {}", after("--to-destination")?)))?
    });
    targets.collect()
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
    pub(crate) chains_written: u64,
    pub(crate) chains_removed: u64,
    pub(crate) written: u64,
    pub(crate) rules: u64,
    pub(crate) milliseconds: f64,
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
    use super::*;

    #[test]
    fn endpoints_are_counted_by_the_service_they_belong_to() {
        let rules = r#"
-A KUBE-SEP-A -p tcp -m comment --comment "default/web:http" -m tcp -j DNAT --to-destination 10.0.0.1:80
-A KUBE-SEP-B -p tcp -m comment --comment default/web:http -m tcp -j DNAT --to-destination 10.0.0.2:80
-A KUBE-SEP-C -p tcp -m comment --comment "default/web-2:http" -m tcp -j DNAT --to-destination 10.0.0.3:80
-A KUBE-SEP-A -s 10.0.0.1/32 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
"#;
        assert_eq!(endpoints(rules, "default/web:http"), 2);
        assert_eq!(endpoints(rules, "default/web-2:http"), 1);
        let targets: Vec<String> = targets(rules).into_iter().collect();
        assert_eq!(targets.len(), 3);
        assert_eq!(targets[0], "default/web-2:http 10.0.0.3:80");
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
