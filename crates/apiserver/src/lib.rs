//! Kubernetes API server in one process, for tests, playgrounds and simulation.
//!
//! It answers as kube-apiserver 1.36 does (`docs/apiserver.md` lists what is and is not there), keeps
//! its state in memory, optionally backed by a data directory, and injects faults on request. It is
//! not for production clusters.
//!
//! Start reading at [`ApiServer`]; the module `api` shows the path of a request.

mod admission;
mod api;
mod apply;
mod auth;
mod bootstrap;
mod cel;
mod clock;
mod controllers;
mod custom;
mod decode;
mod encoding;
mod fault;
mod handler;
mod kind;
mod managed;
mod meta;
mod negotiate;
mod options;
mod patch;
mod persistence;
mod pod_dialer;
mod private_file;
mod query;
mod random;
mod rendering;
mod reply;
mod request;
mod rules;
mod run;
mod schema;
mod selector;
mod server;
mod stats;
mod status;
mod store;
mod transport;
mod view;
mod write_lock;

pub use api::Disconnected;
pub use auth::{
    AuthorizationMode, DEFAULT_ISSUER, SigningKey, SigningKeyError, TokenFileError, User,
};
pub use fault::{Cut, Fault, FaultId, Faults, InjectedWatchError, Matcher, Stall, Times};
pub use persistence::{OnDamage, PersistenceError};
pub use pod_dialer::PodPort;
pub use reply::{Body, BoxError};
pub use request::{RequestInfo, Verb};
pub use run::{RunConfig, RunError, run, start};
pub use server::{ApiServer, Builder};
pub use stats::{RequestRecord, Stats};
pub use transport::{ListenError, Listening, MemoryService};
