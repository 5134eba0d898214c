//! The constant part of the table: maps, chains and rules that are the same for every cluster.
//!
//! Services and endpoints are elements of the maps. Only two kinds of chains come and go: one for
//! each number of endpoints that is in use, and five for each affinity timeout.

use weft_host::nftables::{
    Chain, Datum, Element, Expression, Hook, MapChange, Ownership, Rejection, Rule, Set, Value,
    Verdict,
};
use weft_model::{IpFamily, Protocol};
use weft_proxy::{LoopbackNodePorts, NodePortTail, Settings};

use crate::{
    code::{Code, Expected, Side},
    collection::{CLIENTS, Collection, Dispatch, FrontMap, clients},
    front::{FrontKind, protocol_number},
    options::TableOptions,
    scratch::{COUNT_MASK, Flags, LOCAL_BIT, List},
};

/// The table, in each family.
pub const TABLE: &str = "weft";

/// The comment of the table, by which it is recognised as ours.
pub(crate) const TABLE_COMMENT: &str = "Services of Kubernetes, written by weft";

const MARK: &str = "mark-for-masquerade";
const NO_ENDPOINTS: &str = "no-endpoints";
const UNALLOCATED: &str = "unallocated";
const LOOPBACK: &str = "loopback";
/// Chain with a counting rule for each protocol, whose name is the rule's comment.
pub(crate) const LOOPBACK_REJECT: &str = "loopback-reject";
const TCP: u8 = 6;

/// Priorities of the chains that change destinations and sources.
const DESTINATION_PRIORITY: i32 = -100;
const SOURCE_PRIORITY: i32 = 100;

/// The sets, chains and rules that are always there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) ownership: Ownership,
    pub(crate) sets: Vec<Set>,
    pub(crate) chains: Vec<Chain>,
    pub(crate) rules: Vec<Rule>,
    /// Elements of verdict maps that are always there.
    pub(crate) verdicts: Vec<(Dispatch, Element)>,
}

/// A chain that exists while a number of endpoints or a timeout is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Branch {
    pub(crate) chains: Vec<Chain>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) verdicts: Vec<(Dispatch, Element)>,
}

impl Program {
    pub(crate) fn of(settings: &Settings, options: TableOptions) -> Self {
        let mut writer = Writer {
            family: settings.family,
            settings,
            chains: Vec::new(),
            rules: Vec::new(),
        };
        writer.common();
        for kind in FrontKind::ALL {
            writer.path(kind);
        }
        writer.entries();
        let family = settings.family;
        let sets = Collection::ALL
            .into_iter()
            .map(|c| c.set(family, options.counters));
        let dispatches = Dispatch::ALL.into_iter().map(Dispatch::set);
        Self {
            ownership: options.ownership,
            sets: sets.chain([clients(family)]).chain(dispatches).collect(),
            chains: writer.chains,
            rules: writer.rules,
            verdicts: vec![(
                Dispatch::Pick,
                verdict(0, Verdict::Goto(NO_ENDPOINTS.to_owned())),
            )],
        }
    }
}

/// An element that leads from a number to a chain.
fn verdict(number: u32, verdict: Verdict) -> Element {
    Element {
        datum: Some(Datum::Verdict(verdict)),
        ..Element::of_key(Value::EMPTY.with_number(number))
    }
}

/// The chain that draws one of `count` endpoints.
pub(crate) fn pick(family: IpFamily, count: u32) -> Branch {
    let name = format!("pick-{count}");
    let draw = Code::new(family).draw(count, List::Cluster.first());
    Branch {
        chains: vec![plain(&name)],
        rules: vec![draw.say(&format!("draw one of {count}")).rule(&name)],
        verdicts: vec![(Dispatch::Pick, verdict(count, Verdict::Jump(name)))],
    }
}

