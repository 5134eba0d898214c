//! Conntrack limits: table size and timeouts.
//!
//! `ConntrackLimits::writes` decides from the wanted and the present values; `apply` reads and
//! writes. The rules are those of kube-proxy 1.36 (pkg/proxy/conntrack/sysctls.go), except that a
//! sysctl which cannot be written here is reported and not fatal.

use std::time::Duration;

use crate::sysctl::{Setting, SettingError, Settings};

/// Upper bound of the value scaled by processors: beyond it, machines with many cores would waste
/// memory.
const HIGHEST_SCALED: u64 = 1_048_576;
/// Average number of connections per slot of the hash table, at most.
const CONNECTIONS_PER_SLOT: u64 = 4;

const MAX: Setting<'_> = Setting::Sysctl("net/netfilter/nf_conntrack_max");
const ESTABLISHED: Setting<'_> =
    Setting::Sysctl("net/netfilter/nf_conntrack_tcp_timeout_established");
const CLOSE_WAIT: Setting<'_> =
    Setting::Sysctl("net/netfilter/nf_conntrack_tcp_timeout_close_wait");
const BE_LIBERAL: Setting<'_> = Setting::Sysctl("net/netfilter/nf_conntrack_tcp_be_liberal");
const UDP: Setting<'_> = Setting::Sysctl("net/netfilter/nf_conntrack_udp_timeout");
const UDP_STREAM: Setting<'_> = Setting::Sysctl("net/netfilter/nf_conntrack_udp_timeout_stream");
const HASH_SIZE: Setting<'_> = Setting::ModuleParameter {
    module: "nf_conntrack",
    parameter: "hashsize",
};

/// Wanted limits, kube-proxy's `conntrack` section. Zero leaves the system's value alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConntrackLimits {
    /// Connections per processor.
    pub max_per_core: u64,
    /// Lower bound of the number of connections; no effect without `max_per_core`.
    pub min: u64,
    /// Timeout of an idle established TCP connection.
    pub tcp_established_timeout: Duration,
    /// Timeout of a TCP connection in CLOSE_WAIT.
    pub tcp_close_wait_timeout: Duration,
    /// Timeout of a UDP flow without a reply.
    pub udp_timeout: Duration,
    /// Timeout of a UDP flow with a reply.
    pub udp_stream_timeout: Duration,
    /// Do not mark packets outside of the TCP window invalid. `false` leaves the system's value.
    pub tcp_be_liberal: bool,
}

/// A setting and its new value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The sysctl or module parameter.
    pub setting: Setting<'static>,
    /// New value.
    pub value: u64,
}

