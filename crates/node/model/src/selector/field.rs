//! Field selectors.

use std::fmt;

use thiserror::Error;

/// Field selectors that are refused, with the messages of the Kubernetes API server.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FieldSelectorError {
    /// A term without an operator.
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    Term {
        /// The whole selector.
        selector: String,
        /// The term without operator.
        term: String,
    },
    /// A backslash before a character that needs none.
    #[error("invalid field selector: invalid escape sequence: {0}")]
    Escape(String),
    /// A character in a value that must be escaped.
    #[error("invalid field selector: unescaped character in value: {0}")]
    Unescaped(char),
}

/// Comparison operator of a field selector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FieldOperator {
    /// The field has this value.
    Equals,
    /// The field has another value.
    NotEquals,
}

/// One condition on one field.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldRequirement {
    /// The field's path, for instance `spec.nodeName`.
    pub field: String,
    /// Comparison operator.
    pub operator: FieldOperator,
    /// The value compared with.
    pub value: String,
}

impl FieldRequirement {
    /// Returns whether a field with this value satisfies the requirement; an absent field is empty.
    pub fn matches(&self, value: &str) -> bool {
        (self.operator == FieldOperator::Equals) == (self.value == value)
    }
}

impl fmt::Display for FieldRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operator = match self.operator {
            FieldOperator::Equals => "=",
            FieldOperator::NotEquals => "!=",
        };
        write!(f, "{}{operator}", self.field)?;
        for c in self.value.chars() {
            if matches!(c, '\\' | ',' | '=') {
                f.write_str("\\")?;
            }
            write!(f, "{c}")?;
        }
        Ok(())
    }
}

/// Conditions on fields that all have to hold; the empty selector matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldSelector {
    requirements: Vec<FieldRequirement>,
}

impl FieldSelector {
    /// Reads the text form, for instance `metadata.name=a,status.phase!=Failed`.
    pub fn parse(text: &str) -> Result<Self, FieldSelectorError> {
        let mut requirements = Vec::new();
        let mut terms: Vec<&str> = split_terms(text).into_iter().collect();
        // Upstream parses terms in this order and reports the first that it cannot parse.
        terms.sort_unstable();
        for term in terms {
            if term.is_empty() {
                continue;
            }
            let Some((field, operator, value)) = split_term(term) else {
                let (selector, term) = (text.to_owned(), term.to_owned());
                return Err(FieldSelectorError::Term { selector, term });
            };
            let value = unescape(value)?;
            requirements.push(FieldRequirement {
                field: field.to_owned(),
                operator,
                value,
            });
        }
        requirements.sort();
        requirements.dedup();
        Ok(Self { requirements })
    }

    /// The conditions, in canonical order.
    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }

    /// Returns whether the selector matches everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The value a field must have, when the selector fixes it.
    pub fn required(&self, field: &str) -> Option<&str> {
        self.requirements
            .iter()
            .find(|r| r.operator == FieldOperator::Equals && r.field == field)
            .map(|r| r.value.as_str())
    }

    /// Returns whether the fields match; `field` looks one up.
    pub fn matches<'a>(&self, field: impl Fn(&str) -> &'a str) -> bool {
        self.requirements
            .iter()
            .all(|requirement| requirement.matches(field(&requirement.field)))
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        super::write_terms(f, &self.requirements)
    }
}

fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (position, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..position]);
                start = position + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn split_term(term: &str) -> Option<(&str, FieldOperator, &str)> {
    let operators = [
        ("!=", FieldOperator::NotEquals),
        ("==", FieldOperator::Equals),
        ("=", FieldOperator::Equals),
    ];
    for (position, _) in term.char_indices() {
        for (text, operator) in operators {
            if let Some(value) = term[position..].strip_prefix(text) {
                return Some((&term[..position], operator, value));
            }
        }
    }
    None
}

fn unescape(value: &str) -> Result<String, FieldSelectorError> {
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(next @ ('\\' | ',' | '=')) => plain.push(next),
                Some(next) => return Err(FieldSelectorError::Escape(format!("\\{next}"))),
                None => return Err(FieldSelectorError::Escape("\\".to_owned())),
            },
            ',' | '=' => return Err(FieldSelectorError::Unescaped(c)),
            _ => plain.push(c),
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_read_and_ordered() {
        let selector = FieldSelector::parse("status.phase!=Failed,metadata.name==a\\,b").unwrap();
        assert_eq!(
            selector.to_string(),
            "metadata.name=a\\,b,status.phase!=Failed"
        );
        assert_eq!(selector.required("metadata.name"), Some("a,b"));
        assert_eq!(selector.required("status.phase"), None);
        assert_eq!(
            FieldSelector::parse(&selector.to_string()).unwrap(),
            selector
        );
    }

    #[test]
    fn a_term_without_operator_is_refused_as_recorded() {
        let error = FieldSelector::parse("metadata.name in (a)").unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid selector: 'metadata.name in (a)'; can't understand 'metadata.name in (a)'"
        );
        assert!(FieldSelector::parse("a=b\\c").is_err());
        assert!(FieldSelector::parse("a=b=c").is_err());
    }

    #[test]
    fn absent_fields_compare_as_empty() {
        let selector = FieldSelector::parse("spec.nodeName=").unwrap();
        assert!(selector.matches(|_| ""));
        assert!(!selector.matches(|_| "n1"));
    }
}
