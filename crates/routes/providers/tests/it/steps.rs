//! Steps as the controller plans them.

use weft_routes::{
    Cidr, CreateReason, DeleteReason, Mark, NextHop, ReplaceReason, Route, RouteAction,
    RouteTarget, Step, Wanted,
};

pub(crate) fn via(address: &str) -> NextHop {
    NextHop::Address(address.parse().unwrap())
}

pub(crate) fn to(instance: &str) -> NextHop {
    NextHop::Instance(instance.into())
}

pub(crate) fn wanted(destination: &str, next_hop: NextHop) -> Wanted {
    Wanted {
        destination: Cidr::parse(destination),
        node: "node-1".into(),
        uid: "uid-1".into(),
        next_hop: Some(next_hop),
        addresses: Vec::new(),
        provider_id: None,
    }
}

pub(crate) fn route(destination: &str, next_hop: NextHop) -> Route {
    Route {
        destination: Cidr::parse(destination),
        target: RouteTarget::Unknown,
        next_hop: Some(next_hop),
        target_addresses: None,
        blackhole: false,
        mark: Mark::None,
        id: None,
    }
}

pub(crate) fn create(destination: &str, next_hop: NextHop) -> Step {
    let action = RouteAction::Create {
        new: wanted(destination, next_hop),
        reason: CreateReason::Missing,
    };
    Step { action }
}

pub(crate) fn delete(destination: &str, next_hop: NextHop) -> Step {
    let action = RouteAction::Delete {
        old: route(destination, next_hop),
        reason: DeleteReason::NodeGone,
    };
    Step { action }
}

pub(crate) fn replace(destination: &str, old: NextHop, new: NextHop) -> Step {
    let action = RouteAction::Replace {
        old: route(destination, old),
        new: wanted(destination, new),
        reason: ReplaceReason::Handover,
    };
    Step { action }
}
