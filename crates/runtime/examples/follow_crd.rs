//! An operator that follows its CRD: install the definition and it runs, remove it and it waits.
//!
//! ```text
//! cargo run -p weft-runtime --example follow_crd     # with a kubeconfig in the usual place
//! ```

use std::error::Error;

use kube::{Config, api::DynamicObject};
use serde_json::json;
use weft_runtime::{
    Action, Cluster, Condition, Context, Controller, Kind, Manager, Mapper, ObjectKey, Predicate,
    ReconcileError, WatchOptions, WatchSpec, connect, reconcile_with, set_condition,
    shutdown_signal,
};

/// The kind it works on. Nothing of it need exist when the program starts.
fn widgets() -> Kind {
    Kind::new("example.com", "v1", "widgets", "Widget")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let config = Config::infer().await?;
    let cluster = Cluster::new("local", connect(&config, None)?);
    let manager = Manager::builder("follow-crd", cluster.clone()).build()?;
    let options =
        WatchOptions::default().predicate(Predicate::<DynamicObject>::generation_changed());
    let controller: Controller<ObjectKey> = Controller::builder("widgets", &cluster)
        .watches_with(widgets(), WatchSpec::all(), Mapper::own_key(), options)
        .requires_kind(widgets())
        .metrics(manager.metrics())
        .build(reconcile_with(reconcile));
    manager.add(&controller)?;
    manager.run(shutdown_signal()?).await?;
    Ok(())
}

async fn reconcile(context: Context<ObjectKey>) -> Result<Action, ReconcileError> {
    let Some(widget) = context.object::<DynamicObject>()? else {
        tracing::info!("gone");
        return Ok(Action::await_change());
    };
    let size = widget
        .data
        .pointer("/spec/size")
        .cloned()
        .unwrap_or(json!(1));
    tracing::info!(%size, reasons = %context.reasons(), "reconciling");
    let condition = Condition {
        kind: "Ready".into(),
        status: Some(true),
        reason: "Reconciled".into(),
        message: format!("size {size} is in place"),
        observed_generation: widget.metadata.generation,
    };
    set_condition(
        context.client(),
        &widgets(),
        context.key(),
        "follow-crd",
        &condition,
    )
    .await?;
    Ok(Action::await_change())
}
