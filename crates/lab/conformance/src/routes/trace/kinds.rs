//! The kinds of traces: steady, quiet, waves, failures and the short rehearsal.

use std::time::Duration;

use super::{Event, Machine, Step, Trace};

/// Interval of heartbeats.
const HEARTBEAT_SECONDS: f64 = 10.0;
const ALL: &[&str] = &[
    "get_network",
    "list_networks",
    "add_route",
    "delete_route",
    "get_actions",
    "list_servers",
    "get_server",
];
const CHANGES: &[&str] = &["add_route", "delete_route"];

/// Heartbeats and labels, which do not affect routes.
pub(crate) fn steady(seed: u64) -> Trace {
    Writer::new(seed, 20).trace("steady", "20 nodes, heartbeats and labels only", 600.0)
}

/// Nodes join, leave or change their address, one at a time.
pub(crate) fn quiet(seed: u64) -> Trace {
    let mut writer = Writer::new(seed, 20);
    for turn in 0..6 {
        let at = 10.0 + 80.0 * f64::from(turn) + writer.between(0.0, 20.0);
        writer.join(at);
        if turn % 2 == 1 {
            let after = writer.between(25.0, 45.0);
            writer.leave(at + after);
        }
    }
    let at = writer.between(515.0, 530.0);
    writer.change_address(at);
    writer.trace(
        "quiet",
        "20 nodes; 6 join, 3 leave and 1 changes its address, one at a time",
        600.0,
    )
}

/// Waves of an autoscaler, and nodes that are replaced by others with the same ranges.
pub(crate) fn waves(seed: u64) -> Trace {
    let mut writer = Writer::new(seed, 40);
    for wave in 0..4 {
        let begin = 10.0 + 130.0 * f64::from(wave);
        for _ in 0..8 {
            let at = begin + writer.between(0.0, 5.0);
            writer.join(at);
        }
        for _ in 0..4 {
            let at = begin + 45.0 + writer.between(0.0, 10.0);
            writer.leave(at);
        }
        for turn in 0..2 {
            let at = begin + 75.0 + 20.0 * f64::from(turn) + writer.between(0.0, 3.0);
            writer.replace(at);
        }
    }
    let at = writer.between(125.0, 135.0);
    writer.change_address(at);
    writer.trace(
        "waves",
        "40 nodes; 4 waves of 8 joins within 5 s, 16 leave, 8 are replaced by nodes that get their \
         ranges, 1 changes its address",
        600.0,
    )
}

/// The provider refuses calls at times.
pub(crate) fn failures(seed: u64) -> Trace {
    let mut writer = Writer::new(seed, 20);
    writer.join_refused_once(20.0);
    let at = 80.0 + writer.between(0.0, 5.0);
    writer.join(at);
    for (begin, length, endpoints, code) in [
        (130.0, 60.0, ALL, "service_error"),
        (250.0, 40.0, ALL, "rate_limit_exceeded"),
        (350.0, 30.0, CHANGES, "locked"),
    ] {
        writer.refuse(begin, begin + length, endpoints, code);
        for _ in 0..2 {
            let at = begin + writer.between(1.0, length - 10.0);
            writer.join(at);
        }
        let at = begin + writer.between(1.0, length - 10.0);
        writer.leave(at);
    }
    writer.join_refused_once(450.0);
    writer.trace(
        "failures",
        "20 nodes; twice the first create for a lone join is refused once; in between all calls are \
         answered with 500 for 60 s and with 429 for 40 s, and changes with 423 for 30 s, while 6 \
         nodes join and 3 leave",
        600.0,
    )
}

/// A short trace that shows that the comparison works.
pub(crate) fn rehearsal(seed: u64) -> Trace {
    let mut writer = Writer::new(seed, 3);
    let at = writer.between(1.0, 2.0);
    writer.join(at);
    writer.leave(6.0);
    writer.join_refused_once(14.0);
    writer.trace(
        "rehearsal",
        "3 nodes; 2 join, one of them refused once, 1 leaves",
        40.0,
    )
}

/// Builder of a trace.
struct Writer {
    random: fastrand::Rng,
    initial: Vec<Machine>,
    /// Initial nodes that can still be chosen to leave or change their address.
    candidates: Vec<Machine>,
    lifetimes: Vec<Lifetime>,
    events: Vec<(f64, Step)>,
    next_number: u16,
    next_range: u8,
    refused_once: Vec<Machine>,
}

/// Start and end of a node's heartbeats, in seconds.
struct Lifetime {
    machine: Machine,
    from: f64,
    until: f64,
}

