//! Encodes and decodes bodies as upstream does.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv6Addr},
};

use serde_json::{Value, from_value, json, to_value};
use weft_cns::{
    AddressFilter, AddressState, AddressesResponse, Attachment, GcRequest, IpConfigRequest,
    IpConfigsRequest, IpConfigsResponse, IpSubnet, PodContext, PodIpInfo, ReleaseIpConfigResponse,
    ReleaseIpConfigsResponse, Response, ReturnCode, Serving, StatusResponse,
};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_request_is_spelled_as_the_original_spells_it() {
    let request = IpConfigsRequest {
        desired_ip_addresses: vec![address("10.1.0.7")],
        pod_interface_id: "c1".to_owned(),
        infra_container_id: "c1".to_owned(),
        orchestrator_context: Some(PodContext {
            pod_name: "p0".to_owned(),
            pod_namespace: "default".to_owned(),
            pod_uid: None,
        }),
        ifname: "eth0".to_owned(),
        ..IpConfigsRequest::default()
    };
    let original = json!({
        "desiredIPAddresses": ["10.1.0.7"], "podInterfaceID": "c1", "infraContainerID": "c1",
        "orchestratorContext": {"podName": "p0", "podNamespace": "default"}, "ifname": "eth0",
        "secondaryInterfacesExist": false, "BackendInterfaceExist": false,
        "BacknendInterfaceMacAddress": []
    });
    assert_eq!(to_value(&request).unwrap(), original);
    assert_eq!(from_value::<IpConfigsRequest>(original).unwrap(), request);
}

#[test]
fn null_reads_like_an_absent_field() {
    let request: IpConfigsRequest = from_value(json!({
        "desiredIPAddresses": null, "podInterfaceID": "c1", "infraContainerID": null,
        "orchestratorContext": null, "ifname": "eth0", "BacknendInterfaceMacAddress": null
    }))
    .unwrap();
    assert_eq!(request.desired_ip_addresses, Vec::<IpAddr>::new());
    assert_eq!(request.orchestrator_context, None);
}

#[test]
fn a_malformed_desired_address_is_refused() {
    let answer = from_value::<IpConfigsRequest>(json!({"desiredIPAddresses": ["10.1.0"]}));
    assert!(answer.is_err());
    let answer = from_value::<IpConfigRequest>(json!({"DesiredIPAddress": "10.1.0"}));
    let message = answer.unwrap_err().to_string();
    assert!(
        message.contains("\"10.1.0\" is not an IP address"),
        "{message}"
    );
}

#[test]
fn the_older_request_becomes_the_newer_one() {
    let old: IpConfigRequest = from_value(json!({
        "DesiredIPAddress": "", "PodInterfaceID": "c1", "InfraContainerID": "c2",
        "OrchestratorContext": {"podName": "p0", "podNamespace": "default"}, "Ifname": "eth0"
    }))
    .unwrap();
    let new = IpConfigsRequest::from(old);
    assert_eq!(new.desired_ip_addresses, Vec::<IpAddr>::new());
    assert_eq!(
        (&*new.pod_interface_id, &*new.infra_container_id),
        ("c1", "c2")
    );
    assert_eq!(new.orchestrator_context.unwrap().pod_name, "p0");
}

#[test]
fn an_answer_of_the_original_is_understood() {
    let answer: IpConfigsResponse = from_value(json!({
        "podIPInfo": [{
            "PodIPConfig": {"IPAddress": "10.1.0.7", "PrefixLength": 32},
            "NetworkContainerPrimaryIPConfig": {
                "IPSubnet": {"IPAddress": "10.1.0.4", "PrefixLength": 16},
                "IPSubnetV6": {"IPAddress": "", "PrefixLength": 0},
                "DNSServers": null, "GatewayIPAddress": "10.1.0.1", "GatewayIPv6Address": ""
            },
            "HostPrimaryIPInfo": {"Gateway": "", "PrimaryIP": "", "Subnet": ""},
            "NICType": "InfraNIC", "InterfaceName": "", "MacAddress": "",
            "SkipDefaultRoutes": false, "Routes": null, "PnPID": "", "EndpointPolicies": null,
            "NetworkContainerID": ""
        }],
        "response": {"ReturnCode": 0, "Message": ""}
    }))
    .unwrap();
    let info = &answer.pod_ip_info[0];
    assert_eq!(info.pod_ip_config.ip_address, Some(address("10.1.0.7")));
    assert_eq!(info.prefix_length(), 16, "the subnet's, not the address's");
    assert_eq!(info.gateway(), Some(address("10.1.0.1")));
}

#[test]
fn a_response_without_a_code_is_refused() {
    assert!(from_value::<IpConfigsResponse>(json!({"podIPInfo": []})).is_err());
}

