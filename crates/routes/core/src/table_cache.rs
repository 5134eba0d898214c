//! Cache of the provider's route table.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ipnet::IpNet;

use crate::{Cidr, Mark, Moment, NextHop, NodeList, Route, RouteAction, Step, Wanted};

/// The provider's table as last listed, with our own mutations since.
///
/// With it a node event costs mutations only; reading the table is for verification. It also
/// records which routes are ours where the provider's routes carry no mark.
#[derive(Clone, Debug, Default)]
pub struct TableCache {
    routes: Vec<Route>,
    listed_at: Option<Moment>,
    record: BTreeSet<(IpNet, NextHop)>,
    touched: BTreeMap<Cidr, Moment>,
    doubtful: BTreeMap<Cidr, Moment>,
    settle: Duration,
}

/// Difference between a list and the cached table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Routes that we did not create.
    pub appeared: Vec<Route>,
    /// Routes that are gone without our delete.
    pub vanished: Vec<Route>,
    /// Destinations with another route: the cached one, the listed one.
    pub changed: Vec<(Route, Route)>,
}

impl Drift {
    /// The drift without routes that deliver to pods of this machine's own node: they come and go
    /// with its bridge and its pods. One that vanished took nothing from another node, whichever
    /// range it was in.
    #[must_use]
    pub fn without_own(mut self, nodes: &NodeList) -> Self {
        self.appeared.retain(|route| !nodes.delivers_to_own(route));
        self.vanished.retain(|route| route.mark != Mark::Connected);
        self
    }

    /// True if the list was as cached.
    pub fn is_empty(&self) -> bool {
        self.appeared.is_empty() && self.vanished.is_empty() && self.changed.is_empty()
    }
}

impl TableCache {
    /// An empty cache. Lists of some providers lag behind their mutations; a change less than
    /// `settle` before a list overrides the list.
    pub fn new(settle: Duration) -> Self {
        Self {
            settle,
            ..Self::default()
        }
    }

    /// Starts with the routes that an earlier process recorded as ours.
    #[must_use]
    pub fn with_record(mut self, record: impl IntoIterator<Item = (IpNet, NextHop)>) -> Self {
        self.record.extend(record);
        self
    }

    /// The cached routes.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// Time at which the last list was requested, if any.
    pub fn listed_at(&self) -> Option<Moment> {
        self.listed_at
    }

    /// The routes owned by this cluster, to be kept for the next process.
    pub fn record(&self) -> impl Iterator<Item = &(IpNet, NextHop)> {
        self.record.iter()
    }

    /// True if the destination must not be changed before the table is read.
    pub fn is_doubtful(&self, destination: &Cidr) -> bool {
        self.doubtful.contains_key(destination)
    }

    /// True if any destination is doubtful, so that the table has to be read soon.
    pub fn has_doubts(&self) -> bool {
        !self.doubtful.is_empty()
    }

    /// A mutation may have happened or not. If it did, the route is ours; the next list shows it.
    pub fn doubt(&mut self, step: &Step, now: Moment) {
        self.record.extend(step.wanted().and_then(Wanted::key));
        self.doubtful.insert(step.destination().clone(), now);
    }

    /// A mutation was done.
    pub fn applied(&mut self, step: &Step, now: Moment) {
        if let RouteAction::Replace { old, .. } | RouteAction::Delete { old, .. } = &step.action {
            self.forget(old);
        }
        if let Some(wanted) = step.wanted() {
            let route = wanted.to_route();
            self.remember(&route);
            self.routes.push(route);
        }
        self.touched.insert(step.destination().clone(), now);
        self.doubtful.remove(step.destination());
    }

    fn forget(&mut self, old: &Route) {
        let same =
            |route: &Route| route.destination == old.destination && route.next_hop == old.next_hop;
        self.routes.retain(|route| !same(route));
        if let Some(key) = old.key() {
            self.record.remove(&key);
        }
    }

