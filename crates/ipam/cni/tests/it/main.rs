//! Integration tests of the plugin, called as a runtime calls it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod commands;
mod daemon;
mod input;
mod irregular_files;
mod packets;
mod plugin;
mod refusals;
mod runtime;
mod startup;
mod unreachable;
