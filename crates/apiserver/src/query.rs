//! Query strings, parsed as leniently as kube-apiserver does.

/// Decoded `name=value` pairs, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// Parses a query string; empty pairs, as kube-rs sends them, are ignored.
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = text
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(name, value)| (decode_plus(name), decode_plus(value)))
            .collect();
        Self { pairs }
    }

    /// The first value of a parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// The first value of a parameter unless it is empty.
    pub(crate) fn filled(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// All values of a parameter.
    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.pairs
            .iter()
            .filter(move |(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }
}

fn decode_plus(text: &str) -> String {
    decode(&text.replace('+', " "))
}

/// Decodes percent encoding; invalid escapes stay as they are.
pub(crate) fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut position = 0;
    while position < bytes.len() {
        let escape = (bytes[position] == b'%')
            .then(|| bytes.get(position + 1..position + 3))
            .flatten()
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let Some(byte) = escape {
            plain.push(byte);
            position += 3;
        } else {
            plain.push(bytes[position]);
            position += 1;
        }
    }
    String::from_utf8(plain)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kube_rs_queries_with_empty_pairs_are_read() {
        let query = Query::parse("&limit=500&labelSelector=a%3Db%2Cc+in+%28x%29&watch");
        assert_eq!(query.get("limit"), Some("500"));
        assert_eq!(query.get("labelSelector"), Some("a=b,c in (x)"));
        assert_eq!(query.get("watch"), Some(""));
        assert_eq!(query.get("absent"), None);
    }

    fn encode(text: &str) -> String {
        let encode = |byte: u8| match byte {
            b'a'..=b'z' | b'0'..=b'9' => char::from(byte).to_string(),
            b' ' => "+".to_owned(),
            other => format!("%{other:02X}"),
        };
        text.bytes().map(encode).collect()
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn a_query_is_read_as_it_was_written(pairs in proptest::collection::vec(("[a-c]{1,2}", ".{0,6}"), 0..5)) {
            let text: Vec<String> = pairs.iter().map(|(n, v)| format!("{}={}", encode(n), encode(v))).collect();
            let query = Query::parse(&text.join("&"));
            proptest::prop_assert_eq!(&query.pairs, &pairs);
            for name in ["a", "b", "cc"] {
                let all: Vec<&str> = pairs.iter().filter(|p| p.0 == name).map(|p| &*p.1).collect();
                proptest::prop_assert_eq!(query.get(name), all.first().copied());
                proptest::prop_assert_eq!(query.all(name).collect::<Vec<_>>(), all);
            }
        }

        #[test]
        fn any_text_is_a_query(text in ".{0,40}|[%=&+0-9a-fA-F]{0,40}") {
            let pairs = Query::parse(&text).pairs.len();
            proptest::prop_assert_eq!(pairs, text.split('&').filter(|pair| !pair.is_empty()).count());
        }
    }

    #[test]
    fn broken_escapes_are_kept() {
        assert_eq!(decode("100%"), "100%");
        assert_eq!(decode("%zz%41"), "%zzA");
    }
}
