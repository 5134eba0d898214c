//! Patches as functions from a document to a document.

pub(crate) mod json;
pub(crate) mod merge;
pub(crate) mod strategic;

#[cfg(test)]
mod properties;
