//! The backend against a simulated kernel, and against the real one in namespaces.

mod partial;
mod world;
