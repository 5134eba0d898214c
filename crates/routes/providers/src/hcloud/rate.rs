//! Rate limit of the Hetzner API, from its response headers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use weft_routes::{LONGEST_PAUSE, RateLimit};

/// The rate limit in the headers; `None` if one of them is missing or invalid.
pub(super) fn rate_limit(headers: &HeaderMap, now: SystemTime) -> Option<RateLimit> {
    let number = |name| headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
    let reset = Duration::from_secs(number("ratelimit-reset")?);
    let passed = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(RateLimit {
        limit: u32::try_from(number("ratelimit-limit")?).ok()?,
        remaining: u32::try_from(number("ratelimit-remaining")?).ok()?,
        // The bucket is full within an hour, so a later reset is an error of the server or of a
        // clock.
        reset_after: reset.saturating_sub(passed).min(LONGEST_PAUSE),
    })
}

/// Time until the next call fits, not until the bucket is full: it is refilled continuously.
pub(super) fn next_call_after(rate: RateLimit) -> Duration {
    let missing = rate.limit.saturating_sub(rate.remaining).max(1);
    (rate.reset_after / missing).max(Duration::from_secs(1))
}

/// Time until `calls` calls fit: as many as a list took before it was broken off.
pub(super) fn calls_after(rate: RateLimit, calls: usize) -> Duration {
    let calls = u32::try_from(calls).unwrap_or(u32::MAX);
    next_call_after(rate)
        .saturating_mul(calls)
        .min(LONGEST_PAUSE)
}

/// True if at most a tenth of the calls is left, which is reserved for changes: a node waits for
/// each of them.
pub(super) fn is_low(rate: RateLimit) -> bool {
    rate.remaining <= rate.limit / 10
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            let name = http::HeaderName::from_static(name);
            (name, http::HeaderValue::from_static(value))
        });
        pairs.collect()
    }

    #[test]
    fn the_reset_is_a_moment_and_becomes_a_duration() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000);
        let all = [
            ("ratelimit-limit", "3600"),
            ("ratelimit-remaining", "3400"),
            ("ratelimit-reset", "1200"),
        ];
        let expected = RateLimit {
            limit: 3600,
            remaining: 3400,
            reset_after: Duration::from_secs(200),
        };
        assert_eq!(rate_limit(&headers(&all), now), Some(expected));
        assert_eq!(rate_limit(&headers(&all[..2]), now), None);
        let late = now + Duration::from_secs(900);
        let passed = rate_limit(&headers(&all), late).unwrap();
        assert_eq!(passed.reset_after, Duration::ZERO);
    }

    #[test]
    fn a_reset_beyond_all_time_is_an_hour_away_at_most() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000);
        for reset in ["18446744073709551615", "9223372036854775808", "100000"] {
            let all = [
                ("ratelimit-limit", "4294967295"),
                ("ratelimit-remaining", "0"),
                ("ratelimit-reset", reset),
            ];
            let rate = rate_limit(&headers(&all), now).unwrap();
            assert_eq!(rate.reset_after, LONGEST_PAUSE, "{reset}");
            assert!(next_call_after(rate) <= LONGEST_PAUSE);
            assert_eq!(calls_after(rate, usize::MAX), LONGEST_PAUSE);
        }
        let odd = ["-1", "1e9", "18446744073709551616", "", "soon"];
        for reset in odd {
            let all = [
                ("ratelimit-limit", "3600"),
                ("ratelimit-remaining", "0"),
                ("ratelimit-reset", reset),
            ];
            assert_eq!(rate_limit(&headers(&all), now), None, "{reset}");
        }
    }

    #[test]
    fn after_a_refusal_one_waits_for_one_call_and_not_for_all() {
        let empty = RateLimit {
            limit: 600,
            remaining: 0,
            reset_after: Duration::from_secs(3600),
        };
        assert_eq!(next_call_after(empty), Duration::from_secs(6));
    }
}
