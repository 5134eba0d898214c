//! Translation of the daemon's response into a CNI result.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::Serialize;
use weft_cns::PodIpInfo;

use crate::{SpecVersion, config::ConfiguredRoute};

/// A response that cannot become a CNI result.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OutcomeError {
    #[error("it contains no address")]
    Empty,
    #[error("an entry contains no address")]
    Blank,
    #[error("it contains {0} twice")]
    Twice(IpAddr),
    #[error("{0} is not an address a pod can use")]
    Unusable(IpAddr),
    #[error("/{prefix} is not a prefix length for {address}")]
    Prefix { address: IpAddr, prefix: u8 },
    #[error("{0:?} is not a route destination: expected a CIDR")]
    Route(String),
}

/// The result of an ADD of an IPAM plugin.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Outcome {
    cni_version: SpecVersion,
    pub(crate) ips: Vec<Ip>,
    routes: Vec<Route>,
    dns: Dns,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Ip {
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'static str>,
    pub(crate) address: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Route {
    dst: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    gw: Option<IpAddr>,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Dns {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nameservers: Vec<String>,
}

impl Outcome {
    pub(crate) fn new(
        version: SpecVersion,
        infos: &[PodIpInfo],
        configured: Option<&[ConfiguredRoute]>,
    ) -> Result<Self, OutcomeError> {
        let ips = addresses(version, infos)?;
        let mut routes = match configured {
            Some(routes) => routes
                .iter()
                .filter(|route| has_family(&ips, route.dst.addr()))
                .map(|route| Route {
                    dst: route.dst,
                    gw: route.gw,
                })
                .collect(),
            None => default_routes(infos, &ips),
        };
        for route in infos.iter().flat_map(|info| &info.routes) {
            let dst = route.ip_address.parse();
            routes.push(Route {
                dst: dst.map_err(|_| OutcomeError::Route(route.ip_address.clone()))?,
                gw: route.gateway_ip_address,
            });
        }
        let mut nameservers: Vec<String> = Vec::new();
        for info in infos {
            for server in &info.network_container_primary_ip_config.dns_servers {
                if !nameservers.contains(server) {
                    nameservers.push(server.clone());
                }
            }
        }
        Ok(Self {
            cni_version: version,
            ips,
            routes,
            dns: Dns { nameservers },
        })
    }
}

fn addresses(version: SpecVersion, infos: &[PodIpInfo]) -> Result<Vec<Ip>, OutcomeError> {
    if infos.is_empty() {
        return Err(OutcomeError::Empty);
    }
    let mut seen = BTreeSet::new();
    infos
        .iter()
        .map(|info| {
            let address = info.pod_ip_config.ip_address.ok_or(OutcomeError::Blank)?;
            if !seen.insert(address) {
                return Err(OutcomeError::Twice(address));
            }
            if address.is_unspecified() || address.is_loopback() || address.is_multicast() {
                return Err(OutcomeError::Unusable(address));
            }
            let prefix = info.prefix_length();
            let net = IpNet::new(address, prefix).ok().filter(|_| prefix > 0);
            Ok(Ip {
                version: version.names_families().then_some(match address {
                    IpAddr::V4(_) => "4",
                    IpAddr::V6(_) => "6",
                }),
                address: net.ok_or(OutcomeError::Prefix { address, prefix })?,
                gateway: info.gateway(),
            })
        })
        .collect()
}

fn has_family(ips: &[Ip], address: IpAddr) -> bool {
    let is_same = |ip: &Ip| ip.address.addr().is_ipv4() == address.is_ipv4();
    ips.iter().any(is_same)
}

/// A default route for each family that has an address, unless the daemon forbids it.
fn default_routes(infos: &[PodIpInfo], ips: &[Ip]) -> Vec<Route> {
    let everything = [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())];
    let is_wanted = |dst: &IpNet| {
        has_family(ips, dst.addr())
            && infos.iter().any(|info| {
                let address = info.pod_ip_config.ip_address;
                !info.skip_default_routes
                    && address.is_some_and(|address| address.is_ipv4() == dst.addr().is_ipv4())
            })
    };
    let wanted = everything.into_iter().filter(is_wanted);
    wanted.map(|dst| Route { dst, gw: None }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};
    use weft_cns::IpSubnet;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn four() -> PodIpInfo {
        PodIpInfo::infra(
            address("10.1.0.7"),
            IpSubnet::of(address("10.1.0.4"), 16),
            Some(address("10.1.0.1")),
        )
    }

    fn six() -> PodIpInfo {
        PodIpInfo::infra(
            address("fd00::7"),
            IpSubnet::of(address("fd00::4"), 64),
            Some(address("fd00::1")),
        )
    }

    #[test]
    fn every_version_gets_the_layout_it_knows() {
        for version in SpecVersion::ALL {
            let outcome = Outcome::new(version, &[four(), six()], None).unwrap();
            let mut expected = json!({
                "cniVersion": version.as_str(),
                "ips": [{"address": "10.1.0.7/16", "gateway": "10.1.0.1"},
                        {"address": "fd00::7/64", "gateway": "fd00::1"}],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                "dns": {}
            });
            if version < SpecVersion::V1_0_0 {
                expected["ips"][0]["version"] = json!("4");
                expected["ips"][1]["version"] = json!("6");
            }
            assert_eq!(to_value(outcome).unwrap(), expected);
        }
    }

    #[test]
    fn a_missing_gateway_is_left_out() {
        let mut info = four();
        info.network_container_primary_ip_config.gateway_ip_address = None;
        let outcome = to_value(Outcome::new(SpecVersion::NEWEST, &[info], None).unwrap()).unwrap();
        assert_eq!(outcome["ips"], json!([{"address": "10.1.0.7/16"}]));
    }

    #[test]
    fn routes_follow_configuration_and_daemon() {
        let configured = [
            ConfiguredRoute {
                dst: "10.0.0.0/8".parse().unwrap(),
                gw: Some(address("10.1.0.2")),
            },
            ConfiguredRoute {
                dst: "fd00::/8".parse().unwrap(),
                gw: None,
            },
        ];
        let outcome = |info: PodIpInfo, configured| {
            to_value(Outcome::new(SpecVersion::NEWEST, &[info], configured).unwrap()).unwrap()
        };
        let routes = &outcome(four(), Some(&configured))["routes"];
        let expected = json!([{"dst": "10.0.0.0/8", "gw": "10.1.0.2"}]);
        assert_eq!(*routes, expected, "none of a family without an address");
        let mut info = four();
        info.skip_default_routes = true;
        info.routes = vec![weft_cns::Route {
            ip_address: "192.0.2.0/24".to_owned(),
            ..weft_cns::Route::default()
        }];
        assert_eq!(
            outcome(info, None)["routes"],
            json!([{"dst": "192.0.2.0/24"}])
        );
    }

    #[test]
    fn name_servers_are_named_once() {
        let (mut one, mut other) = (four(), six());
        for info in [&mut one, &mut other] {
            info.network_container_primary_ip_config.dns_servers = vec!["10.0.0.10".to_owned()];
        }
        let outcome = Outcome::new(SpecVersion::NEWEST, &[one, other], None).unwrap();
        assert_eq!(
            to_value(outcome.dns).unwrap(),
            json!({"nameservers": ["10.0.0.10"]})
        );
    }

    #[test]
    fn an_answer_that_no_pod_can_use_is_refused() {
        let with = |change: &dyn Fn(&mut PodIpInfo)| {
            let mut info = four();
            change(&mut info);
            Outcome::new(SpecVersion::NEWEST, &[info], None).unwrap_err()
        };
        let nothing = Outcome::new(SpecVersion::NEWEST, &[], None).unwrap_err();
        assert_eq!(nothing, OutcomeError::Empty);
        let twice = Outcome::new(SpecVersion::NEWEST, &[four(), four()], None).unwrap_err();
        assert_eq!(twice, OutcomeError::Twice(address("10.1.0.7")));
        let blank = with(&|info| info.pod_ip_config.ip_address = None);
        assert_eq!(blank, OutcomeError::Blank);
        for odd in ["0.0.0.0", "127.0.0.1", "224.0.0.1"] {
            let found = with(&|info| info.pod_ip_config.ip_address = Some(address(odd)));
            assert_eq!(found, OutcomeError::Unusable(address(odd)));
        }
        for prefix in [0, 33] {
            let found = with(&|info| {
                info.pod_ip_config.prefix_length = prefix;
                info.network_container_primary_ip_config
                    .ip_subnet
                    .prefix_length = prefix;
            });
            assert!(matches!(found, OutcomeError::Prefix { .. }), "{found:?}");
        }
        let nowhere = with(&|info| {
            info.routes = vec![weft_cns::Route {
                ip_address: "somewhere".to_owned(),
                ..weft_cns::Route::default()
            }];
        });
        assert_eq!(nowhere, OutcomeError::Route("somewhere".to_owned()));
    }
}
