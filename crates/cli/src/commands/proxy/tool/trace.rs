//! `weft proxy trace`.

use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use anyhow::{Context as _, bail};
use clap::Args;
use weft_host::iptables::{Iptables, VariantChoice};
use weft_model::{IpFamily, Protocol};
use weft_proxy::config::Mode;
use weft_proxy_agent::{HostAddresses as _, host::HostDevices, offline::Snapshot};
use weft_ruleset::{
    Ruleset,
    trace::{Entry, Packet},
};

use super::{ABLE, ObjectFiles, family_state};
use weft_program::output;

use crate::commands::proxy::resolve::Resolved;

#[derive(Debug, Args)]
pub(in super::super) struct TraceArguments {
    /// Source address of the packet
    #[arg(long = "src", value_name = "IP")]
    source: IpAddr,
    // Not a doc comment, in which the brackets would be a link.
    #[arg(
        long = "dst",
        value_name = "IP:PORT/PROTOCOL",
        help = "Destination of the packet, such as 10.96.0.10:53/udp or [fd00::a]:80; without a protocol, tcp"
    )]
    destination: Destination,
    /// Interface on which the packet arrives; without it, rules that match an interface are undecided
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Follow the rules in this host's kernel, also those of other programs
    #[arg(long, conflicts_with = "objects", required_unless_present = "objects")]
    live: bool,
    #[command(flatten)]
    objects: ObjectFiles,
}

/// An address, a port and a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Destination {
    address: SocketAddr,
    protocol: Protocol,
}

impl FromStr for Destination {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (address, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let known = Protocol::ALL
            .into_iter()
            .find(|candidate| candidate.as_str() == protocol.to_ascii_lowercase());
        let Some(protocol) = known else {
            bail!("{protocol:?} is none of tcp, udp and sctp");
        };
        let address = address
            .parse()
            .with_context(|| format!("{address:?} is not an address with a port"))?;
        Ok(Self { address, protocol })
    }
}

impl TraceArguments {
    pub(super) fn run(&self, resolved: &Resolved, variant: VariantChoice) -> anyhow::Result<()> {
        if resolved.config.mode == Mode::Nftables {
            return self.nftables(resolved);
        }
        let address = self.destination.address;
        let family = IpFamily::of(address.ip());
        if IpFamily::of(self.source) != family {
            bail!("{} and {address} are of different families", self.source);
        }
        let rules = if self.live {
            live(family, variant)?
        } else {
            let state = family_state(&self.objects.read()?, resolved, family)?;
            let plan = weft_iptables::render(&state.desired, &state.settings, ABLE);
            let mut rules = Ruleset::new(family);
            rules
                .restore(&plan.to_string())
                .context("cannot apply the rendered rules")?;
            rules
        };
        output::text(&self.tell(&rules))
    }

    /// Follows the packet through maps instead of rules.
    fn nftables(&self, resolved: &Resolved) -> anyhow::Result<()> {
        let address = self.destination.address;
        let family = IpFamily::of(address.ip());
        if IpFamily::of(self.source) != family {
            bail!("{} and {address} are of different families", self.source);
        }
        let packet = weft_nftables::Packet {
            source: self.source,
            destination: address,
            protocol: self.destination.protocol,
            device: self.device.clone(),
            local_addresses: HostDevices.addresses().into_iter().flatten().collect(),
        };
        let snapshot = if self.live {
            Snapshot::default()
        } else {
            self.objects.read()?
        };
        let state = family_state(&snapshot, resolved, family)?;
        let trace = if self.live {
            let mut kernel = weft_nftables::HostKernel::new(family, weft_nftables::Watch::new());
            let trace = weft_nftables::trace_live(&mut kernel, &state.settings, &packet)?;
            trace.context("cannot find the nftables table of weft in this kernel")?
        } else {
            weft_nftables::trace(&state.desired, &state.settings, &packet)
        };
        output::text(&trace.to_string())
    }

    fn tell(&self, rules: &Ruleset) -> String {
        let local_addresses = HostDevices.addresses().into_iter().flatten().collect();
        let mut packet = Packet {
            source: self.source,
            destination: self.destination.address.ip(),
            protocol: self.destination.protocol,
            destination_port: self.destination.address.port(),
            entry: Entry::Arriving {
                device: self.device.clone(),
            },
            mark: 0,
            local_addresses,
            affinity: None,
        };
        if packet.is_local(packet.source) && self.device.is_none() {
            packet.entry = Entry::Sent;
        }
        let mut text = String::new();
        let outcomes = rules.trace(&packet);
        let many = outcomes.len() > 1;
        for outcome in outcomes {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{outcome}");
            if many {
                text.push('\n');
            }
        }
        text
    }
}

fn live(family: IpFamily, variant: VariantChoice) -> anyhow::Result<Ruleset> {
    let programs = Iptables::detect(family, variant).context("cannot find iptables")?;
    let mut text = String::new();
    programs
        .save_lines(None, &mut |line| {
            text.push_str(line);
            text.push('\n');
        })
        .context("cannot read the kernel's rules")?;
    Ruleset::parse(&text, family).context("cannot parse the kernel's rules")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_have_a_port_and_maybe_a_protocol() {
        let read = |text: &str| text.parse::<Destination>().ok();
        let found = read("10.0.0.1:53/udp").unwrap();
        assert_eq!(found.address, "10.0.0.1:53".parse().unwrap());
        assert_eq!(found.protocol, Protocol::Udp);
        assert_eq!(read("[fd00::1]:80").unwrap().protocol, Protocol::Tcp);
        for text in ["10.0.0.1", "10.0.0.1:80/icmp", "name:80", "10.0.0.1:80/"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
