//! What the crate promises about real programs and about arbitrary values.

mod arbitrary;
mod kernel;
mod text;
mod trace;