/// The chains of an affinity timeout in seconds.
pub(crate) fn timeout(family: IpFamily, seconds: u32) -> Branch {
    let remember = format!("remember-{seconds}s");
    let millis = u64::from(seconds) * 1000;
    let code = || Code::new(family);
    let update = code().client(MapChange::Update { timeout: millis });
    let mut branch = Branch {
        chains: vec![plain(&remember)],
        rules: vec![update.rule(&remember)],
        verdicts: Vec::new(),
    };
    for kind in FrontKind::ALL {
        for list in [List::Cluster, List::Local] {
            let (dispatch, known, count) = match list {
                List::Cluster => (Dispatch::Sticky(kind), "known", "count"),
                List::Local => (Dispatch::StickyLocal(kind), "known-local", "local-count"),
            };
            let prefix = kind.prefix();
            let count = format!("{prefix}{count}");
            let name = format!("{}-{seconds}s", dispatch.name());
            let mut rules = vec![
                code()
                    .front(kind)
                    .look_up(Collection::of(kind, FrontMap::Affinity).name()),
                code()
                    .address(Side::Source)
                    .scratch()
                    .look_up(CLIENTS)
                    .jump(&remember),
                code().jump(known),
                // Its endpoint is gone: an update would keep it.
                code().client(MapChange::Delete),
                code().jump(&count),
                code().dispatch(COUNT_MASK, Dispatch::Pick.name()),
            ];
            if list == List::Local {
                rules.push(code().set_bits(LOCAL_BIT));
            }
            rules.extend([
                code()
                    .front(kind)
                    .scratch()
                    .look_up(Collection::of(kind, FrontMap::Slots).name())
                    .jump(&remember),
                code().jump(known),
            ]);
            rules.extend(without_affinity(family, kind, list));
            branch.chains.push(plain(&name));
            let rules = rules.into_iter().map(|rule| rule.rule(&name));
            branch.rules.extend(rules);
            branch
                .verdicts
                .push((dispatch, verdict(seconds, Verdict::Goto(name))));
        }
    }
    branch
}

/// Draws an endpoint of a list for a client whose affinity is not known.
fn without_affinity(family: IpFamily, kind: FrontKind, list: List) -> Vec<Code> {
    let code = || Code::new(family);
    let prefix = kind.prefix();
    let pick = code().dispatch(COUNT_MASK, Dispatch::Pick.name());
    match list {
        List::Cluster => vec![
            code().jump(format!("{prefix}count")),
            pick,
            code().goto(format!("{prefix}endpoint")),
        ],
        List::Local => vec![
            code().jump(format!("{prefix}local-count")),
            pick,
            code().set_bits(LOCAL_BIT),
            code().goto(format!("{prefix}local-endpoint")),
        ],
    }
}

fn plain(name: &str) -> Chain {
    Chain {
        name: name.to_owned(),
        hook: None,
    }
}

struct Writer<'a> {
    family: IpFamily,
    settings: &'a Settings,
    chains: Vec<Chain>,
    rules: Vec<Rule>,
}

