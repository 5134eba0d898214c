use std::{fmt, sync::Arc};

/// A text that must not be seen: neither printed nor part of an error.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Hides a text. Space around it comes from files and shells and is cut off.
    pub fn new(text: &str) -> Self {
        Self(Arc::from(text.trim()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// A text of others, without the secret should they have repeated it.
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