    fn remember(&mut self, route: &Route) {
        self.record.extend(route.key());
    }

    /// Takes over unmarked routes that lead to live nodes as planned: when the node goes, they are
    /// deleted.
    pub fn adopt(&mut self, kept: &[Route]) {
        let fresh: Vec<_> = kept
            .iter()
            .filter(|route| route.mark == Mark::None)
            .filter_map(Route::key)
            .collect();
        if fresh.is_empty() {
            return;
        }
        self.record.extend(fresh);
        for route in &mut self.routes {
            claim(route, &self.record);
        }
    }

    /// The table was read; the list was requested at `asked`. Destinations with a mutation under
    /// way may be in the list or not, so they stay as cached.
    pub fn listed<'a>(
        &mut self,
        mut listed: Vec<Route>,
        asked: Moment,
        under_way: impl IntoIterator<Item = &'a Cidr>,
    ) -> Drift {
        let settled = asked - self.settle;
        self.touched.retain(|_, at| *at >= settled);
        let mut fresh: BTreeSet<Cidr> = self.touched.keys().cloned().collect();
        fresh.extend(under_way.into_iter().cloned());
        listed.retain(|route| !fresh.contains(&route.destination));
        for route in &mut listed {
            claim(route, &self.record);
        }
        let drift = match self.listed_at {
            Some(_) => self.compare(&listed, &fresh),
            None => Drift::default(),
        };
        self.routes
            .retain(|route| fresh.contains(&route.destination));
        self.routes.extend(listed);
        // A list does not settle what became doubtful while it was read.
        self.doubtful.retain(|_, at| *at > asked);
        let doubtful = &self.doubtful;
        let present: BTreeSet<_> = self.routes.iter().filter_map(Route::key).collect();
        let headless: BTreeSet<_> = self.routes.iter().filter_map(headless).collect();
        self.record.retain(|key| {
            present.contains(key)
                || headless.contains(&key.0)
                || doubtful.contains_key(&Cidr::from(key.0))
        });
        self.listed_at = Some(asked);
        drift
    }

    fn compare(&self, listed: &[Route], fresh: &BTreeSet<Cidr>) -> Drift {
        let mut cached: BTreeMap<&Cidr, Vec<&Route>> = BTreeMap::new();
        for route in &self.routes {
            if !fresh.contains(&route.destination) {
                cached.entry(&route.destination).or_default().push(route);
            }
        }
        let mut drift = Drift::default();
        let mut strange = Vec::new();
        for route in listed {
            let known = cached.entry(&route.destination).or_default();
            match known.iter().position(|known| is_same(known, route)) {
                Some(place) => drop(known.remove(place)),
                None => strange.push(route),
            }
        }
        for route in strange {
            match cached.get_mut(&route.destination).and_then(Vec::pop) {
                Some(old) => drift.changed.push((old.clone(), route.clone())),
                None => drift.appeared.push(route.clone()),
            }
        }
        drift.vanished = cached.into_values().flatten().cloned().collect();
        drift
    }
}

fn claim(route: &mut Route, record: &BTreeSet<(IpNet, NextHop)>) {
    let known = route.key().is_some_and(|key| record.contains(&key));
    let was = || headless(route).is_some_and(|net| record.iter().any(|(known, _)| *known == net));
    if route.mark == Mark::None && (known || was()) {
        route.mark = Mark::Ours;
    }
}

/// The destination of a blackhole without a next hop: such a route is recognised by its destination
/// alone.
fn headless(route: &Route) -> Option<IpNet> {
    let nowhere = route.blackhole && route.next_hop.is_none();
    route.destination.net().ok().filter(|_| nowhere)
}

/// True if both are the same route. A provider that reports next hops need not know node names.
fn is_same(one: &Route, other: &Route) -> bool {
    let target = match (&one.next_hop, &other.next_hop) {
        (Some(one), Some(other)) => one == other,
        _ => one.target == other.target,
    };
    target && one.blackhole == other.blackhole
}
