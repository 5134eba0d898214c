//! Splits a label selector into tokens.

/// One token of a label selector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    Identifier,
    In,
    NotIn,
    Equals,
    DoubleEquals,
    NotEquals,
    GreaterThan,
    LessThan,
    DoesNotExist,
    OpenParenthesis,
    ClosedParenthesis,
    Comma,
    End,
    Unknown,
}

/// Tokens with their source text.
pub(super) struct Lexer<'a> {
    rest: &'a str,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { rest: text }
    }

    /// The next token; `End` for ever after the last one.
    pub(super) fn next(&mut self) -> (Token, &'a str) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        match self.rest.chars().next() {
            None => (Token::End, ""),
            Some(c) if is_special(c) => self.special(),
            Some(_) => self.word(),
        }
    }

    fn take(&mut self, length: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        taken
    }

    /// The longest operator that starts here, as the upstream scanner finds it.
    fn special(&mut self) -> (Token, &'a str) {
        for length in [2, 1] {
            if let Some(token) = self.rest.get(..length).and_then(operator) {
                return (token, self.take(length));
            }
        }
        (Token::Unknown, self.take(1))
    }

    fn word(&mut self) -> (Token, &'a str) {
        let end = self
            .rest
            .find(|c| is_special(c) || matches!(c, ' ' | '\t' | '\r' | '\n'))
            .unwrap_or(self.rest.len());
        let word = self.take(end);
        let token = match word {
            "in" => Token::In,
            "notin" => Token::NotIn,
            _ => Token::Identifier,
        };
        (token, word)
    }
}

fn is_special(c: char) -> bool {
    matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

fn operator(text: &str) -> Option<Token> {
    Some(match text {
        "==" => Token::DoubleEquals,
        "!=" => Token::NotEquals,
        "=" => Token::Equals,
        ">" => Token::GreaterThan,
        "<" => Token::LessThan,
        "!" => Token::DoesNotExist,
        "(" => Token::OpenParenthesis,
        ")" => Token::ClosedParenthesis,
        "," => Token::Comma,
        _ => return None,
    })
}
