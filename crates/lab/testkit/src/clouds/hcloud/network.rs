//! The network of the Hetzner Cloud double: its routes, and the actions that change them.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use ipnet::Ipv4Net;
use serde_json::{Value, json};

use super::{HcloudOptions, HcloudRoute, HcloudServer, paging::Page, refusal::Refusal};
use crate::clouds::{fault::FaultKind, server::ApiCall};

/// A network, its routes, and the actions on it.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) routes: Vec<HcloudRoute>,
    ip_range: Ipv4Net,
    subnet: Ipv4Net,
    quota: usize,
    action_time: Duration,
    actions: BTreeMap<u64, Action>,
}

/// A change of the routes.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Add(HcloudRoute),
    Delete(HcloudRoute),
}

#[derive(Debug)]
struct Action {
    change: Change,
    ends: Instant,
    ended: bool,
    fails: Option<String>,
}

impl Network {
    pub(super) fn new(options: &HcloudOptions) -> Self {
        Self {
            id: options.network,
            name: options.network_name.clone(),
            routes: Vec::new(),
            ip_range: options.ip_range,
            subnet: options.subnet,
            quota: options.quota,
            action_time: options.latency.action,
            actions: BTreeMap::new(),
        }
    }

    pub(super) fn check_id(&self, id: &str) -> Result<(), Refusal> {
        let same = id == self.id.to_string();
        same.then_some(()).ok_or_else(|| Refusal::code("not_found"))
    }

    /// Completes the actions that are due.
    pub(super) fn settle(&mut self, now: Instant) {
        let due = self.actions.values_mut();
        for action in due.filter(|action| !action.ended && action.ends <= now) {
            action.ended = true;
            match &action.change {
                _ if action.fails.is_some() => {}
                Change::Add(route) => self.routes.push(route.clone()),
                Change::Delete(route) => self.routes.retain(|known| known != route),
            }
        }
    }

    /// Validates a change and starts its action, which locks the network until it ends.
    pub(super) fn begin(
        &mut self,
        change: Change,
        fault: Option<&FaultKind>,
        now: Instant,
    ) -> Result<Value, Refusal> {
        if self.actions.values().any(|action| !action.ended) {
            return Err(Refusal::code("locked"));
        }
        match &change {
            Change::Add(route) => self.check_new(route)?,
            Change::Delete(route) if self.routes.contains(route) => {}
            Change::Delete(_) => return Err(Refusal::code("not_found")),
        }
        let id = self.actions.len() as u64 + 1;
        let fails = match fault {
            Some(FaultKind::ActionFails { code }) => Some(code.clone()),
            _ => None,
        };
        let action = Action {
            change,
            ends: now + self.action_time,
            ended: false,
            fails,
        };
        let begun = self.action_json(id, &action);
        self.actions.insert(id, action);
        Ok(begun)
    }

    fn check_new(&self, route: &HcloudRoute) -> Result<(), Refusal> {
        let destination: Ipv4Net = route
            .destination
            .parse()
            .map_err(|_| Refusal::field("destination"))?;
        let gateway: Ipv4Addr = route
            .gateway
            .parse()
            .map_err(|_| Refusal::field("gateway"))?;
        let first = self.ip_range.hosts().next();
        if !self.ip_range.contains(&gateway) || Some(gateway) == first {
            return Err(Refusal::field("gateway"));
        }
        let routed = self.routes.iter();
        let taken = routed.filter_map(|known| known.destination.parse().ok());
        let host_bits = destination != destination.trunc();
        if host_bits
            || taken
                .chain([self.subnet])
                .any(|net| overlap(net, destination))
        {
            return Err(Refusal::field("destination"));
        }
        if self.routes.len() >= self.quota {
            return Err(Refusal::code("resource_limit_exceeded"));
        }
        Ok(())
    }

    /// The actions that a poll names, by `id` parameters or in the path.
    pub(super) fn actions(&self, call: &ApiCall, path: &[&str]) -> Result<Value, Refusal> {
        let json = |id: &str| {
            let id = id.parse().ok()?;
            Some(self.action_json(id, self.actions.get(&id)?))
        };
        if let [_, id] = path {
            let action = json(id).ok_or_else(|| Refusal::code("not_found"))?;
            return Ok(json!({"action": action}));
        }
        let ids = call.query.iter().filter(|(name, _)| name == "id");
        let found = ids.filter_map(|(_, id)| json(id)).collect();
        Ok(Page::of(call, found).to_json("actions"))
    }

    fn action_json(&self, id: u64, action: &Action) -> Value {
        let command = match action.change {
            Change::Add(_) => "add_route",
            Change::Delete(_) => "delete_route",
        };
        let failed = action.fails.as_deref().filter(|_| action.ended);
        let status = match (action.ended, failed) {
            (false, _) => "running",
            (true, Some(_)) => "error",
            (true, None) => "success",
        };
        let error = failed.map(|code| json!({"code": code, "message": "injected fault"}));
        json!({
            "id": id, "command": command, "status": status,
            "progress": if action.ended { 100 } else { 0 },
            "started": "2026-01-01T00:00:00Z",
            "finished": action.ended.then_some("2026-01-01T00:00:01Z"),
            "resources": [{"id": self.id, "type": "network"}], "error": error,
        })
    }

    pub(super) fn to_json(&self, servers: &[HcloudServer]) -> Value {
        let attached = servers.iter().filter(|server| server.ip.is_some());
        let attached: Vec<u64> = attached.map(|server| server.id).collect();
        let subnet = json!({
            "type": "cloud", "ip_range": self.subnet, "network_zone": "eu-central",
            "gateway": self.ip_range.hosts().next(), "vswitch_id": null,
        });
        json!({
            "id": self.id, "name": self.name, "ip_range": self.ip_range, "subnets": [subnet],
            "routes": self.routes, "servers": attached, "load_balancers": [],
            "protection": {"delete": false}, "labels": {}, "created": "2026-01-01T00:00:00Z",
            "expose_routes_to_vswitch": false,
        })
    }
}

fn overlap(one: Ipv4Net, other: Ipv4Net) -> bool {
    one.contains(&other) || other.contains(&one)
}