#[test]
fn each_family_finds_its_own_gateway() {
    let four = PodIpInfo::infra(
        address("10.1.0.7"),
        IpSubnet::of(address("10.1.0.4"), 24),
        Some(address("10.1.0.1")),
    );
    let six = PodIpInfo::infra(
        address("fd00::7"),
        IpSubnet::of(address("fd00::4"), 64),
        Some(address("fd00::1")),
    );
    assert_eq!((four.prefix_length(), six.prefix_length()), (24, 64));
    assert_eq!(four.gateway(), Some(address("10.1.0.1")));
    assert_eq!(six.gateway(), Some(address("fd00::1")));
    let mut mixed = four;
    mixed.pod_ip_config.ip_address = Some(IpAddr::V6(Ipv6Addr::LOCALHOST));
    assert_eq!(
        mixed.gateway(),
        None,
        "a gateway of the other family does not count"
    );
}

#[test]
fn a_failed_release_is_recognised_nested_and_flat() {
    let failure = Response::failure(ReturnCode::UNEXPECTED_ERROR, "state is corrupt");
    let nested = json!({"response": {"ReturnCode": 99, "Message": "state is corrupt"}});
    let flat = json!({"ReturnCode": 99, "Message": "state is corrupt"});
    for body in [nested.clone(), flat] {
        let read: ReleaseIpConfigsResponse = from_value(body).unwrap();
        assert_eq!(read.0, failure);
    }
    let written = to_value(ReleaseIpConfigsResponse(failure.clone())).unwrap();
    assert_eq!(written["response"], nested["response"]);
    assert_eq!(written["ReturnCode"], 99, "where upstream's client looks");
    let old = to_value(ReleaseIpConfigResponse(failure.clone())).unwrap();
    assert_eq!(
        (&old["Response"]["ReturnCode"], &old["ReturnCode"]),
        (&json!(99), &json!(99))
    );
    assert_eq!(
        from_value::<ReleaseIpConfigResponse>(old).unwrap().0,
        failure
    );
}

#[test]
fn unknown_states_in_a_filter_are_ignored() {
    let filter: AddressFilter =
        from_value(json!({"IPConfigStateFilter": ["Assigned", "Sleeping", "Available"]})).unwrap();
    assert_eq!(
        filter.states,
        [AddressState::Assigned, AddressState::Available]
    );
    assert_eq!(from_value::<AddressFilter>(json!({})).unwrap().states, []);
}

#[test]
fn the_debug_answer_survives_a_round_trip() {
    let body = json!({
        "IPConfigurationStatus": [{
            "state": "Assigned", "ID": "a-1", "IPAddress": "10.1.0.7",
            "LastStateTransition": "2026-01-01T00:00:00Z", "NCID": "nc-1",
            "PodInfo": {"podName": "p0", "podNamespace": "default", "PodInfraContainerID": "c1",
                        "PodInterfaceID": "c1", "Version": 1, "SecondaryInterfaceSet": false}
        }],
        "Response": {"ReturnCode": 0, "Message": ""}
    });
    let read: AddressesResponse = from_value(body.clone()).unwrap();
    assert_eq!(to_value(read).unwrap(), body);
}

#[test]
fn codes_have_names_of_their_own_and_unknown_ones_survive() {
    let names: BTreeSet<&str> = ReturnCode::ALL.iter().map(|code| code.name()).collect();
    assert_eq!(names.len(), ReturnCode::ALL.len());
    assert_eq!(
        ReturnCode::FAILED_TO_ALLOCATE_IP_CONFIG.to_string(),
        "FailedToAllocateIpConfig (32)"
    );
    let odd: ReturnCode = from_value(json!(4711)).unwrap();
    assert_eq!(
        (odd.name(), to_value(odd).unwrap()),
        ("UnknownError", json!(4711))
    );
}

#[test]
fn a_clean_up_without_a_list_is_refused() {
    assert!(from_value::<GcRequest>(json!({"networkName": "podnet"})).is_err());
    let request = GcRequest {
        network_name: "podnet".to_owned(),
        valid_attachments: vec![Attachment {
            container_id: "c1".to_owned(),
            ifname: "eth0".to_owned(),
        }],
    };
    let body: Value = to_value(&request).unwrap();
    assert_eq!(
        body,
        json!({"networkName": "podnet",
               "validAttachments": [{"containerID": "c1", "ifname": "eth0"}]})
    );
}

#[test]
fn a_status_says_whether_an_add_can_be_served() {
    let status: StatusResponse = from_value(json!({
        "serving": "unavailable", "reason": "the node's network is not known yet",
        "response": {"ReturnCode": 0, "Message": ""}
    }))
    .unwrap();
    assert_eq!(status.serving, Serving::Unavailable);
    assert_eq!(status.pool.assigned, 0);
}
