//! Match extensions (`-m`) and interface names.

use std::fmt;

use weft_model::{IpFamily, Protocol};

use crate::{ChainName, Comment};

/// An extension match, printed as `iptables-save` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Match {
    /// A comment; matches every packet.
    Comment(Comment),
    /// The protocol's own match, with or without a port.
    Transport {
        /// Same as the rule's `-p`.
        protocol: Protocol,
        /// The destination port, `--dport`.
        destination_port: Option<u16>,
    },
    /// State of the connection.
    Conntrack {
        /// Matches if the connection is in none of the states.
        negated: bool,
        /// The states.
        states: ConntrackStates,
    },
    /// Kind of an address as the routing table knows it.
    AddressType(AddressType),
    /// The packet's mark.
    Mark {
        /// Matches if the mark differs.
        negated: bool,
        /// Compared with the masked mark.
        value: u32,
        /// The bits to compare.
        mask: u32,
    },
    /// Matches at random with this probability.
    Statistic(Probability),
    /// The list of recent source addresses.
    Recent(Recent),
    /// Counts the packets that reach this match.
    Nfacct(NfacctName),
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Comment(comment) => write!(f, "-m comment --comment {comment}"),
            Self::Transport {
                protocol,
                destination_port: Some(port),
            } => write!(f, "-m {protocol} --dport {port}"),
            Self::Transport { protocol, .. } => write!(f, "-m {protocol}"),
            Self::Conntrack { negated, states } => {
                let not = if *negated { "! " } else { "" };
                write!(f, "-m conntrack {not}--ctstate {states}")
            }
            Self::AddressType(AddressType::SourceLocal) => {
                f.write_str("-m addrtype --src-type LOCAL")
            }
            Self::AddressType(AddressType::DestinationLocal) => {
                f.write_str("-m addrtype --dst-type LOCAL")
            }
            Self::Mark {
                negated,
                value,
                mask,
            } => {
                let not = if *negated { "! " } else { "" };
                write!(f, "-m mark {not}--mark ")?;
                fmt_mark(f, *value, *mask)
            }
            Self::Statistic(probability) => {
                write!(f, "-m statistic --mode random --probability {probability}")
            }
            Self::Recent(recent) => recent.fmt(f),
            // Two blanks: a quirk of the extension's save function.
            Self::Nfacct(name) => write!(f, "-m nfacct --nfacct-name  {}", name.as_str()),
        }
    }
}

fn fmt_mark(f: &mut fmt::Formatter<'_>, value: u32, mask: u32) -> fmt::Result {
    write!(f, "{value:#x}")?;
    if mask == u32::MAX {
        return Ok(());
    }
    write!(f, "/{mask:#x}")
}

/// The address that must be one of this host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressType {
    /// The source.
    SourceLocal,
    /// The destination.
    DestinationLocal,
}

/// A set of connection states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConntrackStates(u8);

impl ConntrackStates {
    /// Packets that belong to no connection and start none.
    pub const INVALID: Self = Self(1);
    /// First packets of connections.
    pub const NEW: Self = Self(1 << 1);
    /// Connections that belong to another one, such as data connections of FTP.
    pub const RELATED: Self = Self(1 << 2);
    /// Packets of a known connection.
    pub const ESTABLISHED: Self = Self(1 << 3);
    /// Connections with a translated destination.
    pub const DNAT: Self = Self(1 << 6);

    /// In the order in which the kernel prints them.
    const NAMES: [(Self, &str); 5] = [
        (Self::INVALID, "INVALID"),
        (Self::NEW, "NEW"),
        (Self::RELATED, "RELATED"),
        (Self::ESTABLISHED, "ESTABLISHED"),
        (Self::DNAT, "DNAT"),
    ];

    /// Both sets together.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if the sets have a state in common.
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Parses a comma-separated list.
    pub fn parse(text: &str) -> Option<Self> {
        text.split(',').try_fold(Self(0), |set, word| {
            let (state, _) = Self::NAMES.iter().find(|(_, name)| *name == word)?;
            Some(set.or(*state))
        })
    }
}

impl fmt::Display for ConntrackStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (state, name) in Self::NAMES {
            if self.intersects(state) {
                write!(f, "{separator}{name}")?;
                separator = ",";
            }
        }
        Ok(())
    }
}

/// A probability as the kernel stores it: in units of 2⁻³¹.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Probability(u32);

impl Probability {
    const ONE: f64 = 2_147_483_648.0;

