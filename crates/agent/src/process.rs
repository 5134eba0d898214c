//! What processes have in common.

use std::{error::Error, path::Path};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use weft_runtime::{ControlServer, Failure, Manager};

type AnyError = Box<dyn Error + Send + Sync>;

/// Runs a manager until it is told to stop or the one thing that it is for has failed.
pub(crate) async fn run_with(
    manager: &Manager,
    failed: oneshot::Receiver<Failure>,
    stop: CancellationToken,
) -> Result<(), AnyError> {
    let mut failure = None;
    let end = async {
        tokio::select! {
            () = stop.cancelled() => {}
            Ok(error) = failed => failure = Some(error),
        }
    };
    manager.run(end).await?;
    failure.map_or(Ok(()), Err)
}

/// Takes orders on a socket, if there is one.
pub(crate) fn take_orders(manager: &Manager, socket: Option<&Path>) -> Result<(), AnyError> {
    if let Some(path) = socket {
        manager.add_component(ControlServer::bind(manager, path)?)?;
    }
    Ok(())
}
