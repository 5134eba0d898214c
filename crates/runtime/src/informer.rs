//! Shared informers: one LIST/WATCH loop, one store, any number of consumers.
//!
//! Start reading at [`Cache`](crate::Cache), which hands out [`Informer`] handles; `reflector` is
//! the loop that fills the store; `hub` is the store with its subscribers.

mod change;
mod handle;
mod hub;
mod index;
mod lister;
mod pending;
mod reflector;
mod spec;
mod state;
mod subscription;

pub use change::Change;
pub(crate) use handle::{AnyInformer, Guard, Shared};
pub use handle::{Informer, InformerInfo};
pub use index::Index;
pub use lister::Lister;
pub(crate) use reflector::{Reflector, ServerTraits, WatchErrorHook};
pub use spec::{InformerKey, ListMode, SelectorError, WatchSpec};
pub use state::{InformerState, InformerStopped, StopReason, UndecodableObject, WaitReason};
pub use subscription::Subscription;
