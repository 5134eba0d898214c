use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use http::HeaderValue;
use tracing::warn;
use weft_routes::ProviderError;

use crate::Secret;

/// Where the token comes from.
#[derive(Debug)]
pub enum HcloudToken {
    /// It was given and stays.
    Given(Secret),
    /// It is in a file. The file is read for every call, which costs nothing next to the call: a
    /// token that was exchanged is used at once, and a file that cannot be read just now does not
    /// take away the token that was there before.
    File {
        /// The file.
        path: PathBuf,
        /// What was in it last.
        last: Mutex<Secret>,
    },
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("read the token from {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is nothing in it.
    #[error("the token is empty")]
    Empty,
}

impl HcloudToken {
    /// A token as it is.
    pub fn given(token: &str) -> Result<Self, TokenError> {
        filled(token).map(Self::Given)
    }

    /// The token in a file.
    pub fn in_file(path: &Path) -> Result<Self, TokenError> {
        let last = Mutex::new(read(path)?);
        let path = path.to_owned();
        Ok(Self::File { path, last })
    }

    /// The token of now.
    pub(super) fn current(&self) -> Secret {
        match self {
            Self::Given(token) => token.clone(),
            Self::File { path, last } => {
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                match read(path) {
                    Ok(token) => *last = token,
                    Err(error) => warn!(%error, "keeping the token that was there"),
                }
                last.clone()
            }
        }
    }
}

/// The header that shows the token, hidden from whoever prints the request.
pub(super) fn authorization(token: &Secret) -> Result<HeaderValue, ProviderError> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
        .map_err(|_| ProviderError::Forbidden)?;
    value.set_sensitive(true);
    Ok(value)
}

fn read(path: &Path) -> Result<Secret, TokenError> {
    let text = fs::read_to_string(path).map_err(|source| TokenError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    filled(&text)
}

fn filled(text: &str) -> Result<Secret, TokenError> {
    let token = Secret::new(text);
    (!token.is_empty())
        .then_some(token)
        .ok_or(TokenError::Empty)
}
