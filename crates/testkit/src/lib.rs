//! What tests of several crates need and no program does.
//!
//! So far that is the [`lab`]: networks of their own for tests that touch the kernel.
//! A dev-dependency only; nothing that ships depends on it.

pub mod lab;
