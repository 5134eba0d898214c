//! Validation of CNI and Kubernetes names.

/// Maximum length in bytes: longer than any runtime's names, short enough for a log line.
const LONGEST: usize = 256;

/// True for container ids and network names: a letter or digit, then also `_`, `.` and `-`.
pub fn is_identifier(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes
        .next()
        .is_some_and(|first| first.is_ascii_alphanumeric())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
        && text.len() <= LONGEST
}

/// True for a name that the kernel accepts for an interface.
pub fn is_interface(text: &str) -> bool {
    (1..16).contains(&text.len())
        && !matches!(text, "." | "..")
        && !text
            .chars()
            .any(|c| matches!(c, '/' | ':') || c.is_whitespace() || c.is_control())
}

/// True for printable ASCII, which covers Kubernetes names and UIDs and is safe in a log line.
pub(crate) fn is_kubernetes(text: &str) -> bool {
    (1..=LONGEST).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_what_the_specification_allows() {
        for good in ["a", "0", "abc-1_2.3", &"a".repeat(256)] {
            assert!(is_identifier(good), "{good}");
        }
        for bad in [
            "",
            "-a",
            ".a",
            "../etc",
            "a/b",
            "a b",
            "ä",
            "a\n",
            &"a".repeat(257),
        ] {
            assert!(!is_identifier(bad), "{bad:?}");
        }
    }

    #[test]
    fn interfaces_are_what_the_kernel_takes() {
        for good in ["eth0", "a", "123456789012345", "net1.5"] {
            assert!(is_interface(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "a:b",
            "a b",
            "a\tb",
            "1234567890123456",
            "a\u{1}",
        ] {
            assert!(!is_interface(bad), "{bad:?}");
        }
    }
}
