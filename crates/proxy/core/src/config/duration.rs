//! Durations as Go writes and reads them: `1h0m0s`, `250ms`, `-1.5h`.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A span of time in Go's text form. May be negative; validation refuses that.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct GoDuration(i64);

/// Text that Go would not read as a duration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DurationError {
    /// Neither a number with a unit nor `0`.
    #[error("`{0}` is not a duration such as 30s or 1h30m")]
    Malformed(String),
    /// More than about 292 years, the range of Go's int64 nanoseconds.
    #[error("`{0}` is not a duration: longer than 292 years")]
    TooLong(String),
}

const NANOSECOND: u64 = 1;
const MICROSECOND: u64 = 1_000 * NANOSECOND;
const MILLISECOND: u64 = 1_000 * MICROSECOND;
const SECOND: u64 = 1_000 * MILLISECOND;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

impl GoDuration {
    /// Zero, which in many fields means "not set".
    pub const ZERO: Self = Self(0);

    /// A duration of this many nanoseconds.
    pub const fn from_nanoseconds(nanoseconds: i64) -> Self {
        Self(nanoseconds)
    }

    /// A duration of this many seconds.
    pub const fn from_seconds(seconds: i32) -> Self {
        Self(seconds as i64 * 1_000_000_000)
    }

    /// True for exactly zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Converts to the standard type; `None` if negative.
    pub fn to_std(self) -> Option<Duration> {
        u64::try_from(self.0).ok().map(Duration::from_nanos)
    }
}

impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let malformed = || DurationError::Malformed(text.to_owned());
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if unsigned == "0" {
            return Ok(Self::ZERO);
        }
        let mut total: u128 = 0;
        let mut rest = unsigned;
        loop {
            let (part, behind) = leading_part(rest).ok_or_else(malformed)?;
            total += part;
            // The smallest int64 has no positive counterpart, and Go accepts it too.
            if total > u128::from(u64::from(negative)) + i64::MAX as u128 {
                return Err(DurationError::TooLong(text.to_owned()));
            }
            if behind.is_empty() {
                break;
            }
            rest = behind;
        }
        let signed =
            i128::try_from(total).map_or(i128::MAX, |total| if negative { -total } else { total });
        i64::try_from(signed)
            .map(Self)
            .map_err(|_| DurationError::TooLong(text.to_owned()))
    }
}

/// The nanoseconds of the first number with its unit, and the remaining text.
fn leading_part(text: &str) -> Option<(u128, &str)> {
    let (whole, rest) = leading_digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => leading_digits(rest),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let end = rest
        .find(|c: char| c == '.' || c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(end);
    let unit = u128::from(match unit {
        "ns" => NANOSECOND,
        // Unicode has two letters for micro, and Go reads both.
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => return None,
    });
    // Longer numbers overflow in any unit; saturating keeps them too long.
    let whole: u128 = if whole.is_empty() {
        0
    } else {
        whole.parse().unwrap_or(u128::MAX / 2)
    };
    // Digits beyond these are below a nanosecond in every unit.
    let fraction = &fraction[..fraction.len().min(15)];
    let part = match fraction.parse::<u128>() {
        Ok(digits) => digits * unit / 10_u128.pow(u32::try_from(fraction.len()).ok()?),
        Err(_) => 0,
    };
    let nanoseconds = whole.saturating_mul(unit).min(u128::MAX / 4) + part;
    Some((nanoseconds, rest))
}

fn leading_digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        match total {
            0 => f.write_str("0s"),
            1..MICROSECOND => write!(f, "{total}ns"),
            MICROSECOND..MILLISECOND => {
                write_decimal(f, total, MICROSECOND)?;
                f.write_str("\u{b5}s")
            }
            MILLISECOND..SECOND => {
                write_decimal(f, total, MILLISECOND)?;
                f.write_str("ms")
            }
            _ => {
                let (hours, minutes) = (total / HOUR, total % HOUR / MINUTE);
                if hours > 0 {
                    write!(f, "{hours}h")?;
                }
                if hours > 0 || minutes > 0 {
                    write!(f, "{minutes}m")?;
                }
                write_decimal(f, total % MINUTE, SECOND)?;
                f.write_str("s")
            }
        }
    }
}

/// Writes a number of units with as many decimals as needed.
fn write_decimal(f: &mut fmt::Formatter<'_>, nanoseconds: u64, unit: u64) -> fmt::Result {
    let (whole, fraction) = (nanoseconds / unit, nanoseconds % unit);
    if fraction == 0 {
        return write!(f, "{whole}");
    }
    let width = unit.ilog10() as usize;
    let digits = format!("{fraction:0width$}");
    write!(f, "{whole}.{}", digits.trim_end_matches('0'))
}

impl TryFrom<String> for GoDuration {
    type Error = DurationError;

    fn try_from(text: String) -> Result<Self, DurationError> {
        text.parse()
    }
}

impl From<GoDuration> for String {
    fn from(duration: GoDuration) -> Self {
        duration.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_print_as_in_go() {
        for (text, nanoseconds, printed) in [
            ("0", 0, "0s"),
            ("0s", 0, "0s"),
            ("-0", 0, "0s"),
            ("30s", 30_000_000_000, "30s"),
            ("1h", 3_600_000_000_000, "1h0m0s"),
            ("24h0m0s", 86_400_000_000_000, "24h0m0s"),
            ("15m", 900_000_000_000, "15m0s"),
            ("1h30m0.5s", 5_400_500_000_000, "1h30m0.5s"),
            ("1.5h", 5_400_000_000_000, "1h30m0s"),
            (".5s", 500_000_000, "500ms"),
            ("5.s", 5_000_000_000, "5s"),
            ("250ms", 250_000_000, "250ms"),
            ("1.5ms", 1_500_000, "1.5ms"),
            ("2us", 2_000, "2\u{b5}s"),
            ("2\u{3bc}s1ns", 2_001, "2.001\u{b5}s"),
            ("7ns", 7, "7ns"),
            ("-1s", -1_000_000_000, "-1s"),
            ("+2m3s", 123_000_000_000, "2m3s"),
            (
                "9223372036854775807ns",
                i64::MAX,
                "2562047h47m16.854775807s",
            ),
            (
                "-9223372036854775808ns",
                i64::MIN,
                "-2562047h47m16.854775808s",
            ),
            (
                "0.3333333333333333333h",
                1_199_999_999_999,
                "19m59.999999999s",
            ),
        ] {
            let read: GoDuration = text.parse().unwrap();
            assert_eq!(read, GoDuration::from_nanoseconds(nanoseconds), "{text}");
            assert_eq!(read.to_string(), printed, "{text}");
            assert_eq!(printed.parse(), Ok(read), "{text}");
        }
    }

    #[test]
    fn what_go_refuses_is_refused_with_the_text() {
        for text in [
            "", "5", "s", "-", ".s", "1d", "1 s", "1s2", "3 0s", "1.2.3s", "0x1s",
        ] {
            let error = text.parse::<GoDuration>().unwrap_err();
            assert_eq!(error, DurationError::Malformed(text.to_owned()));
        }
        for text in [
            "9223372036854775808ns",
            "2562048h",
            "99999999999999999999999999999999999999999999999h",
        ] {
            let error = text.parse::<GoDuration>().unwrap_err();
            assert_eq!(error, DurationError::TooLong(text.to_owned()));
        }
    }

    #[test]
    fn negative_durations_have_no_standard_form() {
        assert_eq!(GoDuration::from_seconds(-1).to_std(), None);
        let second = GoDuration::from_seconds(1).to_std();
        assert_eq!(second, Some(Duration::from_secs(1)));
    }
}
