//! Adapter for reconcilers written for `kube::runtime::Controller`.

use std::{fmt, sync::Arc};

use weft_model::ObjectKey;

use super::{Action, Context, ReconcileError, Reconciler};
use crate::Object;

/// A reconciler in the shape that `kube::runtime::Controller` takes: a function of the object and a
/// shared context. Keys whose object is gone are not passed on, as there.
///
/// Unlike kube's `error_policy`, the back-off of a failing key grows with its number of failures.
pub struct KubeReconciler<K, C, F> {
    reconcile: F,
    context: Arc<C>,
    _kind: std::marker::PhantomData<fn(K)>,
}

impl<K, C, F> KubeReconciler<K, C, F> {
    /// Wraps a function.
    pub fn new(reconcile: F, context: Arc<C>) -> Self {
        Self {
            reconcile,
            context,
            _kind: std::marker::PhantomData,
        }
    }
}

impl<K, C, F, Fut, E> Reconciler<ObjectKey> for KubeReconciler<K, C, F>
where
    K: Object,
    C: Send + Sync + 'static,
    F: Fn(Arc<K>, Arc<C>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Action, E>> + Send + 'static,
    E: std::error::Error + Send + Sync + fmt::Debug + 'static,
{
    async fn reconcile(&self, context: Context<ObjectKey>) -> Result<Action, ReconcileError> {
        let Some(object) = context.object::<K>()? else {
            return Ok(Action::await_change());
        };
        Ok((self.reconcile)(object, self.context.clone()).await?)
    }
}
