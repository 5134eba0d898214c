//! Texts that must not be printed.

use std::{fmt, sync::Arc};

/// A secret text. Its `Debug` output is `[secret]`, and it has no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Wraps a text, without the white space around it that files and shells add.
    pub fn new(text: &str) -> Self {
        Self(Arc::from(text.trim()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// A text from outside, with the secret replaced should it be repeated there.
    pub(crate) fn cut_from(&self, text: &str) -> String {
        if self.is_empty() {
            return text.to_owned();
        }
        text.replace(&*self.0, "[secret]")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}