impl ConntrackLimits {
    /// The settings to write, in order; `read` returns the present values.
    ///
    /// A setting that has its value already is not written: in a container that may not write, that
    /// would be a needless error.
    pub fn writes(
        &self,
        processors: u64,
        observed: impl Fn(Setting<'_>) -> Option<u64>,
    ) -> Vec<Write> {
        let max = self.max(processors);
        let seconds = |timeout: Duration| timeout.as_secs();
        let exact = [
            (MAX, max),
            (ESTABLISHED, seconds(self.tcp_established_timeout)),
            (CLOSE_WAIT, seconds(self.tcp_close_wait_timeout)),
            (BE_LIBERAL, u64::from(self.tcp_be_liberal)),
            (UDP, seconds(self.udp_timeout)),
            (UDP_STREAM, seconds(self.udp_stream_timeout)),
        ];
        let mut writes: Vec<Write> = exact
            .into_iter()
            .filter(|(setting, value)| *value > 0 && observed(*setting) != Some(*value))
            .map(|(setting, value)| Write { setting, value })
            .collect();
        // Only raised: a larger hash table costs memory, a smaller one costs time for every packet.
        let slots = max / CONNECTIONS_PER_SLOT;
        if slots > 0 && observed(HASH_SIZE).is_none_or(|size| size < slots) {
            writes.push(Write {
                setting: HASH_SIZE,
                value: slots,
            });
        }
        writes
    }

    fn max(&self, processors: u64) -> u64 {
        if self.max_per_core == 0 {
            return 0;
        }
        let scaled = self.max_per_core.saturating_mul(processors);
        if scaled > HIGHEST_SCALED {
            HIGHEST_SCALED
        } else {
            scaled.max(self.min)
        }
    }

    /// Reads, decides and writes. Returns the settings that could not be written because they are
    /// read-only here; any other failure ends it.
    pub fn apply(
        &self,
        settings: &Settings,
        processors: u64,
    ) -> Result<Vec<SettingError>, SettingError> {
        let observed = |setting: Setting<'_>| settings.read_number(setting).ok();
        let mut read_only = Vec::new();
        for Write { setting, value } in self.writes(processors, observed) {
            match settings.write(setting, &value.to_string()) {
                Ok(()) => tracing::info!(%setting, value, "sysctl changed"),
                Err(error) if error.is_read_only() => {
                    tracing::warn!(%setting, value, %error, "cannot change sysctl");
                    read_only.push(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(read_only)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// kube-proxy's defaults.
    const DEFAULTS: ConntrackLimits = ConntrackLimits {
        max_per_core: 32_768,
        min: 131_072,
        tcp_established_timeout: Duration::from_secs(86_400),
        tcp_close_wait_timeout: Duration::from_secs(3_600),
        udp_timeout: Duration::ZERO,
        udp_stream_timeout: Duration::ZERO,
        tcp_be_liberal: false,
    };

    fn texts(writes: &[Write]) -> Vec<String> {
        let name = |write: &Write| {
            write
                .setting
                .to_string()
                .rsplit('/')
                .next()
                .unwrap()
                .to_owned()
        };
        writes
            .iter()
            .map(|write| format!("{}={}", name(write), write.value))
            .collect()
    }

    #[test]
    fn the_number_of_connections_follows_the_processors_within_bounds() {
        let cases = [
            ("min is the least", (32_768, 131_072, 2), 131_072),
            ("scaled", (32_768, 131_072, 8), 262_144),
            ("scaled is capped", (32_768, 131_072, 64), 1_048_576),
            ("min alone changes nothing", (0, 131_072, 8), 0),
            (
                "a high min is not capped",
                (32_768, 2_000_000, 8),
                2_000_000,
            ),
            (
                "unless scaled is beyond the cap",
                (32_768, 2_000_000, 64),
                1_048_576,
            ),
            ("no overflow", (u64::MAX, 0, 8), 1_048_576),
        ];
        for (name, (max_per_core, min, processors), expected) in cases {
            let limits = ConntrackLimits {
                max_per_core,
                min,
                ..DEFAULTS
            };
            assert_eq!(limits.max(processors), expected, "{name}");
        }
    }

    #[test]
    fn everything_that_is_wanted_and_different_is_written() {
        assert_eq!(
            texts(&DEFAULTS.writes(8, |_| None)),
            [
                "nf_conntrack_max=262144",
                "nf_conntrack_tcp_timeout_established=86400",
                "nf_conntrack_tcp_timeout_close_wait=3600",
                "hashsize=65536",
            ]
        );
        let all = ConntrackLimits {
            udp_timeout: Duration::from_secs(30),
            udp_stream_timeout: Duration::from_millis(120_900),
            tcp_be_liberal: true,
            ..ConntrackLimits::default()
        };
        assert_eq!(
            texts(&all.writes(8, |_| None)),
            [
                "nf_conntrack_tcp_be_liberal=1",
                "nf_conntrack_udp_timeout=30",
                "nf_conntrack_udp_timeout_stream=120",
            ]
        );
    }

    #[test]
    fn what_is_right_already_is_left_alone_and_a_larger_hash_table_stays() {
        let observed = |setting: Setting<'_>| match setting {
            MAX => Some(262_144),
            ESTABLISHED => Some(432_000),
            HASH_SIZE => Some(65_537),
            _ => Some(3_600),
        };
        assert_eq!(
            texts(&DEFAULTS.writes(8, observed)),
            ["nf_conntrack_tcp_timeout_established=86400"]
        );
        assert_eq!(ConntrackLimits::default().writes(8, |_| None), []);
    }
}
