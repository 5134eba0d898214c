//! `weft proxy status`: rules of service proxies in the kernel, and which of them are stale.

use std::{
    fmt,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::bail;
use clap::Args;
use weft_model::IpFamily;
use weft_program::output;
use weft_proxy::config::Mode;

use super::kernel_rules::{KernelRules, find};
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

/// A running service proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Running {
    is_weft: bool,
    mode: Mode,
}

impl Running {
    /// True if this process keeps these rules up to date.
    fn maintains(self, rules: KernelRules) -> bool {
        match rules {
            KernelRules::OwnTable(_) => self.is_weft && self.mode == Mode::Nftables,
            KernelRules::ForeignTable(_) => false,
            KernelRules::KubeProxyTable(_) => !self.is_weft && self.mode == Mode::Nftables,
            KernelRules::Chains(..) => self.mode == Mode::Iptables,
        }
    }
}

/// The way to remove stale rules.
fn remedy(rules: KernelRules) -> &'static str {
    match rules {
        KernelRules::OwnTable(_) => "weft proxy cleanup --hand-over",
        KernelRules::ForeignTable(_) => "the program that created it",
        KernelRules::KubeProxyTable(_) | KernelRules::Chains(..) => {
            "start a proxy, which removes them after its first sync, or weft proxy cleanup"
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
        write!(f, "{name} in {} mode", self.mode.as_str())
    }
}

impl StatusArguments {
    pub(super) fn run(resolved: &Resolved) -> anyhow::Result<()> {
        let running = resolved.config.metrics.and_then(running);
        let mut found = Vec::new();
        for family in IpFamily::ALL {
            found.extend(find(family)?);
        }
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

/// A line for each set of rules, and the number of stale ones.
fn report(found: &[KernelRules], running: Option<Running>) -> (String, usize) {
    if found.is_empty() {
        return ("the kernel has no rules of a service proxy\n".to_owned(), 0);
    }
    let mut stale = 0;
    let lines = found.iter().map(|rules| {
        if running.is_some_and(|running| running.maintains(*rules)) {
            return format!("{rules}: maintained\n");
        }
        if let KernelRules::ForeignTable(_) = rules {
            return format!(
                "{rules}: not of a service proxy; weft proxy cannot use its nftables mode until it \
                 is renamed or removed\n"
            );
        }
        stale += 1;
        let remedy = remedy(*rules);
        format!("{rules}: STALE, still translates packets; to remove: {remedy}\n")
    });
    (lines.collect(), stale)
}

/// The process that serves a metrics address, if it is a service proxy.
fn running(address: SocketAddr) -> Option<Running> {
    let (status, body) = get(address, "/proxyMode").ok()?;
    let mode = [Mode::Iptables, Mode::Nftables]
        .into_iter()
        .find(|mode| body.trim() == mode.as_str())?;
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
    use weft_host::iptables::VariantChoice;

    use super::*;

    const WEFT: Running = Running {
        is_weft: true,
        mode: Mode::Nftables,
    };

    #[test]
    fn a_table_is_stale_unless_its_own_program_runs_in_its_mode() {
        let own = KernelRules::OwnTable(IpFamily::V4);
        let others = KernelRules::KubeProxyTable(IpFamily::V4);
        let chains = KernelRules::Chains(IpFamily::V6, VariantChoice::Legacy);
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
            let found = [WEFT, kube_proxy, iptables].map(|process| process.maintains(rules));
            assert_eq!(found, maintainers, "{rules}");
        }
    }

    #[test]
    fn stale_rules_are_named_with_their_remedy() {
        let found = [
            KernelRules::OwnTable(IpFamily::V6),
            KernelRules::Chains(IpFamily::V4, VariantChoice::Nft),
        ];
        let (lines, stale) = report(&found, Some(WEFT));
        assert_eq!(stale, 1);
        assert!(lines.starts_with("nftables table ip6 weft, of weft proxy: maintained\n"));
        assert!(
            lines.contains("chains KUBE-SERVICES of IPv4: STALE"),
            "{lines}"
        );
        let foreign = [KernelRules::ForeignTable(IpFamily::V4)];
        let (lines, stale) = report(&foreign, Some(WEFT));
        assert_eq!(stale, 0, "it is not ours to judge");
        assert!(
            lines.starts_with("nftables table ip weft, of another program: not of a service proxy"),
            "{lines}"
        );
        assert!(!KernelRules::ForeignTable(IpFamily::V4).are_of_another_proxy());
        let (lines, stale) = report(&found, None);
        assert_eq!(stale, 2);
        assert!(lines.contains("weft proxy cleanup --hand-over"), "{lines}");
    }
}
