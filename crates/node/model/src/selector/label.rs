//! Label selectors: parsing, canonical text and matching, with the messages of Kubernetes.

use std::{collections::BTreeSet, fmt};

use thiserror::Error;

use super::{
    lexer::{Lexer, Token},
    syntax,
};

/// Label selectors that are refused, with the messages of the Kubernetes API server.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LabelSelectorError {
    /// A token in the wrong position.
    #[error("found '{found}', expected: {expected}")]
    Unexpected {
        /// The text found.
        found: String,
        /// The allowed tokens.
        expected: &'static str,
    },
    /// The same inside one requirement.
    #[error("unable to parse requirement: found '{found}', expected: {expected}")]
    Requirement {
        /// The text found.
        found: String,
        /// The allowed tokens.
        expected: &'static str,
    },
    /// A key or a value that labels cannot have.
    #[error("unable to parse requirement: {0}")]
    Invalid(String),
}

/// Comparison operator of a label selector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operator {
    /// The label is present, with any value.
    Exists,
    /// The label is absent.
    DoesNotExist,
    /// The value is one of the given ones.
    In,
    /// The value is none of the given ones, or the label is absent.
    NotIn,
    /// The value is an integer above the given one.
    GreaterThan,
    /// The value is an integer below the given one.
    LessThan,
}

/// One condition on one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

impl Requirement {
    /// The label's key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Comparison operator.
    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// The values compared with, sorted and without repeats.
    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// The one value this requirement asks for, when it asks for exactly one.
    pub fn single_value(&self) -> Option<&str> {
        match (self.operator, &self.values[..]) {
            (Operator::In, [value]) => Some(value),
            _ => None,
        }
    }

    fn matches(&self, value: Option<&str>) -> bool {
        let listed = |v: &str| {
            self.values
                .binary_search_by(|known| known.as_str().cmp(v))
                .is_ok()
        };
        let bound = || self.values.first().and_then(|v| v.parse::<i64>().ok());
        let number = || value.and_then(|v| v.parse::<i64>().ok());
        match self.operator {
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::In => value.is_some_and(listed),
            Operator::NotIn => !value.is_some_and(listed),
            Operator::GreaterThan => matches!((number(), bound()), (Some(n), Some(b)) if n > b),
            Operator::LessThan => matches!((number(), bound()), (Some(n), Some(b)) if n < b),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key,
            operator,
            values,
        } = self;
        match (operator, &values[..]) {
            (Operator::Exists, _) => write!(f, "{key}"),
            (Operator::DoesNotExist, _) => write!(f, "!{key}"),
            (Operator::In, [value]) => write!(f, "{key}={value}"),
            (Operator::NotIn, [value]) => write!(f, "{key}!={value}"),
            (Operator::In, values) => write!(f, "{key} in ({})", values.join(",")),
            (Operator::NotIn, values) => write!(f, "{key} notin ({})", values.join(",")),
            (Operator::GreaterThan, values) => write!(f, "{key}>{}", values.join(",")),
            (Operator::LessThan, values) => write!(f, "{key}<{}", values.join(",")),
        }
    }
}

/// Conditions on labels that all have to hold; the empty selector matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

impl LabelSelector {
    /// Reads the text form, for instance `app in (a,b),!legacy`.
    pub fn parse(text: &str) -> Result<Self, LabelSelectorError> {
        let mut requirements = Parser::new(text).requirements()?;
        requirements.sort();
        requirements.dedup();
        Ok(Self { requirements })
    }

    /// A selector of `key=value` pairs, as Services and scale subresources have.
    pub fn equalities<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut requirements: Vec<_> = pairs
            .into_iter()
            .map(|(key, value)| Requirement {
                key: key.to_owned(),
                operator: Operator::In,
                values: vec![value.to_owned()],
            })
            .collect();
        requirements.sort();
        Self { requirements }
    }

    /// The conditions, in canonical order.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Returns whether the selector matches everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Returns whether the labels match; `label` looks one up.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements
            .iter()
            .all(|requirement| requirement.matches(label(&requirement.key)))
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        super::write_terms(f, &self.requirements)
    }
}

/// A recursive-descent parser with one token of look-ahead.
struct Parser<'a> {
    lexer: Lexer<'a>,
    ahead: (Token, &'a str),
}

