//! Rules of Services: defaulting, validation, and allocation of cluster IPs and node ports.

mod allocator;
mod validation;

use serde_json::{Value, json};

pub(crate) use allocator::{Allocator, release};
pub(super) use validation::validate;

use super::WriteScope;
use crate::{
    meta::{Meta as _, copy_member, default_to, object_mut},
    options::DryRun,
    status::{ApiError, Outcome},
    store::Object,
};

const HEADLESS: &str = "None";

/// Accessors of a Service's spec.
struct View<'a>(&'a Object);

impl View<'_> {
    fn text(&self, name: &str) -> &str {
        self.0
            .at(&["spec", name])
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    fn kind(&self) -> &str {
        match self.text("type") {
            "" => "ClusterIP",
            kind => kind,
        }
    }

    fn is_headless(&self) -> bool {
        self.text("clusterIP") == HEADLESS
    }

    fn has_node_ports(&self) -> bool {
        match self.kind() {
            "NodePort" => true,
            "LoadBalancer" => {
                self.0.at(&["spec", "allocateLoadBalancerNodePorts"]) != Some(&json!(false))
            }
            _ => false,
        }
    }

    fn needs_health_port(&self) -> bool {
        self.kind() == "LoadBalancer" && self.text("externalTrafficPolicy") == "Local"
    }

    /// True when traffic from outside of the cluster can reach it.
    fn is_external(&self) -> bool {
        match self.kind() {
            "NodePort" | "LoadBalancer" => true,
            "ClusterIP" => !self.list(&["spec", "externalIPs"]).is_empty(),
            _ => false,
        }
    }

    fn ports(&self) -> &[Value] {
        self.list(&["spec", "ports"])
    }

    fn list(&self, path: &[&str]) -> &[Value] {
        let list = self.0.at(path).and_then(Value::as_array);
        list.map_or(&[], Vec::as_slice)
    }
}

/// Defaulting of a new or changed Service.
pub(super) fn prepare(scope: &WriteScope<'_>, object: &mut Object, old: Option<&Object>) {
    if let Some(old) = old {
        keep_allocated(object, old);
    }
    let spec = object_mut(object, "spec");
    default_to(spec, "type", "ClusterIP");
    default_to(spec, "sessionAffinity", "None");
    if spec.get("sessionAffinity") == Some(&json!("ClientIP")) {
        default_to(
            spec,
            "sessionAffinityConfig",
            json!({"clientIP": {"timeoutSeconds": 10_800}}),
        );
    } else {
        spec.remove("sessionAffinityConfig");
    }
    for port in ports_mut(spec) {
        default_to(port, "protocol", "TCP");
        let number = port.get("port").cloned().unwrap_or_default();
        if port
            .get("targetPort")
            .is_none_or(|target| target == &json!(0) || target == &json!(""))
        {
            port.insert("targetPort".into(), number);
        }
    }
    let kind = spec
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let external = matches!(kind.as_str(), "NodePort" | "LoadBalancer");
    let external_ips = spec
        .get("externalIPs")
        .and_then(Value::as_array)
        .is_some_and(|l| !l.is_empty());
    if external || external_ips {
        default_to(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default_to(spec, "allocateLoadBalancerNodePorts", true);
    }
    if kind == "ExternalName" {
        for name in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            spec.remove(name);
        }
    } else {
        default_to(spec, "internalTrafficPolicy", "Cluster");
        default_families(scope, spec);
    }
    let close = spec.get("trafficDistribution") == Some(&json!("PreferClose"));
    if let Some(context) = scope.context {
        if external_ips {
            let text =
                "spec.externalIPs is deprecated and may no longer be implemented in some clusters";
            context.warn(text);
        }
        if close {
            let text = "spec.trafficDistribution: \"PreferClose\" is deprecated; use \
                        \"PreferSameZone\"";
            context.warn(text);
        }
    }
    default_status(object);
}

fn default_status(object: &mut Object) {
    if View(object).kind() != "LoadBalancer" {
        return;
    }
    let ingress = object
        .get_mut("status")
        .and_then(|status| status.pointer_mut("/loadBalancer/ingress"))
        .and_then(Value::as_array_mut);
    for entry in ingress.into_iter().flatten() {
        if let Value::Object(entry) = entry
            && entry.contains_key("ip")
        {
            default_to(entry, "ipMode", "VIP");
        }
    }
}

fn ports_mut(spec: &mut Object) -> impl Iterator<Item = &mut Object> {
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
    ports.into_iter().flatten().filter_map(Value::as_object_mut)
}

