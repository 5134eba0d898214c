//! `weft proxy status`.

use std::{
    fmt,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::bail;
use clap::Args;
use weft_host::{iptables::VariantChoice, nftables::Nftables};
use weft_iptables::{HostKernel, Kernel as _, OwnWrites};
use weft_model::IpFamily;
use weft_nftables::TABLE;
use weft_program::output;
use weft_proxy::config::Mode;
use weft_proxy_agent::{host, process::KUBE_PROXY_TABLE};

use crate::commands::proxy::resolve::Resolved;

const AFTER_HELP: &str = "\
Lists the tables and chains of weft proxy and of kube-proxy, and asks the metrics address which of the
two runs, in which mode. Rules that no running process maintains still translate packets, to endpoints
as they were when it ended. Exits with code 1 if there are such rules.";

/// Time for an answer of the running process.
const PATIENCE: Duration = Duration::from_secs(2);
/// A page that kube-proxy does not have.
const OWN_PAGE: &str = "/debug/proxy/syncs";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(in super::super) struct StatusArguments {}

/// Rules of a service proxy in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    /// The nftables table of weft.
    OwnTable(IpFamily),
    /// The nftables table of kube-proxy.
    KubeProxyTable(IpFamily),
    /// `KUBE-` chains, which both write.
    Chains(IpFamily, VariantChoice),
}

/// A running service proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Running {
    is_weft: bool,
    mode: Mode,
}

impl Rules {
    /// True if this process keeps them up to date.
    fn is_maintained_by(self, process: Running) -> bool {
        match self {
            Self::OwnTable(_) => process.is_weft && process.mode == Mode::Nftables,
            Self::KubeProxyTable(_) => !process.is_weft && process.mode == Mode::Nftables,
            Self::Chains(..) => process.mode == Mode::Iptables,
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Self::OwnTable(_) => "weft proxy cleanup --only-own-table",
            Self::KubeProxyTable(_) | Self::Chains(..) => {
                "start a proxy, which removes them after its first sync, or weft proxy cleanup"
            }
        }
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nft = |family: &IpFamily| match family {
            IpFamily::V4 => "ip",
            IpFamily::V6 => "ip6",
        };
        match self {
            Self::OwnTable(family) => {
                write!(f, "nftables table {} {TABLE}, of weft proxy", nft(family))
            }
            Self::KubeProxyTable(family) => {
                let family = nft(family);
                write!(
                    f,
                    "nftables table {family} {KUBE_PROXY_TABLE}, of kube-proxy"
                )
            }
            Self::Chains(family, variant) => {
                let variant = match variant {
                    VariantChoice::Legacy => "legacy",
                    VariantChoice::Auto | VariantChoice::Nft => "nft",
                };
                write!(f, "iptables-{variant} chains KUBE-SERVICES of {family}")
            }
        }
    }
}

impl fmt::Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.is_weft {
            "weft proxy"
        } else {
            "kube-proxy"
        };
        write!(f, "{name} in {} mode", mode_name(self.mode))
    }
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Iptables => "iptables",
        Mode::Nftables => "nftables",
    }
}

impl StatusArguments {
    pub(super) fn run(resolved: &Resolved) -> anyhow::Result<()> {
        let running = resolved.config.metrics.and_then(running);
        let found = rules()?;
        let place = match resolved.config.metrics {
            Some(address) => address.to_string(),
            None => "no address, metrics are disabled".to_owned(),
        };
        let first = match running {
            Some(running) => format!("running: {running} ({place})\n"),
            None => format!("running: no service proxy answers ({place})\n"),
        };
        let (lines, stale) = report(&found, running);
        output::text(&format!("{first}{lines}"))?;
        if stale > 0 {
            bail!(
                "{stale} of {} sets of rules are maintained by no process",
                found.len()
            );
        }
        Ok(())
    }
}

