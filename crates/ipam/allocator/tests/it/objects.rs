//! The definitions in `deploy/crds` match the Rust types.

use http::Method;
use kube::Client;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use weft_ipam::objects::{ClusterSubnetState, IpPool, IpPoolShard, NodeNetworkConfig};

use weft_testserver::{call, path, server};

/// Posts an object with every field, writes its status, and reads it back as the type.
async fn round_trip<T: Serialize + DeserializeOwned>(
    client: &Client,
    (plural, kind): (&str, &str),
    object: &Value,
) {
    let typed: T = serde_json::from_value(object.clone()).unwrap();
    let mut written = serde_json::to_value(&typed).unwrap();
    let parts = ["spec", "status"].map(|part| (part, object[part].clone()));
    for (part, value) in &parts {
        let again = written.get(*part).cloned().unwrap_or_default();
        assert_eq!(again, *value, "{kind}: the type knows all of its {part}");
    }
    written["apiVersion"] = json!("ipam.weft.dev/v1alpha1");
    written["kind"] = json!(kind);
    let strict = format!("{}?fieldValidation=Strict", path(plural, ""));
    call(client, Method::POST, &strict, &written).await.unwrap();
    if !object["status"].is_null() {
        let name = written["metadata"]["name"].as_str().unwrap();
        let status = format!("{}/status", path(plural, name));
        let patch = json!({"status": object["status"]});
        call(client, Method::PATCH, &status, &patch).await.unwrap();
    }
    let one = path(plural, "full");
    let read = call(client, Method::GET, &one, &Value::Null).await.unwrap();
    for (part, value) in parts {
        let stored = read.get(part).cloned().unwrap_or_default();
        assert_eq!(stored, value, "{kind}: nothing of its {part} is pruned");
    }
}

fn claim() -> Value {
    json!({"id": "a-1", "node": "n", "nodeUID": "u", "configUID": "c", "version": 3,
        "cooldownUntil": 1_700_000_000_000_u64})
}