impl Writer<'_> {
    fn code(&self) -> Code {
        Code::new(self.family)
    }

    fn chain(&mut self, name: &str, rules: impl IntoIterator<Item = Code>) {
        self.chains.push(plain(name));
        let rules = rules.into_iter().map(|code| code.rule(name));
        self.rules.extend(rules);
    }

    fn mark_bit(&self) -> u32 {
        1u32.checked_shl(self.settings.masquerade_bit.into())
            .unwrap_or(0)
    }

    fn common(&mut self) {
        let code = self.code();
        self.chain(MARK, [code.clone().mark(self.mark_bit())]);
        let refuse = Rejection::PortUnreachable(self.family);
        self.chain(
            NO_ENDPOINTS,
            [
                code.clone().set_scratch(0),
                // ICMP errors are limited to one a second for each client.
                code.clone()
                    .protocol_is(TCP)
                    .then(Expression::Reject(Rejection::TcpReset)),
                code.clone().then(Expression::Reject(refuse)),
            ],
        );
        for (chain, map) in [
            ("known", Collection::StickyEndpoints),
            ("known-local", Collection::StickyLocalEndpoints),
        ] {
            self.chain(chain, [code.clone().protocol().scratch().dnat(map.name())]);
        }
    }

    /// The chains that a packet to one kind of front takes.
    fn path(&mut self, kind: FrontKind) {
        let prefix = kind.prefix();
        let name = |chain: &str| format!("{prefix}{chain}");
        let map = |map| Collection::of(kind, map).name();
        let code = self.code();
        let pick = || code.clone().dispatch(COUNT_MASK, Dispatch::Pick.name());

        let count = code.clone().front(kind).look_up(map(FrontMap::Services));
        self.chain(&name("count"), [count]);
        let count = code.clone().front(kind).look_up(map(FrontMap::LocalCounts));
        let none = code.clone().masked(COUNT_MASK, 0, Expected::Match).drop();
        self.chain(&name("local-count"), [count, none]);

        let dnat = || {
            let key = code.clone().front(kind).scratch();
            key.dnat(map(FrontMap::Endpoints))
        };
        for (chain, list) in [("endpoint", List::Cluster), ("local-endpoint", List::Local)] {
            let end = match list {
                List::Cluster => code.clone().goto(NO_ENDPOINTS),
                List::Local => code.clone().drop(),
            };
            self.chain(
                &name(chain),
                [
                    dnat(),
                    dnat().say("kernels before 6.17 may miss an endpoint that is being replaced"),
                    code.clone()
                        .set_scratch(list.first())
                        .say("the number drawn is gone: take the first"),
                    dnat(),
                    end,
                ],
            );
        }

        for (chain, list, dispatch) in [
            ("sticky", List::Cluster, Dispatch::Sticky(kind)),
            ("sticky-local", List::Local, Dispatch::StickyLocal(kind)),
        ] {
            let mut rules = vec![
                code.clone().front(kind).look_up(map(FrontMap::Timeouts)),
                code.clone().dispatch(u32::MAX, dispatch.name()),
            ];
            rules.extend(without_affinity(self.family, kind, list));
            self.chain(&name(chain), rules);
        }

        let mut rules = Vec::new();
        if let Some(detector) = &self.settings.local_detector {
            rules.push(code.clone().if_pod(detector, Expected::Match).leave());
        }
        let host = || code.clone().if_local(Side::Source);
        rules.extend([
            host().jump(MARK),
            host().leave(),
            code.clone()
                .flagged(Flags::STICKY.0)
                .goto(name("sticky-local")),
            code.clone().jump(name("local-count")),
            pick(),
            code.clone().set_bits(LOCAL_BIT),
            code.clone().goto(name("local-endpoint")),
        ]);
        self.chain(&name("local-policy"), rules);

        let mut rules = vec![
            code.clone()
                .masked(Flags::DROP.0 | COUNT_MASK, Flags::DROP.0, Expected::Match)
                .drop(),
        ];
        if kind == FrontKind::Address {
            let outside = code.clone().flagged(Flags::RANGES.0).front(kind);
            let outside = outside.address(Side::Source);
            rules.push(
                outside
                    .if_in(Collection::SourceRanges.name(), Expected::Mismatch)
                    .drop(),
            );
        }
        let flagged = |flag: Flags| code.clone().flagged(flag.0);
        rules.extend([
            flagged(Flags::MASQUERADE).jump(MARK),
            flagged(Flags::LOCAL).jump(name("local-policy")),
            flagged(Flags::STICKY_LOCAL).goto(name("sticky-local")),
            flagged(Flags::STICKY).goto(name("sticky")),
        ]);
        self.chain(&name("special"), rules);

        let mut rules = Vec::new();
        if let (FrontKind::Address, Some(detector)) = (kind, &self.settings.local_detector) {
            let foreign = code.clone().flagged(Flags::MASQUERADE_FOREIGN.0);
            rules.push(foreign.if_pod(detector, Expected::Mismatch).jump(MARK));
        }
        rules.extend([
            code.clone()
                .masked(Flags::SPECIAL.0, 0, Expected::Mismatch)
                .jump(name("special")),
            pick(),
            code.clone().goto(name("endpoint")),
        ]);
        self.chain(&name("service"), rules);
    }

    /// The chains in which packets begin.
    fn entries(&mut self) {
        let code = self.code();
        let service = |kind: FrontKind, code: Code| {
            let map = Collection::of(kind, FrontMap::Services).name();
            let found = code.front(kind).look_up(map);
            found.goto(format!("{}service", kind.prefix()))
        };
        let node_port = |code: Code| match self.settings.node_port_tail {
            NodePortTail::AnyLocal => code
                .if_local(Side::Destination)
                .not_loopback(Side::Destination),
            NodePortTail::Addresses(_) => code
                .address(Side::Destination)
                .if_in(Collection::NodePortAddresses.name(), Expected::Match),
        };
        let rules = [
            service(FrontKind::Address, code.clone()),
            service(FrontKind::Address, code.clone())
                .say("kernels before 6.17 may miss a Service that is being replaced"),
            service(FrontKind::NodePort, node_port(code.clone())),
            service(FrontKind::NodePort, node_port(code.clone()))
                .say("kernels before 6.17 may miss a NodePort that is being replaced"),
            code.clone()
                .address(Side::Destination)
                .if_in(Collection::ClusterIps.name(), Expected::Match)
                .goto(NO_ENDPOINTS)
                .say("a port that no Service has"),
            code.clone()
                .address(Side::Destination)
                .if_in(Collection::ServiceNetworks.name(), Expected::Match)
                .goto(UNALLOCATED),
        ];
        let mut rules = Vec::from(rules);
        if self.settings.loopback != LoopbackNodePorts::Untouched {
            rules.push(
                code.clone()
                    .loopback(Side::Destination, Expected::Match)
                    .jump(LOOPBACK),
            );
            self.loopback_node_ports();
        }
        self.chain("services", rules);
        // Upstream drops what is forwarded or sent, and leaves what comes in for the node itself.
        let local = code.clone().if_local(Side::Destination).leave();
        let drop = code.clone().drop().say("a ClusterIP that no Service has");
        self.chain(UNALLOCATED, [local, drop]);

        for (name, hook) in [("prerouting", Hook::Prerouting), ("output", Hook::Output)] {
            self.hooked(
                name,
                hook,
                DESTINATION_PRIORITY,
                [code.clone().jump("services")],
            );
        }
        let bit = self.mark_bit();
        let masquerade = |code: Code| code.then(Expression::Masquerade);
        self.hooked(
            "postrouting",
            Hook::Postrouting,
            SOURCE_PRIORITY,
            [
                code.clone()
                    .if_translated()
                    .masked(0xffff_0000, 0, Expected::Mismatch)
                    .set_scratch(0)
                    .say("clear the scratch register"),
                masquerade(code.clone().if_marked(bit).unmark(bit)),
                masquerade(
                    code.clone()
                        .if_translated()
                        .address(Side::Source)
                        .address(Side::Destination)
                        .if_in(Collection::Hairpin.name(), Expected::Match),
                ),
            ],
        );
    }

    /// Rejects and counts packets to NodePorts on loopback addresses that no listener serves.
    fn loopback_node_ports(&mut self) {
        let code = self.code();
        let mut rules = Vec::new();
        if self.settings.loopback == LoopbackNodePorts::TcpServed {
            rules.push(code.clone().protocol_is(TCP).leave());
        }
        let node_ports = Collection::of(FrontKind::NodePort, FrontMap::Services).name();
        let found = code.clone().front(FrontKind::NodePort).look_up(node_ports);
        rules.push(found.goto(LOOPBACK_REJECT));
        self.chain(LOOPBACK, rules);
        let refuse = Rejection::PortUnreachable(self.family);
        let mut rules = vec![code.clone().set_scratch(0)];
        rules.extend(Protocol::ALL.map(|protocol| {
            let rejection = match protocol {
                Protocol::Tcp => Rejection::TcpReset,
                Protocol::Udp | Protocol::Sctp => refuse,
            };
            code.clone()
                .protocol_is(protocol_number(protocol))
                .then(Expression::Counter)
                .then(Expression::Reject(rejection))
                .say(protocol.as_str())
        }));
        self.chain(LOOPBACK_REJECT, rules);
    }

    fn hooked(
        &mut self,
        name: &str,
        hook: Hook,
        priority: i32,
        rules: impl IntoIterator<Item = Code>,
    ) {
        self.chain(name, rules);
        if let Some(chain) = self.chains.last_mut() {
            chain.hook = Some((hook, priority));
        }
    }
}
