//! JSON, YAML and gzip encoding of bodies, and limits of sizes and paths.

pub(crate) mod gzip;
pub(crate) mod json;
pub(crate) mod paths;
pub(crate) mod size;
pub(crate) mod yaml;
