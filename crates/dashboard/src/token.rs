//! The secret between the terminal that started the process and the page.

use std::fmt;

use subtle::ConstantTimeEq as _;

/// A secret of 128 random bits. Whoever has it may act.
#[derive(Clone)]
pub struct Token(String);

/// The system has no randomness to give.
#[derive(Debug, thiserror::Error)]
#[error("make a token")]
pub struct NoRandomness(#[source] getrandom::Error);

impl Token {
    /// A new one.
    pub fn random() -> Result<Self, NoRandomness> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(NoRandomness)?;
        Ok(Self(format!("{:032x}", u128::from_be_bytes(bytes))))
    }

    /// The text, for a URL that only its user sees.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether this is the token. Takes the same time for every text of its length.
    pub(crate) fn is(&self, text: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(text).into()
    }
}

// It must not reach a log.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_the_token() {
        let token = Token::random().unwrap();
        let text = token.reveal();
        assert_eq!(text.len(), 32);
        assert!(token.is(text.as_bytes()));
        assert!(!token.is(b""));
        assert!(!token.is(&text.as_bytes()[..31]));
        assert!(!token.is(format!("{text}0").as_bytes()));
        assert!(!token.is(Token::random().unwrap().reveal().as_bytes()));
        assert!(!format!("{token:?}").contains(text));
    }
}
