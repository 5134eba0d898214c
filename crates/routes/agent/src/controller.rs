//! The route controller as a machine of `weft-runtime`: its watches, start, stop and leader election.

use std::sync::Arc;

use kube::Client;
use weft_providers::{Capabilities, SharedProvider};
use weft_runtime::{Cluster, ControllerHandle, MachineBuilder, Metrics, WatchOptions, WatchSpec};

use crate::{
    RouteEvents, RoutesMetrics, RoutesSettings, StatusBoard,
    blocks::{NodeBlocks, network_kind},
    machine::{Event, RouteMachine},
    record::RecordStore,
    settings::Mode,
    views::RouteNode,
};

/// Everything that a route controller needs.
pub struct RoutesParts {
    /// The cluster whose nodes are routed to.
    pub cluster: Cluster,
    /// The route table.
    pub provider: SharedProvider,
    /// The operator's settings.
    pub settings: RoutesSettings,
    /// Namespace of the ConfigMap that records our routes; `None` where routes carry marks.
    pub record_namespace: Option<String>,
    /// Name of this node in node mode, where its own kernel table is managed.
    pub own_node: Option<String>,
    /// Metrics to update.
    pub metrics: RoutesMetrics,
    /// Publisher of events.
    pub events: RouteEvents,
    /// Status to update, for `/debug/routes`.
    pub board: StatusBoard,
}

pub(super) struct Parts {
    pub(super) client: Client,
    pub(super) provider: SharedProvider,
    pub(super) capabilities: Capabilities,
    pub(super) settings: RoutesSettings,
    pub(super) record: Option<RecordStore>,
    pub(super) own_node: Option<String>,
    pub(super) metrics: RoutesMetrics,
    pub(super) events: RouteEvents,
    pub(super) board: StatusBoard,
}

/// Upstream's name of the controller; its work queue is called `Routes`.
pub const NAME: &str = "route";

/// Builds the controller, stopped. It needs the lease, except in node mode and in observe mode.
pub fn controller(parts: RoutesParts, metrics: Option<&Metrics>) -> ControllerHandle {
    let capabilities = parts.provider.capabilities();
    let per_node = parts.own_node.is_some() || parts.settings.observe;
    parts.board.change(|status| {
        parts.provider.name().clone_into(&mut status.provider);
        let mode = match parts.settings.mode {
            Mode::Watch => "watch",
            Mode::Poll(_) => "poll",
        };
        mode.clone_into(&mut status.mode);
        status.observing = parts.settings.observe;
    });
    let client = parts.cluster.client().clone();
    // In observe mode the record is read and never written.
    let record = parts.record_namespace.as_deref().map(|namespace| {
        let cluster = &parts.settings.cluster_name;
        RecordStore::new(&client, namespace, parts.provider.name(), cluster)
    });
    let mut builder = MachineBuilder::new(NAME, &parts.cluster)
        .queue_name("Routes")
        .watches::<RouteNode>(WatchSpec::all(), Event::Node);
    if let Some(objects) = &parts.settings.blocks {
        // The controller does not wait for blocks: without their kind, pod CIDRs are routed.
        let spec = WatchSpec::all().namespace(&objects.namespace);
        let options = WatchOptions::<NodeBlocks>::default().optional();
        builder = builder.watches_with(network_kind(objects), spec, Event::Blocks, options);
    }
    if !per_node {
        builder = builder.leader_only();
    }
    if let Some(metrics) = metrics {
        builder = builder.metrics(metrics);
    }
    let board = parts.board.clone();
    let shared = Arc::new(Parts {
        client,
        provider: parts.provider,
        capabilities,
        settings: parts.settings,
        record,
        own_node: parts.own_node,
        metrics: parts.metrics,
        events: parts.events,
        board: parts.board,
    });
    let controller = builder.build(move |_| RouteMachine::begin(shared.clone()));
    board.follow(controller.state());
    controller
}
