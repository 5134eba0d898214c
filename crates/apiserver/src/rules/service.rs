//! Services: defaults, rules, and the addresses and ports handed out to them.

mod allocator;

use serde_json::{Value, json};

pub(crate) use allocator::{Allocator, release};

use super::Scene;
use crate::{
    meta::{Meta as _, copy_member, default_to, object_mut},
    status::{ApiError, FieldError, Outcome},
    store::Object,
};

const HEADLESS: &str = "None";

/// The parts of a Service's spec the rules turn on.
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

    fn ports(&self) -> &[Value] {
        self.0
            .at(&["spec", "ports"])
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice)
    }
}

/// Defaults of a new or changed Service.
pub(super) fn prepare(scene: &Scene<'_>, object: &mut Object, old: Option<&Object>) {
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
    for port in spec
        .get_mut("ports")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let Value::Object(port) = port else { continue };
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
        default_families(scene, spec);
    }
    if external_ips && let Some(context) = scene.context {
        let text =
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters";
        context.warn(text);
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

fn default_families(scene: &Scene<'_>, spec: &mut Object) {
    let families = scene.api.allocator.families();
    let headless = spec.get("clusterIP") == Some(&json!(HEADLESS));
    let selector = spec
        .get("selector")
        .and_then(Value::as_object)
        .is_some_and(|s| !s.is_empty());
    if headless && !selector && !spec.contains_key("ipFamilyPolicy") {
        // Whoever writes its endpoints may use either family, whatever the cluster has.
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

/// What was allocated stays, unless the new type has no use for it.
fn keep_allocated(object: &mut Object, old: &Object) {
    let (old_kind, new_kind) = (View(old).kind().to_owned(), View(object).kind().to_owned());
    let Some(old_spec) = old.get("spec").and_then(Value::as_object) else {
        return;
    };
    let cleared_status = old_kind == "LoadBalancer" && new_kind != "LoadBalancer";
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
    for port in spec
        .get_mut("ports")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let Value::Object(port) = port else { continue };
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
    if !keeps_ports && old_kind != new_kind {
        for name in [
            "externalTrafficPolicy",
            "allocateLoadBalancerNodePorts",
            "healthCheckNodePort",
            "loadBalancerClass",
        ] {
            if spec.get(name) == old_spec.get(name) {
                spec.remove(name);
            }
        }
    } else if !spec.contains_key("healthCheckNodePort") {
        copy_member(old_spec, spec, "healthCheckNodePort");
    }
    if new_kind == "NodePort" && old_kind == "LoadBalancer" {
        spec.remove("allocateLoadBalancerNodePorts");
    }
    if cleared_status {
        object.insert("status".into(), json!({"loadBalancer": {}}));
    }
}

/// Complaints about a Service.
pub(super) fn validate(
    scene: &Scene<'_>,
    object: &Object,
    old: Option<&Object>,
    errors: &mut Vec<FieldError>,
) {
    let view = View(object);
    let known = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    if !known.contains(&view.kind()) {
        errors.push(FieldError::not_supported(
            "spec.type",
            &json!(view.kind()),
            &known,
        ));
    }
    validate_ports(&view, errors);
    validate_address(&view, old, errors);
    validate_families(scene, &view, errors);
    if view.kind() == "ExternalName" && view.text("externalName").is_empty() {
        errors.push(FieldError::required("spec.externalName", ""));
    }
    let ingress = object
        .at(&["status", "loadBalancer", "ingress"])
        .and_then(Value::as_array);
    if view.kind() != "LoadBalancer" && ingress.is_some_and(|list| !list.is_empty()) {
        let text = "may only be used when `spec.type` is 'LoadBalancer'";
        errors.push(FieldError::forbidden("status.loadBalancer.ingress", text));
    }
}

fn validate_ports(view: &View<'_>, errors: &mut Vec<FieldError>) {
    let ports = view.ports();
    if ports.is_empty() && !view.is_headless() && view.kind() != "ExternalName" {
        errors.push(FieldError::required("spec.ports", ""));
    }
    let mut seen: Vec<(Value, Value)> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for (position, port) in ports.iter().enumerate() {
        let field = |name: &str| format!("spec.ports[{position}].{name}");
        let name = port.get("name").and_then(Value::as_str).unwrap_or_default();
        if name.is_empty() && ports.len() > 1 {
            errors.push(FieldError::required(field("name"), ""));
        } else if names.contains(&name) && !name.is_empty() {
            errors.push(FieldError::duplicate(field("name"), &json!(name)));
        }
        names.push(name);
        let number = port.get("port").and_then(Value::as_i64).unwrap_or(0);
        if !(1..=65_535).contains(&number) {
            let text = "must be between 1 and 65535, inclusive";
            errors.push(FieldError::invalid(field("port"), &json!(number), text));
        }
        let protocol = port.get("protocol").cloned().unwrap_or_default();
        let known = ["SCTP", "TCP", "UDP"];
        if !known.iter().any(|known| protocol == *known) {
            errors.push(FieldError::not_supported(
                field("protocol"),
                &protocol,
                &known,
            ));
        }
        if matches!(view.kind(), "ClusterIP" | "ExternalName")
            && port
                .get("nodePort")
                .and_then(Value::as_i64)
                .is_some_and(|port| port != 0)
        {
            let text = format!("may not be used when `type` is '{}'", view.kind());
            errors.push(FieldError::forbidden(field("nodePort"), &text));
        }
        let pair = (
            port.get("port").cloned().unwrap_or_default(),
            protocol.clone(),
        );
        if seen.contains(&pair) {
            let shown = format!(
                "{{\"Name\":\"\",\"Protocol\":{protocol},\"AppProtocol\":null,\"Port\":{number},\
                 \"TargetPort\":0,\"NodePort\":0}}"
            );
            errors.push(FieldError {
                field: format!("spec.ports[{position}]"),
                reason: "FieldValueDuplicate",
                message: format!("Duplicate value: {shown}"),
            });
        }
        seen.push(pair);
    }
}

fn validate_address(view: &View<'_>, old: Option<&Object>, errors: &mut Vec<FieldError>) {
    let address = view.text("clusterIP");
    if address.is_empty() || address == HEADLESS {
        return;
    }
    if address.parse::<std::net::IpAddr>().is_err() {
        let text = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        errors.push(FieldError::invalid(
            "spec.clusterIPs[0]",
            &json!(address),
            text,
        ));
        return;
    }
    let before = old
        .map(View)
        .map(|old| old.text("clusterIP").to_owned())
        .unwrap_or_default();
    if !before.is_empty() && before != address {
        let text = "may not change once set";
        errors.push(FieldError::invalid(
            "spec.clusterIPs[0]",
            &json!([address]),
            text,
        ));
    }
}

fn validate_families(scene: &Scene<'_>, view: &View<'_>, errors: &mut Vec<FieldError>) {
    let families = scene.api.allocator.families();
    if view.is_headless() || view.kind() == "ExternalName" {
        return;
    }
    if view.text("ipFamilyPolicy") == "RequireDualStack" && families.len() < 2 {
        let text = "this cluster is not configured for dual-stack services";
        let value = json!("RequireDualStack");
        errors.push(FieldError::invalid("spec.ipFamilyPolicy", &value, text));
        return;
    }
    let said = view.0.at(&["spec", "ipFamilies"]).and_then(Value::as_array);
    for (position, family) in said.into_iter().flatten().enumerate() {
        if !families.iter().any(|known| family == known) {
            let text = "not configured on this cluster";
            errors.push(FieldError::invalid(
                format!("spec.ipFamilies[{position}]"),
                family,
                text,
            ));
        }
    }
}

/// Claims addresses and ports; on refusal nothing stays claimed.
pub(super) fn commit(
    scene: &Scene<'_>,
    old: Option<&Object>,
    object: &mut Object,
    dry_run: bool,
) -> Outcome<()> {
    let claims = allocator::claim(scene, old, object)
        .map_err(|error| ApiError::invalid(scene.kind, object.name(), &[error]))?;
    if !dry_run {
        allocator::settle(scene, old, object, &claims);
    }
    Ok(())
}
