//! Shutdown on SIGTERM and SIGINT.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// A future that resolves at the first SIGTERM or SIGINT.
///
/// The handlers are in place when this returns, so that no signal is missed. They stay in place: a
/// program that wants to end at once on a second signal listens for that itself.
pub fn shutdown_signal() -> io::Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("received SIGTERM"),
            _ = interrupt.recv() => tracing::info!("received SIGINT"),
        }
    })
}