/// A line for each set of rules, and the number of those that nobody maintains.
fn report(found: &[Rules], running: Option<Running>) -> (String, usize) {
    if found.is_empty() {
        return ("the kernel has no rules of a service proxy\n".to_owned(), 0);
    }
    let mut stale = 0;
    let lines = found.iter().map(|rules| {
        if running.is_some_and(|running| rules.is_maintained_by(running)) {
            return format!("{rules}: maintained\n");
        }
        stale += 1;
        let remedy = rules.remedy();
        format!("{rules}: STALE, still translates packets; to remove: {remedy}\n")
    });
    (lines.collect(), stale)
}

/// All rules of service proxies in the kernel.
fn rules() -> anyhow::Result<Vec<Rules>> {
    let mut found = Vec::new();
    let mut nftables = Nftables::open()?;
    for family in IpFamily::ALL {
        if nftables.table(family, TABLE)?.is_some() {
            found.push(Rules::OwnTable(family));
        }
        if nftables.table(family, KUBE_PROXY_TABLE)?.is_some() {
            found.push(Rules::KubeProxyTable(family));
        }
    }
    for variant in [VariantChoice::Nft, VariantChoice::Legacy] {
        // A variant that is not installed has written nothing.
        for (family, programs) in host::families(None, variant).unwrap_or_default() {
            let mut has_chains = false;
            HostKernel::new(programs, OwnWrites::default())
                .save(&mut |line| has_chains |= line.starts_with(":KUBE-SERVICES "))?;
            if has_chains {
                found.push(Rules::Chains(family, variant));
            }
        }
    }
    Ok(found)
}

/// The process that serves a metrics address, if it is a service proxy.
fn running(address: SocketAddr) -> Option<Running> {
    let (status, body) = get(address, "/proxyMode").ok()?;
    let mode = [Mode::Iptables, Mode::Nftables]
        .into_iter()
        .find(|mode| body.trim() == mode_name(*mode))?;
    let own = get(address, OWN_PAGE).ok()?;
    (status == 200).then_some(Running {
        is_weft: own.0 == 200,
        mode,
    })
}

/// Status and body of a page. HTTP/1.0, so that the body ends with the connection.
fn get(mut address: SocketAddr, page: &str) -> io::Result<(u16, String)> {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET {page} HTTP/1.0\r\nhost: localhost\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.take(1 << 20).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((status.ok_or(io::ErrorKind::InvalidData)?, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEFT: Running = Running {
        is_weft: true,
        mode: Mode::Nftables,
    };

    #[test]
    fn a_table_is_stale_unless_its_own_program_runs_in_its_mode() {
        let own = Rules::OwnTable(IpFamily::V4);
        let others = Rules::KubeProxyTable(IpFamily::V4);
        let chains = Rules::Chains(IpFamily::V6, VariantChoice::Legacy);
        let kube_proxy = Running {
            is_weft: false,
            ..WEFT
        };
        let iptables = Running {
            mode: Mode::Iptables,
            ..WEFT
        };
        for (rules, maintainers) in [
            (own, [true, false, false]),
            (others, [false, true, false]),
            (chains, [false, false, true]),
        ] {
            let found = [WEFT, kube_proxy, iptables].map(|p| rules.is_maintained_by(p));
            assert_eq!(found, maintainers, "{rules}");
        }
    }

    #[test]
    fn stale_rules_are_named_with_their_remedy() {
        let found = [
            Rules::OwnTable(IpFamily::V6),
            Rules::Chains(IpFamily::V4, VariantChoice::Nft),
        ];
        let (lines, stale) = report(&found, Some(WEFT));
        assert_eq!(stale, 1);
        assert!(lines.starts_with("nftables table ip6 weft, of weft proxy: maintained\n"));
        assert!(
            lines.contains("chains KUBE-SERVICES of IPv4: STALE"),
            "{lines}"
        );
        let (lines, stale) = report(&found, None);
        assert_eq!(stale, 2);
        assert!(
            lines.contains("weft proxy cleanup --only-own-table"),
            "{lines}"
        );
    }
}