fn default_families(scope: &WriteScope<'_>, spec: &mut Object) {
    let families = scope.api.allocator.families();
    let headless = spec.get("clusterIP") == Some(&json!(HEADLESS));
    let selector = spec
        .get("selector")
        .and_then(Value::as_object)
        .is_some_and(|s| !s.is_empty());
    if headless && !selector && !spec.contains_key("ipFamilyPolicy") {
        // Without a selector the endpoints may be of either family, independent of the cluster.
        spec.insert("ipFamilyPolicy".into(), "RequireDualStack".into());
        let both = if families.first() == Some(&"IPv6") {
            ["IPv6", "IPv4"]
        } else {
            ["IPv4", "IPv6"]
        };
        spec.insert("ipFamilies".into(), json!(both));
        return;
    }
    let said: Vec<String> = spec
        .get("ipFamilies")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|family| Some(family.as_str()?.to_owned()))
        .collect();
    let default_policy = if said.len() > 1 {
        "RequireDualStack"
    } else {
        "SingleStack"
    };
    default_to(spec, "ipFamilyPolicy", default_policy);
    let dual = spec.get("ipFamilyPolicy") != Some(&json!("SingleStack"));
    let mut chosen = said;
    if chosen.is_empty()
        && let Some(address) = spec.get("clusterIP").and_then(Value::as_str)
        && let Ok(address) = address.parse::<std::net::IpAddr>()
    {
        chosen.push(if address.is_ipv6() { "IPv6" } else { "IPv4" }.to_owned());
    }
    for family in families {
        let wanted = chosen.is_empty() || dual;
        if wanted && !chosen.iter().any(|known| known == family) {
            chosen.push((*family).to_owned());
        }
    }
    spec.insert("ipFamilies".into(), chosen.into());
}

/// Keeps allocated addresses and ports, unless the new type does not use them.
fn keep_allocated(object: &mut Object, old: &Object) {
    let (old_kind, new_kind) = (View(old).kind().to_owned(), View(object).kind().to_owned());
    let Some(old_spec) = old.get("spec").and_then(Value::as_object) else {
        return;
    };
    let cleared_status = old_kind == "LoadBalancer" && new_kind != "LoadBalancer";
    let no_longer_external = View(old).is_external() && !View(object).is_external();
    let needs_health_port = View(object).needs_health_port();
    let spec = object_mut(object, "spec");
    if new_kind != "ExternalName" && old_kind != "ExternalName" {
        let said = spec
            .get("clusterIP")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let old_ip = old_spec
            .get("clusterIP")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if said.is_empty() {
            copy_member(old_spec, spec, "clusterIP");
            copy_member(old_spec, spec, "clusterIPs");
        } else if said != old_ip && spec.get("clusterIPs") == old_spec.get("clusterIPs") {
            spec.insert("clusterIPs".into(), json!([said]));
        }
        for name in ["ipFamilies", "ipFamilyPolicy"] {
            if !spec.contains_key(name) {
                copy_member(old_spec, spec, name);
            }
        }
    }
    let keeps_ports = matches!(new_kind.as_str(), "NodePort" | "LoadBalancer");
    let old_ports = old_spec
        .get("ports")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    for port in ports_mut(spec) {
        let same = |known: &&Value| {
            let protocol = port
                .get("protocol")
                .cloned()
                .unwrap_or_else(|| json!("TCP"));
            known.get("port") == port.get("port") && known.get("protocol") == Some(&protocol)
        };
        let allocated = old_ports
            .iter()
            .find(same)
            .and_then(|known| known.get("nodePort"))
            .cloned();
        if keeps_ports && !port.contains_key("nodePort") {
            if let Some(allocated) = allocated {
                port.insert("nodePort".into(), allocated);
            }
        } else if !keeps_ports && allocated.is_some() && port.get("nodePort") == allocated.as_ref()
        {
            port.remove("nodePort");
        }
    }
    // Fields that only the old type used are dropped unless the update changes them.
    let mut useless = Vec::new();
    if no_longer_external {
        useless.push("externalTrafficPolicy");
    }
    if cleared_status {
        useless.extend(["allocateLoadBalancerNodePorts", "loadBalancerClass"]);
    }
    if needs_health_port && !spec.contains_key("healthCheckNodePort") {
        copy_member(old_spec, spec, "healthCheckNodePort");
    } else if !needs_health_port {
        useless.push("healthCheckNodePort");
    }
    for name in useless {
        if spec.get(name) == old_spec.get(name) {
            spec.remove(name);
        }
    }
    if cleared_status {
        object.insert("status".into(), json!({"loadBalancer": {}}));
    }
}

/// Allocates addresses and ports; after an error nothing is allocated.
pub(super) fn commit(
    scope: &WriteScope<'_>,
    old: Option<&Object>,
    object: &mut Object,
    dry_run: DryRun,
) -> Outcome<()> {
    let claims = allocator::claim(scope, old, object)
        .map_err(|error| ApiError::invalid(scope.kind, object.name(), &[error]))?;
    if dry_run == DryRun::No {
        allocator::settle(scope, old, object, &claims);
    }
    Ok(())
}
