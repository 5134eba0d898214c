//! Instances as targets of EC2 routes, with their source/destination check switched off.

use std::{collections::BTreeMap, net::IpAddr};

use parking_lot::{Mutex, MutexGuard};
use weft_model::SharedStr;
use weft_routes::ProviderError;

use super::{
    api::{Api, Operation},
    form::Form,
    instance, wire,
};

/// The target parameter of a route to an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RouteTarget {
    /// The instance itself, if it has one interface.
    Instance(SharedStr),
    /// One of several interfaces.
    Interface(SharedStr),
}

/// The targets of the instances that were prepared; each instance is prepared once.
#[derive(Debug, Default)]
pub(super) struct RouteTargets(Mutex<BTreeMap<SharedStr, RouteTarget>>);

impl RouteTargets {
    /// Switches the source/destination check off, unless that was done already, and returns the
    /// target.
    pub(super) async fn prepare(
        &self,
        api: &Api,
        instance: &SharedStr,
        address: Option<IpAddr>,
    ) -> Result<RouteTarget, ProviderError> {
        let known = self.known().get(instance).cloned();
        if let Some(target) = known {
            return Ok(target);
        }
        let form = Form::default()
            .with("InstanceId", instance)
            .with("SourceDestCheck.Value", "false");
        let target = match api.change(Operation::ModifyInstanceAttribute, form).await {
            Ok(()) => RouteTarget::Instance(instance.clone()),
            // EC2 answers this for an instance with several interfaces, in words that are not
            // stable. For an instance that is gone the next call fails the same way.
            Err(ProviderError::NotReady(_)) => by_interface(api, instance, address).await?,
            Err(error) => return Err(error),
        };
        self.known().insert(instance.clone(), target.clone());
        Ok(target)
    }

    pub(super) fn forget(&self, instance: &str) {
        self.known().remove(instance);
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<SharedStr, RouteTarget>> {
        self.0.lock()
    }
}

async fn by_interface(
    api: &Api,
    id: &SharedStr,
    address: Option<IpAddr>,
) -> Result<RouteTarget, ProviderError> {
    let form = Form::default().with("InstanceId.1", id);
    let found = instance::describe(api, form).await?;
    let interfaces = found.first().map(|one| one.interfaces.items.as_slice());
    let interface = choose(interfaces.unwrap_or_default(), address);
    let none = || ProviderError::NotReady("instance has no network interface".into());
    let interface = SharedStr::new(&interface.ok_or_else(none)?.id);
    let form = Form::default()
        .with("NetworkInterfaceId", &interface)
        .with("SourceDestCheck.Value", "false");
    api.change(Operation::ModifyNetworkInterfaceAttribute, form)
        .await?;
    Ok(RouteTarget::Interface(interface))
}

/// The interface with the node's address, otherwise the one with the lowest device index.
fn choose(interfaces: &[wire::Interface], address: Option<IpAddr>) -> Option<&wire::Interface> {
    let has = |interface: &&wire::Interface| {
        address.is_some_and(|address| interface.addresses().any(|own| own == address))
    };
    let order =
        |interface: &&wire::Interface| interface.attachment.device_index.unwrap_or(u32::MAX);
    let named = interfaces.iter().find(has);
    named.or_else(|| interfaces.iter().min_by_key(order))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interfaces() -> Vec<wire::Interface> {
        let text = "<networkInterfaceSet>\
            <item><networkInterfaceId>eni-b</networkInterfaceId>\
            <privateIpAddress>10.0.0.2</privateIpAddress>\
            <ipv6AddressesSet><item><ipv6Address>fd00::2</ipv6Address></item></ipv6AddressesSet>\
            <attachment><deviceIndex>1</deviceIndex></attachment></item>\
            <item><networkInterfaceId>eni-a</networkInterfaceId>\
            <privateIpAddress>10.0.0.1</privateIpAddress>\
            <attachment><deviceIndex>0</deviceIndex></attachment></item>\
            </networkInterfaceSet>";
        let items: wire::Items<wire::Interface> = quick_xml::de::from_str(text).unwrap();
        items.items
    }

    #[test]
    fn the_interface_with_the_nodes_address_is_chosen_and_otherwise_the_first_device() {
        let interfaces = interfaces();
        let chosen = |address: Option<&str>| {
            let address = address.map(|text| text.parse().unwrap());
            choose(&interfaces, address).unwrap().id.as_str()
        };
        assert_eq!(chosen(Some("10.0.0.2")), "eni-b");
        assert_eq!(chosen(Some("fd00::2")), "eni-b");
        assert_eq!(chosen(Some("10.0.0.9")), "eni-a");
        assert_eq!(chosen(None), "eni-a");
        assert!(choose(&[], None).is_none());
    }
}
