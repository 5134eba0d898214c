//! Admission policies.

use crate::{rules::Scene, status::Outcome, store::Object};

/// Whether the policies let an object in.
#[expect(clippy::unnecessary_wraps, reason = "policies refuse")]
pub(crate) fn admit(_scene: &Scene<'_>, _object: &Object, _old: Option<&Object>) -> Outcome<()> {
    Ok(())
}
