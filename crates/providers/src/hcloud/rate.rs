use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use weft_routes::RateLimit;

/// What the headers say about the calls that are left; nothing if one of them is missing.
pub(super) fn rate_limit(headers: &HeaderMap, now: SystemTime) -> Option<RateLimit> {
    let number = |name| headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
    let reset = UNIX_EPOCH + Duration::from_secs(number("ratelimit-reset")?);
    Some(RateLimit {
        limit: u32::try_from(number("ratelimit-limit")?).ok()?,
        remaining: u32::try_from(number("ratelimit-remaining")?).ok()?,
        reset_after: reset.duration_since(now).unwrap_or_default(),
    })
}

/// How long to wait after a refusal: until the next call fits, not until the bucket is full, because
/// it is filled continuously.
pub(super) fn next_call_after(rate: RateLimit) -> Duration {
    let missing = rate.limit.saturating_sub(rate.remaining).max(1);
    (rate.reset_after / missing).max(Duration::from_secs(1))
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
    fn after_a_refusal_one_waits_for_one_call_and_not_for_all() {
        let empty = RateLimit {
            limit: 600,
            remaining: 0,
            reset_after: Duration::from_secs(3600),
        };
        assert_eq!(next_call_after(empty), Duration::from_secs(6));
    }
}
