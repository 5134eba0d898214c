//! Signals of a long-running command.
//!
//! | signal | effect |
//! |---|---|
//! | SIGINT, SIGTERM | stop cleanly; a second one ends the process at once |
//! | SIGUSR1 | log everything from debug up |
//! | SIGUSR2 | log what was configured |

use std::{io, process};

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{exit, logging::LogFilter};

/// Listens from now on; the token is cancelled by the first request to stop.
///
/// The listening task lives as long as the runtime: a signal must not go back to its default
/// effect while the command is still stopping.
pub fn listen(log: LogFilter) -> anyhow::Result<CancellationToken> {
    let signals = Signals::install().context("cannot install signal handlers")?;
    debug!("listening to signals");
    let shutdown = CancellationToken::new();
    tokio::spawn(signals.serve(shutdown.clone(), log));
    Ok(shutdown)
}

/// Runs a process on a runtime of its own. The first request to stop cancels the token it is given.
pub fn serve<F>(log: LogFilter, process: impl FnOnce(CancellationToken) -> F) -> anyhow::Result<()>
where
    F: Future<Output = Result<(), Box<dyn std::error::Error + Send + Sync>>>,
{
    let runtime = tokio::runtime::Runtime::new().context("cannot start the async runtime")?;
    runtime.block_on(async {
        let running = process(listen(log)?).await;
        running.map_err(anyhow::Error::from_boxed)
    })
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    raise: Signal,
    restore: Signal,
}

impl Signals {
    fn install() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            raise: signal(SignalKind::user_defined1())?,
            restore: signal(SignalKind::user_defined2())?,
        })
    }

    async fn serve(mut self, shutdown: CancellationToken, log: LogFilter) {
        loop {
            let name = tokio::select! {
                _ = self.interrupt.recv() => "SIGINT",
                _ = self.terminate.recv() => "SIGTERM",
                _ = self.raise.recv() => { log.raise(); continue }
                _ = self.restore.recv() => { log.restore(); continue }
            };
            if shutdown.is_cancelled() {
                warn!(signal = name, "ending at once");
                process::exit(exit::FORCED);
            }
            info!(signal = name, "stopping");
            shutdown.cancel();
        }
    }
}
