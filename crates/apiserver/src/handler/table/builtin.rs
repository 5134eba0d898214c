//! Table columns and cells of the built-in kinds.

use serde_json::{Value, json};
use weft_model::LabelSelector;

use super::{Column, age};
use crate::{api::Api, kind::ResourceType, meta::Meta as _, store::Object};

const NONE: &str = "<none>";
const UNKNOWN: &str = "<unknown>";

/// Column names of a kind; those after the bar are for `-o wide`.
fn layout(kind: &ResourceType) -> &'static str {
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Pod") => "Name,Ready,Status,Restarts,Age|IP,Node,Nominated Node,Readiness Gates",
        ("", "Node") => {
            "Name,Status,Roles,Age,Version|Internal-IP,External-IP,OS-Image,Kernel-Version,\
             Container-Runtime"
        }
        ("", "Service") => "Name,Type,Cluster-IP,External-IP,Port(s),Age|Selector",
        ("", "Endpoints") => "Name,Endpoints,Age|",
        ("", "Namespace") => "Name,Status,Age|",
        ("", "ConfigMap") => "Name,Data,Age|",
        ("", "Secret") => "Name,Type,Data,Age|",
        ("", "ServiceAccount") => "Name,Secrets,Age|",
        ("discovery.k8s.io", "EndpointSlice") => "Name,AddressType,Ports,Endpoints,Age|",
        ("coordination.k8s.io", "Lease") => "Name,Holder,Age|",
        ("networking.k8s.io", "NetworkPolicy") => "Name,Pod-Selector,Age|",
        ("networking.k8s.io", "ServiceCIDR") => "Name,CIDRs,Age|",
        ("networking.k8s.io", "IPAddress") => "Name,ParentRef,Age|",
        ("apps", "Deployment") => "Name,Ready,Up-to-date,Available,Age|Containers,Images,Selector",
        ("apps", "ReplicaSet") | ("", "ReplicationController") => {
            "Name,Desired,Current,Ready,Age|Containers,Images,Selector"
        }
        ("apps", "StatefulSet") => "Name,Ready,Age|Containers,Images",
        ("apps", "DaemonSet") => {
            "Name,Desired,Current,Ready,Up-to-date,Available,Node Selector,Age|Containers,Images,\
             Selector"
        }
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            "Name,Role,Age|Users,Groups,ServiceAccounts"
        }
        ("" | "events.k8s.io", "Event") => {
            "Last Seen,Type,Reason,Object,-Subobject,-Source,Message,-First Seen,-Count,-Name|"
        }
        _ => "Name,Created At|",
    }
}

pub(super) fn columns(kind: &ResourceType) -> Vec<Column> {
    let (shown, wide) = layout(kind).split_once('|').unwrap_or_default();
    let shown = shown.split(',').map(|name| match name.strip_prefix('-') {
        Some(name) => Column::new(name, 1),
        None => Column::new(name, 0),
    });
    let wide = wide
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| Column::new(name, 1));
    shown.chain(wide).collect()
}

pub(super) fn cells(api: &Api, kind: &ResourceType, object: &Object) -> Vec<Value> {
    let view = Row { api, object };
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Pod") => view.pod(),
        ("", "Node") => view.node(),
        ("", "Service") => view.service(),
        ("" | "events.k8s.io", "Event") => view.event(kind.group.is_empty()),
        ("apps", "DaemonSet") => view.daemon_set(),
        ("apps", "Deployment") => view.deployment(),
        ("apps", "StatefulSet") => {
            let ready = format!(
                "{}/{}",
                view.count("/status/readyReplicas"),
                view.count("/spec/replicas")
            );
            let mut cells = vec![view.name(), ready.into(), view.age()];
            cells.extend(view.containers());
            cells
        }
        ("apps", "ReplicaSet") | ("", "ReplicationController") => {
            let mut cells = vec![
                view.name(),
                view.count("/spec/replicas").into(),
                view.count("/status/replicas").into(),
                view.count("/status/readyReplicas").into(),
                view.age(),
            ];
            cells.extend(view.containers());
            cells.push(view.selector("/spec/selector"));
            cells
        }
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => view.binding(),
        (group, name) => view.simple(group, name),
    }
}

