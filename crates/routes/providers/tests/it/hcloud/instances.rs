//! Addresses of servers.

use std::net::{IpAddr, Ipv4Addr};

use weft_model::SharedStr;
use weft_testkit::clouds::HcloudServer;

use super::*;

fn server(id: u64, ip: Option<Ipv4Addr>) -> HcloudServer {
    HcloudServer {
        id,
        name: format!("node-{id}"),
        ip,
    }
}

fn ids(numbers: impl IntoIterator<Item = u64>) -> Vec<SharedStr> {
    let numbers = numbers.into_iter();
    numbers.map(|id| SharedStr::new(&id.to_string())).collect()
}

#[tokio::test]
async fn few_servers_are_asked_for_one_by_one_and_unknown_ones_are_absent() {
    let address = Ipv4Addr::new(10, 0, 0, 2);
    let double = double(HcloudOptions {
        servers: vec![server(1, Some(address)), server(2, None)],
        ..HcloudOptions::default()
    })
    .await;
    let provider = HcloudProvider::new(settings(&double, "4711"), Calls::default()).unwrap();
    let answer = provider.instance_addresses(&ids([1, 2, 3])).await;
    let found = answer.result.unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!(found["1"], [IpAddr::V4(address)]);
    assert!(found["2"].is_empty(), "not attached to the network");
    assert_eq!((double.calls_of("get_server"), double.calls()), (3, 3));
}

#[tokio::test]
async fn many_servers_are_read_page_by_page() {
    let ip = |id: u64| Ipv4Addr::new(10, 0, 1, u8::try_from(id).unwrap());
    let double = double(HcloudOptions {
        servers: (1..=120).map(|id| server(id, Some(ip(id)))).collect(),
        ..HcloudOptions::default()
    })
    .await;
    let provider = HcloudProvider::new(settings(&double, "4711"), Calls::default()).unwrap();
    let answer = provider.instance_addresses(&ids(20..120)).await;
    let found = answer.result.unwrap();
    assert_eq!(found.len(), 100);
    assert_eq!(found["119"], [IpAddr::V4(ip(119))]);
    assert_eq!((double.calls_of("list_servers"), double.calls()), (3, 3));
}

#[tokio::test]
async fn dedicated_servers_are_not_instances() {
    let double = double(HcloudOptions::default()).await;
    let provider = provider(&double);
    assert_eq!(provider.instance("hcloud://123"), Some("123".into()));
    for other in [
        "hrobot://123",
        "hcloud://bm-123",
        "hcloud://",
        "aws:///a/i-1",
        "123",
    ] {
        assert_eq!(provider.instance(other), None, "{other}");
    }
}
