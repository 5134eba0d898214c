//! Runs a manager: until it is stopped, or its only component fails.

use std::path::Path;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use weft_runtime::{ControlServer, Failure, Manager};

/// Runs a manager until `stop`, or until `failed` reports that its only component has failed.
pub async fn run_until(
    manager: &Manager,
    failed: oneshot::Receiver<Failure>,
    stop: CancellationToken,
) -> Result<(), Failure> {
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

/// Adds the control socket to a manager, if a path is given.
pub fn serve_control_socket(manager: &Manager, socket: Option<&Path>) -> Result<(), Failure> {
    if let Some(path) = socket {
        manager.add_component(ControlServer::bind(manager, path)?)?;
    }
    Ok(())
}
