//! Text of plans, as `weft routes plan` prints them.

use std::fmt;

use super::{
    CreateReason, DeleteReason, LeftReason, Refusal, ReplaceReason, RouteAction, RoutePlan, Step,
    Wanted, WithheldReason,
};

/// A summary, then one line for each step, refusal, withheld step and route left alone.
impl fmt::Display for RoutePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (creates, replaces, deletes) = self.counts();
        write!(
            f,
            "routes: +{creates} ~{replaces} -{deletes} ={}",
            self.kept.len()
        )?;
        for (count, what) in [
            (self.refusals.len(), "refused"),
            (self.withheld.len(), "withheld"),
            (self.left.len(), "left alone"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        writeln!(
            f,
            "{}",
            if self.observe_only {
                " (observing only)"
            } else {
                ""
            }
        )?;
        for step in &self.steps {
            writeln!(f, "{step}")?;
        }
        for refusal in &self.refusals {
            writeln!(f, "! {refusal}")?;
        }
        for withheld in &self.withheld {
            writeln!(f, "? {} [withheld: {}]", withheld.step, withheld.reason)?;
        }
        for left in &self.left {
            writeln!(f, "  {} [left alone: {}]", left.route, left.reason)?;
        }
        let forecast = &self.forecast;
        if let Some(quota) = forecast.quota {
            writeln!(f, "quota: {} of {quota} routes afterwards", forecast.after)?;
        }
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.action {
            RouteAction::Create { new, reason } => write!(f, "+ {new} [{reason}]"),
            RouteAction::Replace { old, new, reason } => write!(f, "~ {new}, was {old} [{reason}]"),
            RouteAction::Delete { old, reason } => write!(f, "- {old} [{reason}]"),
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.destination)?;
        if let Some(next_hop) = &self.next_hop {
            write!(f, " via {next_hop}")?;
        }
        write!(f, " (node {})", self.node)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cidr {
            Some(cidr) => write!(f, "{cidr} (node {}): {}", self.node, self.reason),
            None => write!(f, "node {}: {}", self.node, self.reason),
        }
    }
}

impl fmt::Display for CreateReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "missing",
            Self::AddressesChanged => "addresses changed",
        })
    }
}

impl fmt::Display for ReplaceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Handover => "range moved",
            Self::NextHopChanged => "next hop changed",
            Self::Blackhole => "was a blackhole",
        })
    }
}

impl fmt::Display for DeleteReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NodeGone => "node is gone",
            Self::CidrReleased => "node does not have the range",
            Self::NodeExcluded => "node is excluded",
            Self::Blackhole => "blackhole",
            Self::TargetUnknown => "target unknown",
            Self::Duplicate => "duplicate",
            Self::AddressesChanged => "addresses changed",
        })
    }
}

impl fmt::Display for LeftReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfRange => "outside the cluster's range",
            Self::NotOurs => "not ours",
            Self::Unreadable => "destination is not a CIDR",
            Self::StillClaimed => "claimed by a node that gets no route",
            Self::BlocksUnknown => "blocks of its node are unknown",
        })
    }
}

impl fmt::Display for WithheldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IncompleteNodes => "not all nodes are known",
            Self::TooManyDeletes => {
                "more deletes than --max-deleted-routes-percent allows; pass --force-deletes to override"
            }
        })
    }
}
