//! The plugin as a runtime calls it.
