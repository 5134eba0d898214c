//! The words as Go spells them.

mod wire;
