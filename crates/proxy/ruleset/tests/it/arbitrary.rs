//! Generators for rules of every form, and for hostile text.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use proptest::{collection::vec, option, prelude::*, sample::select};
use weft_model::{IpFamily, Protocol};
use weft_ruleset::{
    AddressType, ChainName, Comment, ConntrackStates, Interface, Match, Negatable, NfacctName,
    Probability, Recent, Rule, Table, Target,
};

/// The kind of rules to generate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) family: IpFamily,
    /// Only targets of this table are used.
    pub(crate) table: Table,
    /// Allow rules that need an nfacct counter, which must exist already.
    pub(crate) counters: bool,
}

/// Words of the rule language, and characters that could end a word, a comment or a line.
pub(crate) fn hostile_text() -> impl Strategy<Value = String> {
    let trap = select(
        &[
            "-j ACCEPT",
            "\" -j ACCEPT",
            "\n-A INPUT -j ACCEPT\n",
            "COMMIT",
            "\r\n*nat\n",
            "\\\"",
            "'",
            "! ",
            " ",
            "\t",
            "-",
            "--comment",
            "\0",
            "\u{2028}",
            "ü",
            "#",
            ":",
            "[0:0]",
            "\u{b}",
            "$(x)",
        ][..],
    );
    let piece = prop_oneof![trap.prop_map(str::to_owned), "[ -~]{0,12}", any::<String>()];
    vec(piece, 0..4).prop_map(|pieces| pieces.concat())
}

pub(crate) fn comment() -> impl Strategy<Value = Comment> {
    "[ !#-&(-\\[\\]-~]{1,40}".prop_map(|text| Comment::new(text).unwrap())
}

pub(crate) fn chain() -> impl Strategy<Value = ChainName> {
    select(&["KUBE-A", "KUBE-SVC-B", "c_1.d:e/f"][..])
        .prop_map(|name| ChainName::parse(name).unwrap())
}

fn protocol() -> impl Strategy<Value = Protocol> {
    select(&Protocol::ALL[..])
}

fn address(family: IpFamily) -> BoxedStrategy<IpAddr> {
    match family {
        IpFamily::V4 => any::<u32>()
            .prop_map(|bits| IpAddr::V4(bits.into()))
            .boxed(),
        // Global unicast: C's and Rust's texts differ for addresses that embed an IPv4 one.
        IpFamily::V6 => any::<u128>()
            .prop_map(|bits| IpAddr::V6(((bits >> 3) | (1 << 125)).into()))
            .boxed(),
    }
}

fn network(family: IpFamily) -> impl Strategy<Value = Negatable<IpNet>> {
    (address(family), 1..=family.width(), any::<bool>()).prop_map(|(address, length, negated)| {
        let value = IpNet::new(address, length).unwrap().trunc();
        Negatable { negated, value }
    })
}

fn interface() -> impl Strategy<Value = Negatable<Interface>> {
    ("[a-z][a-z0-9.@_-]{0,12}[a-z0-9+]", any::<bool>()).prop_map(|(name, negated)| Negatable {
        negated,
        value: Interface::new(&name).unwrap(),
    })
}

fn states() -> impl Strategy<Value = ConntrackStates> {
    let all = [
        ConntrackStates::INVALID,
        ConntrackStates::NEW,
        ConntrackStates::RELATED,
        ConntrackStates::ESTABLISHED,
        ConntrackStates::DNAT,
    ];
    vec(select(all.to_vec()), 1..4).prop_map(|states| {
        let mut states = states.into_iter();
        let first = states.next().unwrap();
        states.fold(first, ConntrackStates::or)
    })
}

/// The kernel creates a file for each list, so a '/' is not allowed.
fn list() -> impl Strategy<Value = ChainName> {
    chain().prop_filter("a file's name", |name| !name.as_str().contains('/'))
}

fn recent(family: IpFamily) -> impl Strategy<Value = Recent> {
    prop_oneof![
        (list(), 1..100_000_u32).prop_map(move |(name, seconds)| Recent::Check {
            name,
            seconds,
            family
        }),
        list().prop_map(move |name| Recent::Set { name, family }),
    ]
}

fn extension(kind: Kind) -> BoxedStrategy<Match> {
    let mark = (
        any::<bool>(),
        any::<u32>(),
        prop_oneof![Just(u32::MAX), any::<u32>()],
    );
    let address_type = select(&[AddressType::SourceLocal, AddressType::DestinationLocal][..]);
    let common = prop_oneof![
        4 => comment().prop_map(Match::Comment),
        2 => (any::<bool>(), states())
            .prop_map(|(negated, states)| Match::Conntrack { negated, states }),
        2 => address_type.prop_map(Match::AddressType),
        2 => mark.prop_map(|(negated, value, mask)| Match::Mark { negated, value, mask }),
        2 => (0.0..=1.0).prop_map(|p| Match::Statistic(Probability::from_fraction(p))),
        2 => recent(kind.family).prop_map(Match::Recent),
    ];
    if !kind.counters {
        return common.boxed();
    }
    let counter = select(&NfacctName::ALL[..]).prop_map(Match::Nfacct);
    prop_oneof![9 => common, 1 => counter].boxed()
}

fn target(kind: Kind) -> BoxedStrategy<Target> {
    let verdicts: &[_] = match kind.table {
        Table::Nat => &[Target::Accept, Target::Return],
        Table::Mangle | Table::Filter => &[Target::Accept, Target::Return, Target::Drop],
    };
    let common = prop_oneof![
        chain().prop_map(Target::Jump),
        select(verdicts),
        any::<(u32, u32)>().prop_map(|(value, mask)| Target::SetMark { value, mask }),
    ];
    match kind.table {
        Table::Mangle => common.boxed(),
        Table::Filter => prop_oneof![4 => common, 1 => Just(Target::Reject(kind.family))].boxed(),
        Table::Nat => prop_oneof![
            3 => common,
            1 => any::<bool>().prop_map(|random_fully| Target::Masquerade { random_fully }),
            1 => (address(kind.family), 1..=u16::MAX)
                .prop_map(|(address, port)| Target::Dnat(SocketAddr::new(address, port))),
        ]
        .boxed(),
    }
}

/// The protocol with its match, at some place among the others.
type Transport = Option<(Protocol, Option<u16>, prop::sample::Index)>;

fn transport() -> impl Strategy<Value = Transport> {
    option::of((
        protocol(),
        option::of(any::<u16>()),
        any::<prop::sample::Index>(),
    ))
}

/// A rule of any form that this table allows.
pub(crate) fn rule(kind: Kind) -> impl Strategy<Value = Rule> {
    (
        option::of(network(kind.family)),
        option::of(network(kind.family)),
        option::of(interface()),
        transport(),
        vec(extension(kind), 0..4),
        option::of(target(kind)),
    )
        .prop_map(
            |(source, destination, in_interface, transport, mut matches, target)| {
                let mut protocol = None;
                if let Some((used, destination_port, place)) = transport {
                    protocol = Some(used);
                    let extension = Match::Transport {
                        protocol: used,
                        destination_port,
                    };
                    matches.insert(place.index(matches.len() + 1), extension);
                } else if matches!(target, Some(Target::Dnat(_))) {
                    protocol = Some(Protocol::Tcp);
                }
                Rule {
                    source,
                    destination,
                    in_interface,
                    protocol,
                    matches,
                    target,
                }
            },
        )
}
