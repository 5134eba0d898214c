//! EC2 instances: their IDs and addresses.

use weft_model::SharedStr;
use weft_routes::ProviderError;

use super::{
    api::{Api, Operation},
    form::Form,
    wire,
};
use crate::{InstanceAddresses, pages::Pages};

/// Number of values that fit into one filter.
const BATCH: usize = 200;

/// The instance ID in a provider ID: the last element of `aws:///<zone>/<id>`, or the ID alone.
pub(super) fn id(provider_id: &str) -> Option<SharedStr> {
    let path = match provider_id.split_once("://") {
        Some(("aws", path)) => path,
        Some(_) => return None,
        None => provider_id,
    };
    let id = path.trim_matches('/').rsplit('/').next()?;
    let name = id.strip_prefix("i-")?;
    (!name.is_empty()).then(|| SharedStr::new(id))
}

/// The addresses of these instances. They are selected by a filter: a call with one unknown
/// instance as a parameter fails for all.
pub(super) async fn addresses(
    api: &Api,
    instances: &[SharedStr],
) -> Result<InstanceAddresses, ProviderError> {
    let mut found = InstanceAddresses::new();
    for batch in instances.chunks(BATCH) {
        let ids = batch.iter().map(SharedStr::as_str);
        let form = Form::default().filter("instance-id", ids);
        for instance in describe(api, form).await? {
            if instance.state.name != "terminated" {
                found.insert(SharedStr::new(&instance.id), instance.addresses());
            }
        }
    }
    Ok(found)
}

/// All instances that a call finds, page by page.
pub(super) async fn describe(api: &Api, form: Form) -> Result<Vec<wire::Instance>, ProviderError> {
    let mut found = Vec::new();
    let mut pages = Pages::default();
    let mut page = form.clone();
    loop {
        let reply: wire::Reservations = api.call(Operation::DescribeInstances, &page).await?;
        let entries = reply.entries();
        let reservations = reply.reservations.items.into_iter();
        found.extend(reservations.flat_map(|reservation| reservation.instances.items));
        match pages.turn(entries, reply.next)? {
            Some(token) => page = form.clone().with("NextToken", &token),
            None => return Ok(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instance_is_the_last_element_of_the_provider_id() {
        let table = [
            ("aws:///eu-central-1a/i-0abc", Some("i-0abc")),
            ("aws:////i-0abc", Some("i-0abc")),
            ("aws:///i-0abc", Some("i-0abc")),
            ("i-0abc", Some("i-0abc")),
            ("aws:///eu-central-1a/fargate-10.0.0.1", None),
            ("aws:///eu-central-1a/i-", None),
            ("aws:///eu-central-1a/", None),
            ("hcloud://123", None),
            ("gce://project/zone/i-0abc", None),
            ("", None),
        ];
        for (provider_id, expected) in table {
            assert_eq!(id(provider_id).as_deref(), expected, "{provider_id}");
        }
    }
}
