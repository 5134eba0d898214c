//! Server-side apply.

use std::sync::Arc;

use http::StatusCode;

use crate::{
    api::{Api, Context},
    handler::write::Target,
    kind::ResourceType,
    options::WriteOptions,
    status::{ApiError, Outcome},
    store::Stored,
};

/// Creates or changes an object so that it has what the body says.
pub(crate) fn apply(
    _api: &Arc<Api>,
    _context: &Context,
    _kind: &Arc<ResourceType>,
    _target: Target<'_>,
    _options: &WriteOptions,
) -> Outcome<(StatusCode, Arc<Stored>)> {
    Err(ApiError::unsupported_patch())
}
