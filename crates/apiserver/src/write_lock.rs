//! Locking and threads of write requests: a heavy write delays other writes only.
//!
//! A light write is worked on where it came in: it takes less time than handing it over. A heavy one is
//! worked on by a thread of its own, one at a time, and nothing else is written meanwhile: the store has
//! one writer, and a request that waited for it on a thread that serves connections would stop those too. Work
//! cannot be ended from outside, so the deadline is for the client: it is answered in time, and what was
//! begun goes on. That it ends is for the limits on sizes, steps and costs.
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

/// Bytes from which a body, or the object it changes, makes a write heavy.
const HEAVY: usize = 64 * 1024;

/// How long a write may take, waiting included: upstream's `--request-timeout`.
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

/// Does work that may take a while without holding up what else its thread has to do.
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
        // No timer unless there is something to wait for.
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

/// Whether a write may take more than a moment.
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
