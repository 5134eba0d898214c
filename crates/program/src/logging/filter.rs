//! The log filter of a running program, changed by signals.

use tracing::info;
use tracing_subscriber::{EnvFilter, Registry, reload};

use crate::logging::LogDirectives;

/// A handle on the log filter of the running program.
#[derive(Debug, Clone)]
pub struct LogFilter {
    configured: LogDirectives,
    handle: reload::Handle<EnvFilter, Registry>,
}

impl LogFilter {
    /// A layer that filters, and the handle to it.
    pub fn new(configured: LogDirectives) -> (reload::Layer<EnvFilter, Registry>, Self) {
        let (layer, handle) = reload::Layer::new(configured.filter());
        (layer, Self { configured, handle })
    }

    /// Logs what these directives say from now on.
    pub fn set(&self, directives: &LogDirectives) {
        // Fails only when the subscriber is gone, and with it everything that could be logged.
        if self.handle.reload(directives.filter()).is_ok() {
            info!(filter = %directives, "log filter changed");
        }
    }

    /// Logs everything from debug up.
    pub fn raise(&self) {
        self.set(&LogDirectives::debug());
    }

    /// Goes back to what was configured.
    pub fn restore(&self) {
        self.set(&self.configured.clone());
    }
}

#[cfg(test)]
mod tests {
    use tracing::{Level, enabled, subscriber::with_default};
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn the_filter_changes_while_the_program_runs_and_can_be_restored() {
        let (layer, filter) = LogFilter::new("warn".parse().unwrap());
        with_default(tracing_subscriber::registry().with(layer), || {
            let enabled = || (enabled!(Level::INFO), enabled!(Level::DEBUG));
            assert_eq!(enabled(), (false, false));
            filter.raise();
            assert_eq!(enabled(), (true, true));
            filter.set(&"info".parse().unwrap());
            assert_eq!(enabled(), (true, false));
            filter.restore();
            assert_eq!(enabled(), (false, false));
        });
    }
}
