//! Numbers as text: three significant digits, thousands separated.

/// Three significant digits, thousands separated by commas: `0.0123`, `4.56`, `45.6`, `1,234`.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    let decimals = match size {
        _ if size == 0.0 || size >= 100.0 => 0,
        _ if size >= 10.0 => 1,
        _ if size >= 1.0 => 2,
        _ if size >= 0.1 => 3,
        _ => 4,
    };
    let text = format!("{value:.decimals$}");
    if size >= 1000.0 {
        thousands(&text)
    } else {
        text
    }
}

/// A count: without decimals unless it has a fraction, as a mean may.
pub(crate) fn count(value: f64) -> String {
    if value.fract() == 0.0 {
        thousands(&format!("{value:.0}"))
    } else {
        number(value)
    }
}

/// A ratio such as `20.0 ×`, or a dash if it was not measured.
pub(crate) fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{} ×", number(ratio)))
}

fn thousands(digits: &str) -> String {
    let (sign, digits) = digits
        .strip_prefix('-')
        .map_or(("", digits), |digits| ("-", digits));
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    format!("{sign}{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_significant_digits() {
        let cases = [
            (0.0, "0"),
            (0.01234, "0.0123"),
            (0.5, "0.500"),
            (4.567, "4.57"),
            (45.67, "45.7"),
            (456.7, "457"),
            (1234.5, "1,234"),
            (-9_876_543.0, "-9,876,543"),
        ];
        for (value, expected) in cases {
            assert_eq!(number(value), expected);
        }
        assert_eq!(ratio(Some(20.04)), "20.0 ×");
        let counts = [0.0, 7.0, 90.0, 2290.0, 2.5].map(count);
        assert_eq!(counts, ["0", "7", "90", "2,290", "2.50"]);
        assert_eq!(ratio(None), "–");
    }
}
