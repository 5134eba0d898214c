//! Query strings, read as leniently as the real server reads them.

/// Decoded `name=value` pairs, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// Reads a query string; empty pairs, as kube-rs sends them, mean nothing.
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

    /// The first value unless it is empty.
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

/// Undoes percent encoding; what is not a valid escape stays as it is.
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

    #[test]
    fn broken_escapes_are_kept() {
        assert_eq!(decode("100%"), "100%");
        assert_eq!(decode("%zz%41"), "%zzA");
    }
}