const OPERATORS: &str = "in, notin, =, ==, !=, gt, lt";

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        let mut lexer = Lexer::new(text);
        let ahead = lexer.next();
        Self { lexer, ahead }
    }

    /// The next token in the position of a key or a value, where `in` is an ordinary word.
    fn peek(&self) -> (Token, &'a str) {
        match self.ahead {
            (Token::In | Token::NotIn, text) => (Token::Identifier, text),
            other => other,
        }
    }

    fn take(&mut self) -> (Token, &'a str) {
        let taken = self.peek();
        self.ahead = self.lexer.next();
        taken
    }

    fn requirements(mut self) -> Result<Vec<Requirement>, LabelSelectorError> {
        let unexpected = |found: &str, expected| LabelSelectorError::Unexpected {
            found: found.to_owned(),
            expected,
        };
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                (Token::Identifier | Token::DoesNotExist, _) => {
                    requirements.push(self.requirement()?);
                }
                (Token::End, _) => return Ok(requirements),
                (_, text) => return Err(unexpected(text, "!, identifier, or 'end of string'")),
            }
            match self.take() {
                (Token::End, _) => return Ok(requirements),
                (Token::Comma, _) => match self.peek() {
                    (Token::Identifier | Token::DoesNotExist, _) => {}
                    (_, text) => return Err(unexpected(text, "identifier after ','")),
                },
                (_, text) => return Err(unexpected(text, "',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, LabelSelectorError> {
        let mut absent = false;
        let mut head = self.take();
        if head.0 == Token::DoesNotExist {
            absent = true;
            head = self.take();
        }
        let (Token::Identifier, key) = head else {
            return Err(wrong(head.1, "identifier"));
        };
        if let Some(text) = syntax::label_key_errors(key).into_iter().next() {
            return Err(invalid("<nil>", key, &text));
        }
        let plain = |operator| Requirement {
            key: key.to_owned(),
            operator,
            values: Vec::new(),
        };
        if absent {
            return Ok(plain(Operator::DoesNotExist));
        }
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(plain(Operator::Exists));
        }
        let operator = self.ahead;
        self.ahead = self.lexer.next();
        let (operator, values) = match operator.0 {
            Token::In => (Operator::In, self.values()?),
            Token::NotIn => (Operator::NotIn, self.values()?),
            Token::Equals | Token::DoubleEquals => (Operator::In, self.exact_value()?),
            Token::NotEquals => (Operator::NotIn, self.exact_value()?),
            Token::GreaterThan => (Operator::GreaterThan, self.exact_value()?),
            Token::LessThan => (Operator::LessThan, self.exact_value()?),
            _ => return Err(wrong(operator.1, OPERATORS)),
        };
        check_values(key, operator, &values)?;
        Ok(Requirement {
            key: key.to_owned(),
            operator,
            values: values.into_iter().collect(),
        })
    }

    fn exact_value(&mut self) -> Result<BTreeSet<String>, LabelSelectorError> {
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(BTreeSet::from([String::new()]));
        }
        match self.take() {
            (Token::Identifier, text) => Ok(BTreeSet::from([text.to_owned()])),
            (_, text) => Err(wrong(text, "identifier")),
        }
    }

    fn values(&mut self) -> Result<BTreeSet<String>, LabelSelectorError> {
        match self.take() {
            (Token::OpenParenthesis, _) => {}
            (_, text) => return Err(wrong(text, "'('")),
        }
        match self.peek() {
            (Token::ClosedParenthesis, _) => {
                self.take();
                Ok(BTreeSet::from([String::new()]))
            }
            (Token::Identifier | Token::Comma, _) => {
                let values = self.value_list()?;
                match self.take() {
                    (Token::ClosedParenthesis, _) => Ok(values),
                    (_, text) => Err(wrong(text, "')'")),
                }
            }
            (_, text) => Err(wrong(text, "',', ')' or identifier")),
        }
    }

    fn value_list(&mut self) -> Result<BTreeSet<String>, LabelSelectorError> {
        let mut values = BTreeSet::new();
        loop {
            match self.take() {
                (Token::Identifier, text) => {
                    values.insert(text.to_owned());
                    match self.peek() {
                        (Token::Comma, _) => {}
                        (Token::ClosedParenthesis, _) => return Ok(values),
                        (_, text) => return Err(wrong(text, "',' or ')'")),
                    }
                }
                // A comma without a value next to it adds the empty value.
                (Token::Comma, _) => {
                    if values.is_empty() {
                        values.insert(String::new());
                    }
                    match self.peek().0 {
                        Token::ClosedParenthesis => {
                            values.insert(String::new());
                            return Ok(values);
                        }
                        Token::Comma => {
                            self.take();
                            values.insert(String::new());
                        }
                        _ => {}
                    }
                }
                (_, text) => return Err(wrong(text, "',', or identifier")),
            }
        }
    }
}

