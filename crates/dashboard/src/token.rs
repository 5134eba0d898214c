//! The token that allows actions, shared by the terminal that started the process and the page.

use std::fmt;

use subtle::ConstantTimeEq as _;

/// A secret of 128 random bits that allows actions.
#[derive(Clone)]
pub struct Token(String);

/// The operating system provides no random numbers.
#[derive(Debug, thiserror::Error)]
#[error("cannot generate a token")]
pub struct NoRandomness(#[source] getrandom::Error);

impl Token {
    /// Generates a token.
    pub fn random() -> Result<Self, NoRandomness> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(NoRandomness)?;
        Ok(Self(format!("{:032x}", u128::from_be_bytes(bytes))))
    }

    /// The text, for a URL that only its user sees.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Compares in constant time for every text of the token's length.
    pub(crate) fn is(&self, text: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(text).into()
    }
}

// Not derived: the token must not reach a log.
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
