//! API token of Hetzner Cloud, given or read from a file.

use std::{
    fs,
    path::{Path, PathBuf},
};

use http::HeaderValue;
use parking_lot::Mutex;
use tracing::warn;
use weft_routes::ProviderError;

use crate::Secret;

/// Source of the token.
#[derive(Debug)]
pub enum HcloudToken {
    /// A fixed token.
    Given(Secret),
    /// A file. It is read for every call, which costs nothing compared with the call: a rotated
    /// token is used at once, and while the file cannot be read the last token stays in use.
    File {
        /// Path of the file.
        path: PathBuf,
        /// The token as last read.
        last: Mutex<Secret>,
    },
}

/// The token cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("cannot read the token from {}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// The underlying error.
        source: std::io::Error,
    },
    /// The token or its file is empty.
    #[error("token is empty")]
    Empty,
}

impl HcloudToken {
    /// A fixed token.
    pub fn given(token: &str) -> Result<Self, TokenError> {
        filled(token).map(Self::Given)
    }

    /// A token in a file, which has to be readable now.
    pub fn in_file(path: &Path) -> Result<Self, TokenError> {
        let last = Mutex::new(read(path)?);
        let path = path.to_owned();
        Ok(Self::File { path, last })
    }

    /// The current token.
    pub(super) fn current(&self) -> Secret {
        match self {
            Self::Given(token) => token.clone(),
            Self::File { path, last } => {
                let mut last = last.lock();
                match read(path) {
                    Ok(token) => *last = token,
                    Err(error) => {
                        warn!(%error, "cannot read the token file, keeping the last token");
                    }
                }
                last.clone()
            }
        }
    }
}

/// The `Authorization` header, marked as sensitive so that `Debug` does not show it.
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