fn wrong(found: &str, expected: &'static str) -> LabelSelectorError {
    LabelSelectorError::Requirement {
        found: found.to_owned(),
        expected,
    }
}

fn invalid(field: &str, value: &str, complaint: &str) -> LabelSelectorError {
    LabelSelectorError::Invalid(format!("{field}: Invalid value: {value:?}: {complaint}"))
}

fn check_values(
    key: &str,
    operator: Operator,
    values: &BTreeSet<String>,
) -> Result<(), LabelSelectorError> {
    for (position, value) in values.iter().enumerate() {
        let ordered = matches!(operator, Operator::GreaterThan | Operator::LessThan);
        if ordered && value.parse::<i64>().is_err() {
            let complaint = "for 'Gt', 'Lt' operators, the value must be an integer";
            return Err(invalid(&format!("values[{position}]"), value, complaint));
        }
        if let Some(complaint) = syntax::label_value_errors(value).first() {
            return Err(invalid(
                &format!("values[{position}][{key}]"),
                value,
                complaint,
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selects(selector: &str, labels: &[(&str, &str)]) -> bool {
        LabelSelector::parse(selector)
            .unwrap()
            .matches(|key| labels.iter().find(|(k, _)| *k == key).map(|(_, v)| *v))
    }

    #[test]
    fn operators_select_as_recorded() {
        let objects: [&[(&str, &str)]; 3] = [&[("app", "x"), ("tier", "1")], &[("app", "y")], &[]];
        let cases = [
            ("app=x", [true, false, false]),
            ("app==x", [true, false, false]),
            ("app!=x", [false, true, true]),
            ("app", [true, true, false]),
            ("!app", [false, false, true]),
            ("app in (x,y)", [true, true, false]),
            ("app notin (x)", [false, true, true]),
            ("app in (x),tier", [true, false, false]),
            ("app=", [false, false, false]),
            ("app in ()", [false, false, false]),
            ("tier>0", [true, false, false]),
            ("tier<1", [false, false, false]),
            ("app=x,app=y", [false, false, false]),
            (" app = x ", [true, false, false]),
            ("app in (x,)", [true, false, false]),
            ("x.y/app", [false, false, false]),
            ("", [true, true, true]),
        ];
        for (selector, expected) in cases {
            assert_eq!(
                objects.map(|labels| selects(selector, labels)),
                expected,
                "{selector:?}"
            );
        }
    }

    #[test]
    fn complaints_are_worded_as_recorded() {
        let cases = [
            (
                "a b",
                "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
            ),
            (
                "=x",
                "found '=', expected: !, identifier, or 'end of string'",
            ),
            ("app=x y", "found 'y', expected: ',' or 'end of string'"),
            (
                "app in (x",
                "unable to parse requirement: found '', expected: ',' or ')'",
            ),
            ("app=x,", "found '', expected: identifier after ','"),
            ("!app,", "found '', expected: identifier after ','"),
            (
                "tier>x",
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
        ];
        for (selector, expected) in cases {
            assert_eq!(
                LabelSelector::parse(selector).unwrap_err().to_string(),
                expected
            );
        }
        let text = LabelSelector::parse("-bad=x").unwrap_err().to_string();
        assert!(
            text.starts_with(
                "unable to parse requirement: <nil>: Invalid value: \"-bad\": name part"
            )
        );
        let text = LabelSelector::parse("app=-bad-").unwrap_err().to_string();
        assert!(text.starts_with(
            "unable to parse requirement: values[0][app]: Invalid value: \"-bad-\": a valid"
        ));
    }

    #[test]
    fn order_space_and_spelling_do_not_matter() {
        let canonical = |text| LabelSelector::parse(text).unwrap().to_string();
        assert_eq!(
            canonical(" b , a in ( y, x,y ) "),
            canonical("a in (x,y),b")
        );
        assert_eq!(canonical("a==x"), canonical("a in (x)"));
        assert_eq!(canonical("a in (x,y),b!=1,!c"), "a in (x,y),b!=1,!c");
    }
}
