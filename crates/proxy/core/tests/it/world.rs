//! Builders for test objects.

use std::sync::Arc;

use serde_json::{Value, json};
use weft_model::{IpFamily, ObjectKey};
use weft_proxy::{Model, NodeFacts, Problem, Service, ServicePort, objects::Object};

pub(crate) fn model(family: IpFamily) -> Model {
    Model::new(
        family,
        NodeFacts {
            name: "here".into(),
            zone: Some("zone-a".into()),
        },
    )
}

pub(crate) fn key() -> ObjectKey {
    ObjectKey::namespaced("shop", "cart")
}

/// The Service `shop/cart` with the given fields over a plain ClusterIP Service.
pub(crate) fn service(spec: &Value, ingress: &Value) -> Value {
    let mut object = json!({"kind": "Service", "metadata": {"namespace": "shop", "name": "cart"},
        "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
                 "ipFamilies": ["IPv4"], "ports": [{"name": "http", "port": 80}]},
        "status": {"loadBalancer": {"ingress": ingress}}});
    for (field, value) in spec.as_object().unwrap() {
        object["spec"][field] = value.clone();
    }
    object
}

/// A slice of `shop/cart` with port `http` 8080.
pub(crate) fn slice(name: &str, endpoints: &Value) -> Value {
    json!({"kind": "EndpointSlice",
        "metadata": {"namespace": "shop", "name": name,
                     "labels": {"kubernetes.io/service-name": "cart"}},
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]})
}

pub(crate) fn set(model: &mut Model, object: &Value) -> Vec<Problem> {
    model.set(&Object::decode(object).unwrap().unwrap())
}

/// The Service as it is after these objects, if it is there.
pub(crate) fn derive(family: IpFamily, objects: &[Value]) -> Option<Arc<Service>> {
    let mut model = model(family);
    for object in objects {
        set(&mut model, object);
    }
    model.take_changes().remove(&key()).flatten()
}

/// The only port of a Service that is there.
pub(crate) fn port(objects: &[Value]) -> ServicePort {
    derive(IpFamily::V4, objects).unwrap().ports[0].clone()
}

pub(crate) fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}