#[tokio::test]
async fn every_field_of_every_kind_is_in_its_definition() {
    let server = server().await;
    let client = server.client();
    let container = json!({
        "id": "i", "assignmentMode": "static", "type": "overlay", "primaryIP": "10.0.0.4",
        "primaryIPV6": "fd00::4", "subnetName": "s", "subnetAddressSpace": "10.0.0.0/16",
        "subnetAddressSpaceV6": "fd00::/64",
        "ipAssignments": [{"name": "a", "ip": "10.0.0.16/28"}, {"name": "b", "ip": "10.0.0.9"}],
        "defaultGateway": "10.0.0.1", "defaultGatewayV6": "fd00::1", "macAddress": "m",
        "version": 7, "nodeIP": "10.1.0.1", "subcriptionID": "a", "resourceGroupID": "b",
        "vnetID": "c", "subnetID": "d", "status": "NCUpdateSuccess",
    });
    let scaler = json!({"batchSize": 16, "requestThresholdPercent": 50,
        "releaseThresholdPercent": 150, "maxIPCount": 250});
    let config = json!({
        "metadata": {"name": "full", "namespace": "kube-system"},
        "spec": {"requestedIPCount": 32, "demandIPCount": 20, "ipsNotInUse": ["a"],
            "availabilityZone": 2},
        "status": {"assignedIPCount": 17, "status": "Updated", "scaler": scaler,
            "networkContainers": [container]},
    });
    let kind = ("nodenetworkconfigs", "NodeNetworkConfig");
    round_trip::<NodeNetworkConfig>(&client, kind, &config).await;
    let pool = json!({
        "metadata": {"name": "full"},
        "spec": {"cidrs": ["10.0.0.0/16", "fd00::/64"], "gateway": "10.0.0.1",
            "gatewayV6": "fd00::1", "reserved": ["10.0.0.2", "10.0.1.0/24"], "blockPrefixV4": 27,
            "blockPrefixV6": 123, "nodeSelector": {"a": "b"}, "disabled": true, "scaler": scaler,
            "cooldownSeconds": 5, "nodeCIDRs": false,
            "exhaustion": {"enterFreePercent": 5, "leaveFreePercent": 7}},
        "status": {"total": 9, "free": 3, "claimed": 4, "cooldown": 2, "exhausted": true,
            "observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True",
            "reason": "Served", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
    });
    round_trip::<IpPool>(&client, ("ippools", "IPPool"), &pool).await;
    let shard = json!({
        "metadata": {"name": "full"},
        "spec": {"pool": "p", "range": "10.0.0.0/20", "blockPrefix": 28, "sequence": 12,
            "blocks": {"0": {"whole": claim()}, "7": {"split": {"3": claim()}}}},
    });
    round_trip::<IpPoolShard>(&client, ("ippoolshards", "IPPoolShard"), &shard).await;
    let state = json!({
        "metadata": {"name": "full", "namespace": "kube-system"},
        "status": {"exhausted": true, "timestamp": "2026-01-01T00:00:00Z"},
    });
    let kind = ("clustersubnetstates", "ClusterSubnetState");
    round_trip::<ClusterSubnetState>(&client, kind, &state).await;
}

#[tokio::test]
async fn an_invalid_pool_is_refused() {
    let server = server().await;
    let client = server.client();
    for (spec, complaint) in [
        (json!({"cidrs": ["10.0.0.1/16"]}), "without host bits"),
        (json!({"cidrs": ["10.0.0.0/33"]}), "without host bits"),
        (json!({"cidrs": ["10.0.0.0/16", "10.0.1.0/24"]}), "overlap"),
        (json!({}), "either cidrs or nodeCIDRs"),
        (json!({"cidrs": []}), "either cidrs or nodeCIDRs"),
        (
            json!({"cidrs": ["10.0.0.0/16"], "nodeCIDRs": true}),
            "either",
        ),
        (
            json!({"nodeCIDRs": true, "gateway": "fd00::1"}),
            "IPv4 address",
        ),
        (
            json!({"nodeCIDRs": true, "reserved": ["x"]}),
            "an address or a CIDR",
        ),
        (
            json!({"nodeCIDRs": true, "blockPrefixV4": 8}),
            "greater than or equal to 20",
        ),
        (
            json!({"nodeCIDRs": true, "scaler": {"batchSize": 0}}),
            "greater than or equal to 1",
        ),
        (
            json!({"nodeCIDRs": true, "cooldownSeconds": -1}),
            "greater than or equal to 0",
        ),
        (
            json!({"nodeCIDRs": true, "exhaustion": {"enterFreePercent": 50}}),
            "enterFreePercent must not",
        ),
    ] {
        let pool = json!({"apiVersion": "ipam.weft.dev/v1alpha1", "kind": "IPPool",
            "metadata": {"name": "p"}, "spec": spec});
        let made = call(&client, Method::POST, &path("ippools", ""), &pool).await;
        let error = made.expect_err(&spec.to_string()).to_string();
        assert!(error.contains(complaint), "{spec}: {error}");
    }
}

#[tokio::test]
async fn ranges_with_claims_can_only_be_added_to() {
    let server = server().await;
    let client = server.client();
    let pool = json!({"apiVersion": "ipam.weft.dev/v1alpha1", "kind": "IPPool",
        "metadata": {"name": "p"}, "spec": {"cidrs": ["10.0.0.0/16"]}});
    let one = path("ippools", "p");
    call(&client, Method::POST, &path("ippools", ""), &pool)
        .await
        .unwrap();
    let set = async |cidrs: &[&str]| {
        let patch = json!({"spec": {"cidrs": cidrs}});
        call(&client, Method::PATCH, &one, &patch).await
    };
    set(&["10.1.0.0/16"]).await.unwrap();
    let status = json!({"status": {"claimed": 1}});
    let path = format!("{one}/status");
    call(&client, Method::PATCH, &path, &status).await.unwrap();
    let error = set(&["10.2.0.0/16"]).await.unwrap_err().to_string();
    assert!(error.contains("can only be added to"), "{error}");
    set(&["10.1.0.0/16", "10.2.0.0/16"]).await.unwrap();
    let blocks = json!({"spec": {"blockPrefixV4": 27}});
    let error = call(&client, Method::PATCH, &one, &blocks)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("cannot be changed"), "{error}");
}