impl Writer {
    fn new(seed: u64, nodes: u8) -> Self {
        let mut writer = Self {
            random: fastrand::Rng::with_seed(seed),
            initial: Vec::new(),
            candidates: Vec::new(),
            lifetimes: Vec::new(),
            events: Vec::new(),
            next_number: 1,
            next_range: 1,
            refused_once: Vec::new(),
        };
        for _ in 0..nodes {
            let machine = writer.fresh();
            writer.start_heartbeats(machine, 0.0);
            writer.initial.push(machine);
            writer.candidates.push(machine);
        }
        writer
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + self.random.f64() * (high - low)
    }

    fn fresh(&mut self) -> Machine {
        self.next_range += 1;
        self.fresh_with(self.next_range - 1)
    }

    fn fresh_with(&mut self, range: u8) -> Machine {
        self.next_number += 1;
        Machine::new(self.next_number - 1, range)
    }

    fn at(&mut self, at: f64, step: Step) {
        self.events.push((at, step));
    }

    fn start_heartbeats(&mut self, machine: Machine, from: f64) {
        self.lifetimes.push(Lifetime {
            machine,
            from,
            until: f64::INFINITY,
        });
    }

    /// Adds a node that stays until the end.
    fn join(&mut self, at: f64) -> Machine {
        let machine = self.fresh();
        self.join_as(machine, at);
        machine
    }

    /// The Node gets a range within 0.3 s and an address within 2.5 s.
    fn join_as(&mut self, machine: Machine, at: f64) {
        let range = at + self.between(0.02, 0.3);
        let known = at + self.between(0.31, 2.5);
        self.at(at, Step::Register(machine));
        self.at(range, Step::Range(machine));
        self.at(known, Step::Identify(machine));
        self.start_heartbeats(machine, known + 0.1);
    }

    fn join_refused_once(&mut self, at: f64) {
        let step = Step::Refuse {
            endpoints: &["add_route"],
            code: "service_error",
            times: 1,
        };
        self.at(at - 0.1, step);
        let machine = self.join(at);
        self.refused_once.push(machine);
    }

    /// Takes one of the candidates, so that no node is chosen twice.
    fn choose(&mut self) -> Machine {
        let index = self.random.usize(..self.candidates.len());
        self.candidates.swap_remove(index)
    }

    /// In half of the cases the server is removed first and the Node later, otherwise the reverse.
    fn leave(&mut self, at: f64) -> Machine {
        let machine = self.choose();
        let later = at + self.between(2.0, 5.0);
        let (server, node) = if self.random.bool() {
            (at, later)
        } else {
            (later, at)
        };
        self.at(server, Step::Terminate(machine));
        self.at(node, Step::Delete(machine));
        let lifetimes = self.lifetimes.iter_mut();
        for lifetime in lifetimes.filter(|lifetime| lifetime.machine == machine) {
            lifetime.until = at;
        }
        machine
    }

    /// A node leaves, and a new one gets its range.
    fn replace(&mut self, at: f64) {
        let machine = self.leave(at);
        let later = at + self.between(5.1, 8.0);
        let successor = self.fresh_with(machine.range);
        self.join_as(successor, later);
    }

    fn change_address(&mut self, at: f64) {
        let mut machine = self.choose();
        machine.moved = 1;
        let reported = at + self.between(0.5, 1.5);
        self.at(at, Step::ChangeAddress(machine));
        self.at(reported, Step::ReportAddress(machine));
    }

    fn refuse(
        &mut self,
        from: f64,
        until: f64,
        endpoints: &'static [&'static str],
        code: &'static str,
    ) {
        let step = Step::Refuse {
            endpoints,
            code,
            times: u32::MAX,
        };
        self.at(from, step);
        self.at(until, Step::Recover);
    }

    fn trace(mut self, name: &'static str, about: &'static str, length: f64) -> Trace {
        for lifetime in std::mem::take(&mut self.lifetimes) {
            self.noise(&lifetime, length);
        }
        self.events.sort_by(|one, other| one.0.total_cmp(&other.0));
        Trace {
            name,
            about,
            nodes: self.initial,
            events: self.events.into_iter().map(event).collect(),
            length: Duration::from_secs_f64(length),
            refused_once: self.refused_once,
        }
    }

    /// Heartbeats from a random offset on, and a label with one in twenty of them.
    fn noise(&mut self, lifetime: &Lifetime, length: f64) {
        let until = lifetime.until.min(length);
        let mut at = lifetime.from + self.between(0.0, HEARTBEAT_SECONDS);
        while at < until {
            self.at(at, Step::Heartbeat(lifetime.machine));
            if self.random.u8(..20) == 0 {
                self.at(at, Step::Label(lifetime.machine));
            }
            at += HEARTBEAT_SECONDS;
        }
    }
}

fn event((at, step): (f64, Step)) -> Event {
    Event {
        at: Duration::from_secs_f64(at),
        step,
    }
}
