//! The host's kernel: iptables programs, conntrack, addresses and packet counters.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use parking_lot::Mutex;
use weft_host::{
    NetlinkError,
    addresses::interface_addresses,
    iptables::{Absence, DetectError, Iptables as Programs, Limits, VariantChoice},
    kernel_version::KernelVersion,
    netfilter::{Flow, Netfilter},
    sysctl::{self, Setting},
};
use weft_iptables::{HostKernel, Iptables, Options, OwnWrites, RestoreScope, supports_nfacct};
use weft_model::{IpFamily, Protocol};
use weft_proxy::{Backend, conntrack::FlowEnds};
use weft_ruleset::NfacctName;

use crate::{metrics::PacketCounters, sync_state::Flows, watcher::HostAddresses};

/// kube-proxy's environment variable: anything but an empty text accepts kernels of any version.
pub(crate) const SKIP_KERNEL_CHECK: &str = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK";

/// A host on which Services cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// There are no iptables programs for a required family.
    #[error("cannot find the iptables programs for {family}")]
    Programs {
        /// The family.
        family: IpFamily,
        /// The cause.
        #[source]
        source: DetectError,
    },
    /// The kernel lacks something that the nftables mode needs.
    #[error("cannot serve {family} by nftables: {reason}; --proxy-mode=iptables works without it")]
    Nftables {
        /// The family.
        family: IpFamily,
        /// The feature that is missing.
        reason: String,
    },
    /// The kernel is older than kube-proxy's nftables mode requires.
    #[error(
        "cannot use nftables: the kernel is {running}, expected {required} or later; \
         --proxy-mode=iptables works, and {SKIP_KERNEL_CHECK}=1 skips this check"
    )]
    OldKernel {
        /// The running kernel.
        running: KernelVersion,
        /// The oldest that is accepted.
        required: KernelVersion,
    },
    /// The kernel's version cannot be read.
    #[error("cannot read the version of the kernel; {SKIP_KERNEL_CHECK}=1 skips this check")]
    UnknownKernel(#[source] io::Error),
    /// The programs exist, but the kernel does not support them.
    #[error("{family} is required but not available on this host: {reason}")]
    Family {
        /// The family.
        family: IpFamily,
        /// The cause.
        reason: Absence,
    },
}

/// Time limit of a program: enough for a very large ruleset on a slow node. A program that hangs
/// must not block its family forever.
const PROGRAM_LIMIT: Duration = Duration::from_hours(1);

/// Attempts of a probe: a busy lock must not disable a family or a feature until the next start.
const ATTEMPTS: usize = 3;

/// The programs of the families that this host has: at least one, and the required one.
pub fn families(
    required: Option<IpFamily>,
    variant: VariantChoice,
) -> Result<Vec<(IpFamily, Programs)>, HostError> {
    let mut found = Vec::new();
    let mut missing = None;
    for family in IpFamily::ALL {
        match programs(family, variant) {
            Ok(programs) => found.push((family, programs)),
            Err(error) if required == Some(family) => return Err(error),
            Err(error) => {
                tracing::warn!(%family, reason = %error, "address family not served");
                missing.get_or_insert(error);
            }
        }
    }
    match missing {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

fn programs(family: IpFamily, variant: VariantChoice) -> Result<Programs, HostError> {
    let programs = Programs::detect(family, variant)
        .map_err(|source| HostError::Programs { family, source })?;
    let mut presence = programs.presence();
    for _ in 1..ATTEMPTS {
        if matches!(presence, Err(Absence::NoNat(_))) {
            presence = programs.presence();
        }
    }
    presence.map_err(|reason| HostError::Family { family, reason })?;
    Ok(programs.with_limits(Limits {
        program: PROGRAM_LIMIT,
        ..Limits::default()
    }))
}

/// Makes the kernel load the conntrack module, by reading entries of SCTP, of which there are few.
pub(super) fn load_conntrack() -> Result<(), NetlinkError> {
    let mut netfilter = Netfilter::open()?;
    netfilter.flows(IpFamily::V4, Protocol::Sctp).map(drop)
}

/// A backend that writes through these programs.
pub fn backend(
    programs: Programs,
    own_writes: OwnWrites,
    restore: RestoreScope,
) -> Box<dyn Backend> {
    let random_fully = programs.supports_random_fully();
    let family = programs.family();
    let mut kernel = HostKernel::new(programs, own_writes);
    let nfacct = ensure_counters() && (0..ATTEMPTS).any(|_| supports_nfacct(&mut kernel));
    let options = Options {
        random_fully,
        drop_invalid: !is_liberal(),
        nfacct,
        restore,
    };
    tracing::info!(%family, ?options, "iptables backend ready");
    Box::new(Iptables::new(kernel, options))
}

fn ensure_counters() -> bool {
    let ensured = Netfilter::open().and_then(|mut netfilter| {
        if !netfilter.has_counters() {
            return Ok(false);
        }
        for counter in NfacctName::ALL {
            netfilter.ensure_counter(counter.as_str())?;
        }
        Ok(true)
    });
    ensured.unwrap_or_else(|error| {
        tracing::info!(%error, "nfacct counters not available");
        false
    })
}

/// True if conntrack accepts TCP segments outside the window, instead of calling them INVALID.
pub fn is_liberal() -> bool {
    let setting = Setting::Sysctl("net/netfilter/nf_conntrack_tcp_be_liberal");
    sysctl::Settings::default()
        .read_number(setting)
        .is_ok_and(|value| value != 0)
}

/// The conntrack entries of this host.
#[derive(Debug, Default)]
pub struct HostFlows;

impl Flows for HostFlows {
    fn delete_stale(
        &mut self,
        family: IpFamily,
        is_stale: &dyn Fn(FlowEnds) -> bool,
    ) -> Result<u64, NetlinkError> {
        let mut netfilter = Netfilter::open()?;
        let stale = netfilter.flows_where(family, Protocol::Udp, |flow| is_stale(ends(flow)))?;
        let mut count = 0;
        for flow in stale {
            count += u64::from(netfilter.delete_flow(&flow)?);
        }
        Ok(count)
    }
}

fn ends(flow: &Flow) -> FlowEnds {
    let destination: SocketAddr = flow.original.destination;
    FlowEnds {
        destination,
        answered_by: flow.reply.source,
    }
}

/// The interface addresses of this host.
#[derive(Debug, Default)]
pub struct HostDevices;

impl HostAddresses for HostDevices {
    fn addresses(&self) -> Option<Vec<IpAddr>> {
        let mut all = Vec::new();
        for family in IpFamily::ALL {
            match interface_addresses(family) {
                Ok(found) => all.extend(found.iter().map(|address| address.address)),
                Err(error) => {
                    tracing::warn!(%family, %error, "cannot read the host's addresses");
                    return None;
                }
            }
        }
        Some(all)
    }
}

/// The kernel's nfacct counters, read for each scrape.
#[derive(Debug, Default)]
pub struct HostCounters(Mutex<Option<Netfilter>>);

impl HostCounters {
    fn packets(&self, counter: NfacctName) -> Option<u64> {
        let mut netfilter = self.0.lock();
        if netfilter.is_none() {
            *netfilter = Netfilter::open().ok();
        }
        netfilter
            .as_mut()?
            .counter_packets(counter.as_str())
            .ok()
            .flatten()
    }
}

impl PacketCounters for HostCounters {
    fn invalid_dropped(&self) -> Option<u64> {
        self.packets(NfacctName::InvalidDropped)
    }

    fn localhost_node_ports_accepted(&self) -> Option<u64> {
        self.packets(NfacctName::LocalhostNodePorts)
    }
}
