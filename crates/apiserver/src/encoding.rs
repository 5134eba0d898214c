//! Bodies: JSON, YAML and protobuf in, JSON and YAML out.

pub(crate) mod gzip;
pub(crate) mod json;
pub(crate) mod paths;
pub(crate) mod size;
pub(crate) mod yaml;
