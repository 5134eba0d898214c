//! Services.

/// Hands out addresses and ports.
#[derive(Debug, Default)]
pub(crate) struct Allocator {}