/// Reads the cells of one object.
struct Row<'a> {
    api: &'a Api,
    object: &'a Object,
}

impl Row<'_> {
    fn get(&self, pointer: &str) -> Option<&Value> {
        let mut parts = pointer.split('/').skip(1);
        let first = self.object.get(parts.next()?)?;
        parts.try_fold(first, |value, part| value.get(part))
    }

    fn text(&self, pointer: &str) -> &str {
        self.get(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    fn text_or(&self, pointer: &str, absent: &str) -> Value {
        match self.text(pointer) {
            "" => absent.into(),
            text => text.into(),
        }
    }

    fn list(&self, pointer: &str) -> &[Value] {
        self.get(pointer)
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice)
    }

    fn count(&self, pointer: &str) -> i64 {
        self.get(pointer).and_then(Value::as_i64).unwrap_or(0)
    }

    fn members(&self, name: &str) -> usize {
        self.object
            .get(name)
            .and_then(Value::as_object)
            .map_or(0, serde_json::Map::len)
    }

    fn name(&self) -> Value {
        self.object.name().into()
    }

    fn age(&self) -> Value {
        age(self.api, self.object.meta_text("creationTimestamp"))
    }

    fn selector(&self, pointer: &str) -> Value {
        let selector = self.get(pointer);
        let labels = selector
            .and_then(|s| s.get("matchLabels"))
            .or(selector)
            .and_then(Value::as_object);
        let pairs = labels.into_iter().flatten();
        let pairs = pairs.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)));
        match LabelSelector::equalities(pairs).to_string() {
            text if text.is_empty() => NONE.into(),
            text => text.into(),
        }
    }

    fn containers(&self) -> Vec<Value> {
        let field = |name: &str| {
            let containers = self.list("/spec/template/spec/containers").iter();
            let texts = containers.filter_map(|container| container.get(name)?.as_str());
            Value::String(texts.collect::<Vec<_>>().join(","))
        };
        vec![field("name"), field("image")]
    }

    fn simple(&self, group: &str, kind: &str) -> Vec<Value> {
        let middle: Vec<Value> = match (group, kind) {
            ("", "Namespace") => vec![self.text("/status/phase").into()],
            ("", "ConfigMap") => vec![(self.members("data") + self.members("binaryData")).into()],
            ("", "Secret") => vec![self.text("/type").into(), self.members("data").into()],
            ("", "ServiceAccount") => vec![self.list("/secrets").len().into()],
            ("", "Endpoints") => vec![self.subsets()],
            ("discovery.k8s.io", "EndpointSlice") => {
                vec![
                    self.text("/addressType").into(),
                    self.slice_ports(),
                    self.slice_endpoints(),
                ]
            }
            ("coordination.k8s.io", "Lease") => vec![self.text("/spec/holderIdentity").into()],
            ("networking.k8s.io", "NetworkPolicy") => vec![self.selector("/spec/podSelector")],
            ("networking.k8s.io", "ServiceCIDR") => {
                let cidrs: Vec<&str> = self
                    .list("/spec/cidrs")
                    .iter()
                    .filter_map(Value::as_str)
                    .collect();
                vec![cidrs.join(",").into()]
            }
            ("networking.k8s.io", "IPAddress") => {
                let part = |name: &str| self.text(&format!("/spec/parentRef/{name}"));
                let reference = [part("resource"), part("namespace"), part("name")].join("/");
                vec![reference.into()]
            }
            _ => {
                return vec![
                    self.name(),
                    self.object.meta_text("creationTimestamp").into(),
                ];
            }
        };
        std::iter::once(self.name())
            .chain(middle)
            .chain([self.age()])
            .collect()
    }

    fn pod(&self) -> Vec<Value> {
        let statuses = self.list("/status/containerStatuses");
        let ready = statuses
            .iter()
            .filter(|s| s.get("ready") == Some(&json!(true)))
            .count();
        let restarts: i64 = statuses
            .iter()
            .filter_map(|s| s.get("restartCount")?.as_i64())
            .sum();
        let waiting = statuses.iter().find_map(|status| {
            let state = status.get("state")?;
            let part = state.get("waiting").or_else(|| state.get("terminated"))?;
            part.get("reason")?.as_str()
        });
        let status = match (
            self.object.is_deleting(),
            waiting,
            self.text("/status/reason"),
        ) {
            (true, ..) => "Terminating",
            (_, Some(reason), _) => reason,
            (_, _, "") => self.text("/status/phase"),
            (_, _, reason) => reason,
        };
        let total = self.list("/spec/containers").len();
        vec![
            self.name(),
            format!("{ready}/{total}").into(),
            status.into(),
            restarts.to_string().into(),
            self.age(),
            self.text_or("/status/podIP", NONE),
            self.text_or("/spec/nodeName", NONE),
            self.text_or("/status/nominatedNodeName", NONE),
            match self.list("/spec/readinessGates").len() {
                0 => NONE.into(),
                gates => format!("0/{gates}").into(),
            },
        ]
    }

    fn node(&self) -> Vec<Value> {
        let conditions = self.list("/status/conditions");
        let ready = conditions
            .iter()
            .find(|c| c.get("type") == Some(&json!("Ready")));
        let mut status = match ready.and_then(|c| c.get("status")?.as_str()) {
            Some("True") => "Ready".to_owned(),
            Some(_) => "NotReady".to_owned(),
            None => "Unknown".to_owned(),
        };
        if self.get("/spec/unschedulable") == Some(&json!(true)) {
            status.push_str(",SchedulingDisabled");
        }
        let labels = self.get("/metadata/labels").and_then(Value::as_object);
        let roles: Vec<&str> = labels
            .into_iter()
            .flatten()
            .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"))
            .filter(|role| !role.is_empty())
            .collect();
        let address = |kind: &str| {
            let addresses = self.list("/status/addresses");
            let found = addresses
                .iter()
                .find(|a| a.get("type") == Some(&json!(kind)));
            found
                .and_then(|a| a.get("address"))
                .cloned()
                .unwrap_or_else(|| NONE.into())
        };
        vec![
            self.name(),
            status.into(),
            if roles.is_empty() {
                NONE.into()
            } else {
                roles.join(",").into()
            },
            self.age(),
            self.text("/status/nodeInfo/kubeletVersion").into(),
            address("InternalIP"),
            address("ExternalIP"),
            self.text_or("/status/nodeInfo/osImage", UNKNOWN),
            self.text_or("/status/nodeInfo/kernelVersion", UNKNOWN),
            self.text_or("/status/nodeInfo/containerRuntimeVersion", UNKNOWN),
        ]
    }

    fn service(&self) -> Vec<Value> {
        let ports: Vec<String> = self
            .list("/spec/ports")
            .iter()
            .map(|port| {
                let number = |name: &str| port.get(name).and_then(Value::as_i64).unwrap_or(0);
                let protocol = port
                    .get("protocol")
                    .and_then(Value::as_str)
                    .unwrap_or("TCP");
                match number("nodePort") {
                    0 => format!("{}/{protocol}", number("port")),
                    node => format!("{}:{node}/{protocol}", number("port")),
                }
            })
            .collect();
        vec![
            self.name(),
            self.text("/spec/type").into(),
            self.text_or("/spec/clusterIP", NONE),
            self.external_address(),
            if ports.is_empty() {
                NONE.into()
            } else {
                ports.join(",").into()
            },
            self.age(),
            self.selector("/spec/selector"),
        ]
    }

    fn external_address(&self) -> Value {
        let mut addresses: Vec<&str> = self
            .list("/spec/externalIPs")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        match self.text("/spec/type") {
            "ExternalName" => return self.text("/spec/externalName").into(),
            "LoadBalancer" => {
                let ingress = self.list("/status/loadBalancer/ingress").iter();
                let named = ingress.filter_map(|entry| {
                    entry.get("ip").or_else(|| entry.get("hostname"))?.as_str()
                });
                addresses.splice(0..0, named);
                if addresses.is_empty() {
                    return "<pending>".into();
                }
            }
            _ if addresses.is_empty() => return NONE.into(),
            _ => {}
        }
        addresses.join(",").into()
    }

    fn slice_ports(&self) -> Value {
        let ports: Vec<String> = self
            .list("/ports")
            .iter()
            .map(|port| {
                port.get("port")
                    .map_or_else(|| "*".to_owned(), ToString::to_string)
            })
            .collect();
        shortened(&ports, "<unset>")
    }

    fn slice_endpoints(&self) -> Value {
        let addresses: Vec<String> = self
            .list("/endpoints")
            .iter()
            .flat_map(|endpoint| {
                endpoint
                    .get("addresses")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
            })
            .filter_map(|address| Some(address.as_str()?.to_owned()))
            .collect();
        shortened(&addresses, "<unset>")
    }

    fn subsets(&self) -> Value {
        let mut all = Vec::new();
        for subset in self.list("/subsets") {
            let list = |name: &str| {
                subset
                    .get(name)
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
            };
            for address in list("addresses").filter_map(|address| address.get("ip")?.as_str()) {
                let ports = list("ports").filter_map(|port| port.get("port"));
                all.extend(ports.map(|port| format!("{address}:{port}")));
            }
        }
        shortened(&all, NONE)
    }

    fn deployment(&self) -> Vec<Value> {
        let ready = format!(
            "{}/{}",
            self.count("/status/readyReplicas"),
            self.count("/spec/replicas")
        );
        let mut cells = vec![
            self.name(),
            ready.into(),
            self.count("/status/updatedReplicas").into(),
            self.count("/status/availableReplicas").into(),
            self.age(),
        ];
        cells.extend(self.containers());
        cells.push(self.selector("/spec/selector"));
        cells
    }

    fn daemon_set(&self) -> Vec<Value> {
        let mut cells = vec![
            self.name(),
            self.count("/status/desiredNumberScheduled").into(),
            self.count("/status/currentNumberScheduled").into(),
            self.count("/status/numberReady").into(),
            self.count("/status/updatedNumberScheduled").into(),
            self.count("/status/numberAvailable").into(),
            self.selector("/spec/template/spec/nodeSelector"),
            self.age(),
        ];
        cells.extend(self.containers());
        cells.push(self.selector("/spec/selector"));
        cells
    }

    fn binding(&self) -> Vec<Value> {
        let subjects = |kind: &str| {
            let all = self.list("/subjects").iter();
            let named = all.filter(|subject| subject.get("kind") == Some(&json!(kind)));
            let text = |subject: &Value| {
                let part = |name: &str| {
                    subject
                        .get(name)
                        .and_then(Value::as_str)
                        .unwrap_or_default()
                };
                match kind {
                    "ServiceAccount" => format!("{}/{}", part("namespace"), part("name")),
                    _ => part("name").to_owned(),
                }
            };
            Value::String(named.map(text).collect::<Vec<_>>().join(", "))
        };
        let role = format!(
            "{}/{}",
            self.text("/roleRef/kind"),
            self.text("/roleRef/name")
        );
        vec![
            self.name(),
            role.into(),
            self.age(),
            subjects("User"),
            subjects("Group"),
            subjects("ServiceAccount"),
        ]
    }

    fn event(&self, core: bool) -> Vec<Value> {
        let name = |core_name: &'static str, events_name: &'static str| {
            if core { core_name } else { events_name }
        };
        let object = name("/involvedObject", "/regarding");
        let part = |field: &str| self.text(&format!("{object}/{field}"));
        let first = self.text(name("/firstTimestamp", "/deprecatedFirstTimestamp"));
        let last = self.text(name("/lastTimestamp", "/deprecatedLastTimestamp"));
        let when = self.text("/eventTime");
        let seen = |time: &str| age(self.api, if time.is_empty() { when } else { time });
        let source = match self.text(name("/source/component", "/deprecatedSource/component")) {
            "" => self.text(name("/reportingComponent", "/reportingController")),
            source => source,
        };
        vec![
            seen(last),
            self.text("/type").into(),
            self.text("/reason").into(),
            format!("{}/{}", part("kind").to_lowercase(), part("name")).into(),
            part("fieldPath").into(),
            source.into(),
            self.text(name("/message", "/note")).trim().into(),
            seen(first),
            self.count(name("/count", "/deprecatedCount")).max(1).into(),
            self.name(),
        ]
    }
}

/// The first three entries and the number of further ones.
fn shortened(list: &[String], empty: &str) -> Value {
    match list.len() {
        0 => empty.into(),
        1..=3 => list.join(",").into(),
        more => format!("{} + {} more...", list[..3].join(","), more - 3).into(),
    }
}
