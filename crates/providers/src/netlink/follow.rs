//! Tells when the table has to be read again.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use weft_host::routing::{Change, Event, Events};

use super::NetlinkSettings;

/// How long it has to be quiet before somebody is told: changes come in bursts.
const QUIET: Duration = Duration::from_millis(200);
/// How long a burst may last: a link that never rests must not keep its routes from repair.
const LONGEST: Duration = Duration::from_secs(1);

/// Sorts events into those that may have cost us a route, or gave way to one, and all others.
#[derive(Debug)]
pub(super) struct Follower {
    settings: NetlinkSettings,
    /// What we wrote ourselves is no news.
    own_port: u32,
    /// Whether packets pass a link. Links tell of themselves for many reasons.
    links: HashMap<u32, bool>,
    changed: Arc<Notify>,
}

impl Follower {
    pub(super) fn new(settings: &NetlinkSettings, own_port: u32, changed: Arc<Notify>) -> Self {
        Self {
            settings: settings.clone(),
            own_port,
            links: HashMap::new(),
            changed,
        }
    }

    /// Follows events until their connection breaks; after that the table is read by the clock
    /// only.
    pub(super) async fn follow(mut self, mut events: Events) {
        while let Some(event) = events.next().await {
            if self.matters(&event) {
                let lost = self.rest(&mut events).await;
                self.changed.notify_one();
                if lost {
                    return;
                }
            }
        }
        self.changed.notify_one();
    }

    /// Waits for the end of a burst. True if the connection broke.
    async fn rest(&mut self, events: &mut Events) -> bool {
        let begun = Instant::now();
        let mut until = begun + QUIET;
        loop {
            tokio::select! {
                () = sleep_until(until) => return false,
                event = events.next() => match event {
                    None => return true,
                    Some(event) if self.matters(&event) => {
                        until = (Instant::now() + QUIET).min(begun + LONGEST);
                    }
                    Some(_) => {}
                },
            }
        }
    }

    fn matters(&mut self, event: &Event) -> bool {
        match &event.change {
            Change::Link { interface, up } => self.links.insert(*interface, *up) != Some(*up),
            Change::LinkGone { interface } => {
                self.links.remove(interface);
                true
            }
            Change::Address(_) => true,
            // What was known of links may be wrong.
            Change::Lost => {
                self.links.clear();
                true
            }
            Change::RouteWritten(route) | Change::RouteDeleted(route) => {
                event.port != self.own_port
                    && route.table == self.settings.table
                    && (route.protocol == self.settings.protocol
                        || self.settings.covers(&route.destination))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_host::routing::{KernelRoute, RouteKind};

    use super::*;

    const OWN: u32 = 77;

    fn follower() -> Follower {
        let settings = NetlinkSettings::new(["10.244.0.0/16".parse().unwrap()]);
        Follower::new(&settings, OWN, Arc::default())
    }

    fn route(destination: &str, protocol: u8) -> KernelRoute {
        KernelRoute {
            destination: destination.parse().unwrap(),
            table: 254,
            protocol,
            metric: 201,
            type_of_service: 0,
            kind: RouteKind::Unicast,
            hops: Vec::new(),
        }
    }

    #[test]
    fn a_link_matters_when_packets_begin_or_cease_to_pass() {
        let mut follower = follower();
        let mut told = |interface, up| {
            let change = Change::Link { interface, up };
            follower.matters(&Event { change, port: 0 })
        };
        assert!(told(2, true), "nothing was known of it");
        assert!(!told(2, true));
        assert!(told(3, true));
        assert!(told(2, false));
        assert!(!told(2, false));
        assert!(told(2, true));
    }

    #[test]
    fn our_own_writes_other_tables_and_other_ranges_are_no_news() {
        let mut follower = follower();
        let mut told = |change, port| follower.matters(&Event { change, port });
        let ours = route("10.244.1.0/24", 201);
        assert!(!told(Change::RouteDeleted(ours.clone()), OWN));
        assert!(!told(Change::RouteWritten(ours.clone()), OWN));
        assert!(told(Change::RouteDeleted(ours.clone()), 0));
        assert!(told(Change::RouteWritten(route("10.244.1.0/24", 4)), 9));
        assert!(!told(Change::RouteWritten(route("192.0.2.0/24", 4)), 9));
        let elsewhere = KernelRoute { table: 9, ..ours };
        assert!(!told(Change::RouteDeleted(elsewhere), 9));
    }
}
