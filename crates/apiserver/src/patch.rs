//! Patch algorithms on JSON documents: JSON patch, merge patch, strategic merge patch.

pub(crate) mod json;
pub(crate) mod merge;
pub(crate) mod strategic;

#[cfg(test)]
mod properties;