    /// One in `n`, rounded twice as on the way through iptables: to ten decimals as kube-proxy
    /// prints it, then to the kernel's unit.
    pub fn one_in(n: usize) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 endpoints")]
        let exact = 1.0 / n.max(1) as f64;
        let printed = (exact * 1e10).round() / 1e10;
        Self::from_fraction(printed)
    }

    /// The nearest probability to a fraction between 0 and 1.
    pub fn from_fraction(fraction: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to 0..=2^31"
        )]
        Self((fraction.clamp(0.0, 1.0) * Self::ONE).round() as u32)
    }

    /// The value between 0 and 1.
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / Self::ONE
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.11}", self.fraction())
    }
}

/// A check of, or an addition to, a list of source addresses. Lists are named after chains.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Recent {
    /// Matches if the source was added within the last seconds. Removes older entries.
    Check {
        /// The list.
        name: ChainName,
        /// Lifetime of an entry.
        seconds: u32,
        /// Family of the addresses in it.
        family: IpFamily,
    },
    /// Adds the source.
    Set {
        /// The list.
        name: ChainName,
        /// Family of the addresses in it.
        family: IpFamily,
    },
}

impl fmt::Display for Recent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, family) = match self {
            Self::Check {
                name,
                seconds,
                family,
            } => {
                write!(f, "-m recent --rcheck --seconds {seconds} --reap")?;
                (name, family)
            }
            Self::Set { name, family } => {
                f.write_str("-m recent --set")?;
                (name, family)
            }
        };
        let mask = recent_mask(*family);
        write!(f, " --name {name} --mask {mask} --rsource")
    }
}

/// The mask that keeps a whole address of this family.
pub(crate) fn recent_mask(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "255.255.255.255",
        IpFamily::V6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    }
}

/// An nfacct counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NfacctName {
    /// Packets dropped in conntrack state INVALID.
    InvalidDropped,
    /// Packets to NodePorts on loopback addresses.
    LocalhostNodePorts,
}

impl NfacctName {
    /// All counters.
    pub const ALL: [Self; 2] = [Self::InvalidDropped, Self::LocalhostNodePorts];

    /// The name in the kernel, the same as kube-proxy's.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidDropped => "ct_state_invalid_dropped_pkts",
            Self::LocalhostNodePorts => "localhost_nps_accepted_pkts",
        }
    }

    /// The counter of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|counter| counter.as_str() == name)
    }
}

/// The name of a network interface, or a prefix of names if it ends in `+`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Interface(Box<str>);

/// Text that is not an interface name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an interface name: expected 1 to 15 printable ASCII characters without blanks, '/', quotes and '!'"
)]
pub struct InvalidInterface(pub String);

impl Interface {
    /// An interface, or all interfaces with this prefix if the text ends in `+`.
    pub fn new(name: &str) -> Result<Self, InvalidInterface> {
        let fine = |b: u8| b.is_ascii_graphic() && !matches!(b, b'/' | b'"' | b'\'' | b'\\' | b'!');
        if name.is_empty() || name.len() > 15 || name.starts_with('-') || !name.bytes().all(fine) {
            return Err(InvalidInterface(name.to_owned()));
        }
        Ok(Self(name.into()))
    }

    /// The name or prefix as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if an interface of that name is meant.
    pub fn matches(&self, device: &str) -> bool {
        match self.0.strip_suffix('+') {
            Some(prefix) => device.starts_with(prefix),
            None => *self.0 == *device,
        }
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_print_as_the_kernel_does() {
        // From iptables-save of kube-proxy's rules.
        let seen = [
            (2, "0.50000000000"),
            (3, "0.33333333349"),
            (4, "0.25000000000"),
            (5, "0.20000000019"),
            (6, "0.16666666651"),
            (7, "0.14285714272"),
            (9, "0.11111111101"),
            (13, "0.07692307699"),
            (100, "0.00999999978"),
            (1000, "0.00100000016"),
        ];
        for (n, text) in seen {
            assert_eq!(Probability::one_in(n).to_string(), text, "1/{n}");
        }
    }

    #[test]
    fn a_printed_probability_reads_back_as_itself() {
        for n in 1..20_000 {
            let probability = Probability::one_in(n);
            let read = probability.to_string().parse().unwrap();
            assert_eq!(Probability::from_fraction(read), probability, "1/{n}");
        }
    }

    #[test]
    fn states_print_in_the_kernels_order() {
        let states = ConntrackStates::parse("DNAT,ESTABLISHED,RELATED").unwrap();
        assert_eq!(states.to_string(), "RELATED,ESTABLISHED,DNAT");
        assert_eq!(ConntrackStates::parse("NEW,OTHER"), None);
    }

    #[test]
    fn a_device_name_with_a_plus_is_a_beginning() {
        let veth = Interface::new("veth+").unwrap();
        assert!(veth.matches("veth0") && !veth.matches("eth0"));
        assert!(Interface::new("a b").is_err() && Interface::new("-i").is_err());
    }
}
