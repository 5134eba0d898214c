//! Shared informers, workqueue and controllers whose parts can be started, stopped and removed at
//! run time.
//!
//! In the order in which a user meets the concepts: a [`Cluster`] has a [`Cache`] that hands out
//! [`Informer`]s; a [`Controller`] fills its [`Workqueue`] from informers and calls a
//! [`Reconciler`] for each key; a [`Machine`] gets the changes themselves.

mod backoff;
mod cache;
mod client;
mod cluster;
mod conditions;
mod controller;
mod events;
mod exposition;
mod features;
mod informer;
mod kind;
mod kinds;
mod leader;
mod managed_fields;
mod manager;
mod mapping;
mod metadata;
mod metrics;
mod object;
mod predicate;
mod queue;
mod signal;
mod socket;
mod wire;

pub use cache::{Cache, CacheBuilder};
pub use client::{ClientMetrics, connect};
pub use cluster::{AlreadyJoined, Cluster, Clusters};
pub use conditions::{Condition, ConditionError, set_condition};
pub use controller::{
    Action, Context, Controller, ControllerBuilder, ControllerHandle, ControllerInfo,
    ControllerState, DegradedReason, Effects, Failure, Gate, GateState, KubeReconciler, Machine,
    MachineBuilder, MachineScope, NotWatched, PendingReason, Reasons, ReconcileError, Reconciler,
    StopReport, TrackedApi, Unit, WatchId, WatchOptions, reconcile_with,
};
pub use events::{EventLevel, EventNote, EventRecorder};
pub use exposition::{PROMETHEUS_CONTENT_TYPE, prometheus_text};
pub use features::{FeatureGate, FeatureGateError, FeatureGates, Features, Stage, UnknownGates};
pub use informer::{
    Change, Index, Informer, InformerInfo, InformerKey, InformerState, InformerStopped, ListMode,
    Lister, SelectorError, StopReason, Subscription, UndecodableObject, WaitReason, WatchSpec,
};
pub use kind::Kind;
pub use kinds::{KindMonitor, KindState};
pub use leader::{LeaderConfig, LeaderConfigError, LeaderElector, LeaderStatus};
pub use managed_fields::WithoutManagedFields;
pub use manager::{
    Access, Component, ComponentId, ComponentRun, ComponentScope, ControlServer, DuplicateName,
    ExitReport, HealthCheck, HealthLimits, HeapProbe, HeapStatistics, Manager, ManagerBuilder,
    ManagerError, Phase, StatusServer, TlsFiles, Unhealthy, check_host, refuse_other_hosts,
};
pub use mapping::{Mapper, OwnerFilter};
pub use metadata::{Annotations, Labels, Metadata, MetadataOnly, OwnerReference, Skipped};
pub use metrics::Metrics;
pub use object::{Kinded, Object, Owner, Pairs};
pub use predicate::Predicate;
pub(crate) use queue::QueueStatistics;
pub use queue::{
    AddOptions, Bucket, Capped, Exponential, FastSlow, Lease, MaxOf, Priority, QueueKey,
    RateLimiter, WithJitter, Workqueue, WorkqueueBuilder, WorkqueueMetrics,
};
pub use signal::shutdown_signal;
pub use socket::{SocketError, socket_get, socket_post};
pub use weft_model::ObjectKey;
pub use wire::WatchError;
