//! Locking and threads of write requests: a heavy write delays only other writes.
//!
//! A light write runs on the thread that received it, which is cheaper than a handover. A heavy one runs on
//! a blocking thread, one at a time, and excludes all other writes: the store has one writer, and a request
//! that waited for it on a thread that serves connections would block those too. Work cannot be cancelled,
//! so the deadline only bounds the answer to the client; the limits on sizes, steps and costs bound the work.
//!
//! On a current-thread runtime, as in tests with paused time, every write runs inline.

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::{OwnedRwLockWriteGuard, RwLock, RwLockReadGuard},
    time::{Instant, timeout_at},
};

use crate::{
    api::{Api, Context},
    handler,
    reply::Reply,
    request::Verb,
    status::{ApiError, Outcome},
    store::object_key,
};

/// Size in bytes above which a body, or the object it changes, makes a write heavy.
const HEAVY: usize = 64 * 1024;

/// Limit of a write, including waiting: upstream's `--request-timeout`.
const DEADLINE: Duration = Duration::from_secs(60);

/// Shared by light writes, exclusive for a heavy one.
#[derive(Debug, Default)]
pub(crate) struct WriteLock(Arc<RwLock<()>>);

impl WriteLock {
    pub(crate) async fn shared(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read().await
    }

    async fn exclusive(&self) -> OwnedRwLockWriteGuard<()> {
        self.0.clone().write_owned().await
    }
}

/// Runs blocking work so that the other tasks of this runtime thread can move to another.
pub(crate) fn off_worker<T>(work: impl FnOnce() -> T) -> T {
    if has_threads() {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}

fn has_threads() -> bool {
    Handle::try_current()
        .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
}

/// Handles a write request under the lock.
pub(crate) async fn write(api: &Arc<Api>, context: &Arc<Context>) -> Outcome<Reply> {
    let deadline = Instant::now() + DEADLINE;
    if !has_threads() {
        return handler::handle(api, context).await;
    }
    if !is_heavy(api, context) {
        // Without contention no timer is created.
        let _guard = match api.write_lock.0.try_read() {
            Ok(guard) => guard,
            Err(_) => timeout_at(deadline, api.write_lock.shared())
                .await
                .map_err(|_| ApiError::took_too_long())?,
        };
        return handler::handle(api, context).await;
    }
    let guard = timeout_at(deadline, api.write_lock.exclusive())
        .await
        .map_err(|_| ApiError::took_too_long())?;
    let (runtime, api, context) = (Handle::current(), api.clone(), context.clone());
    let work = tokio::task::spawn_blocking(move || {
        let outcome = runtime.block_on(handler::handle(&api, &context));
        drop(guard);
        outcome
    });
    match timeout_at(deadline, work).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => {
            tracing::error!(%error, "request handler panicked");
            Err(ApiError::internal("request handler failed"))
        }
        Err(_) => Err(ApiError::took_too_long()),
    }
}

/// True when a write may take long enough to need a blocking thread.
fn is_heavy(api: &Api, context: &Context) -> bool {
    let info = &context.info;
    if context.body.len() > HEAVY || info.verb == Verb::DeleteCollection {
        return true;
    }
    let served = api.registry.served();
    let Some(kind) = served.find(&info.group, &info.version, &info.resource) else {
        return false;
    };
    let has_rules = kind
        .custom
        .as_ref()
        .is_some_and(|custom| custom.has_rules());
    has_rules
        || crate::admission::is_active(api)
        || (!info.name.is_empty()
            && api
                .store
                .get(&kind.storage, &object_key(&info.namespace, &info.name))
                .is_some_and(|stored| stored.bytes.len() > HEAVY))
}
