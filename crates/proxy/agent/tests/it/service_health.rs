//! Health checks of Services on their `healthCheckNodePort`.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    time::Duration,
};

use weft_model::{IpFamily, ObjectKey};
use weft_proxy_agent::{
    health::{ClockReading, Health, HealthMonitor},
    service_health::{LocalEndpoints, ServiceHealth},
};

use crate::web::get;

fn health() -> HealthMonitor {
    HealthMonitor::new(Health::new(Duration::ZERO))
}

/// A loopback address for one test of one process, with ports that the system does not assign: a
/// port that is closed here stays free until the test opens it again.
#[derive(Clone, Copy)]
struct Place(Ipv4Addr);

const PORT: u16 = 30_999;
const OTHER_PORT: u16 = 31_000;

impl Place {
    fn new(test: u8) -> Self {
        let [.., high, low] = std::process::id().to_be_bytes();
        Self(Ipv4Addr::new(127, high, low, test))
    }

    fn at(self, port: u16) -> SocketAddr {
        (self.0, port).into()
    }

    fn services(self, health: HealthMonitor) -> ServiceHealth {
        ServiceHealth::new(IpFamily::V4, Some(vec![self.0.into()]), health)
    }
}

fn wanted(entries: &[(&str, u16, usize)]) -> LocalEndpoints {
    let entry = |(name, port, count): &(&str, u16, usize)| {
        ((ObjectKey::namespaced("ns1", name), *port), *count)
    };
    entries.iter().map(entry).collect()
}

#[tokio::test]
async fn answers_are_kube_proxys_to_the_byte() {
    let place = Place::new(2);
    let health = health();
    let mut services = place.services(health.clone());
    assert!(
        services
            .sync(&wanted(&[("lblocal", PORT, 1)]))
            .await
            .is_empty()
    );
    let answer = get(place.at(PORT), "/any/path").await;
    assert_eq!(answer.code, 200);
    assert_eq!(
        answer.body,
        "{\n\t\"service\": {\n\t\t\"namespace\": \"ns1\",\n\t\t\"name\": \"lblocal\"\n\t},\n\
         \t\"localEndpoints\": 1,\n\t\"serviceProxyHealthy\": true\n}"
    );
    let weight = |count| Some(("x-load-balancing-endpoint-weight", count));
    for (name, value) in [
        ("content-type", "application/json"),
        ("x-content-type-options", "nosniff"),
    ]
    .into_iter()
    .chain(weight("1"))
    {
        assert_eq!(answer.header(name), Some(value), "{name}");
    }

    services.sync(&wanted(&[("lblocal", PORT, 0)])).await;
    let answer = get(place.at(PORT), "/").await;
    assert_eq!(answer.code, 503, "no endpoint is left here");
    let header = answer.header("x-load-balancing-endpoint-weight");
    assert_eq!(header, Some("0"));

    services.sync(&wanted(&[("lblocal", PORT, 2)])).await;
    health.with(|health| {
        health.updated(IpFamily::V6, ClockReading::now());
        health.queued(IpFamily::V6, ClockReading::now());
    });
    let answer = get(place.at(PORT), "/").await;
    assert_eq!(answer.code, 503, "a proxy that is late, of either family");
    let shown = "\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": false\n";
    assert!(answer.body.contains(shown), "{}", answer.body);
}

#[tokio::test]
async fn ports_follow_the_services() {
    let place = Place::new(3);
    let (a, b) = (PORT, OTHER_PORT);
    let mut services = place.services(health());
    services.sync(&wanted(&[("one", a, 1)])).await;
    // The port goes to another Service, and the Service to another port, in one step.
    let failures = services
        .sync(&wanted(&[("two", a, 1), ("one", b, 1)]))
        .await;
    assert!(failures.is_empty(), "{failures:?}");
    assert!(
        get(place.at(a), "/")
            .await
            .body
            .contains("\"name\": \"two\"")
    );
    assert!(
        get(place.at(b), "/")
            .await
            .body
            .contains("\"name\": \"one\"")
    );
    services.sync(&LocalEndpoints::new()).await;
    for port in [a, b] {
        TcpListener::bind(place.at(port)).unwrap();
    }
}

#[tokio::test]
async fn a_port_that_is_taken_is_reported_and_tried_again_with_the_next_sync() {
    let place = Place::new(4);
    let held = TcpListener::bind(place.at(PORT)).unwrap();
    let mut services = place.services(health());
    let wanted = wanted(&[("lblocal", PORT, 1)]);
    for _ in 0..2 {
        let failures = services.sync(&wanted).await;
        let [failure] = failures.as_slice() else {
            panic!("{failures:?}");
        };
        let event = failure.event("n1");
        assert_eq!(event.reason, "FailedToStartServiceHealthcheck");
        assert_eq!(event.action, "Listen");
        let note = format!(
            "node n1 failed to start healthcheck \"ns1/lblocal\" on port {PORT}: \
             Address already in use (os error 98)"
        );
        assert_eq!(event.note, note);
    }
    drop(held);
    assert!(services.sync(&wanted).await.is_empty());
    assert_eq!(get(place.at(PORT), "/").await.code, 200);
}

#[tokio::test]
async fn both_families_can_have_the_same_port() {
    let place = Place::new(5);
    let [.., low] = std::process::id().to_be_bytes();
    // IPv6 opens this port on all addresses, so it must differ from those of concurrent tests.
    let port = OTHER_PORT + 1 + u16::from(low);
    let wanted = wanted(&[("lblocal", port, 1)]);
    let mut v6 = ServiceHealth::new(IpFamily::V6, None, health());
    assert!(v6.sync(&wanted).await.is_empty());
    let mut v4 = place.services(health());
    assert!(v4.sync(&wanted).await.is_empty(), "IPv6 takes IPv4's port");
    assert_eq!(get(place.at(port), "/").await.code, 200);
    let over_v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    assert_eq!(get(over_v6, "/").await.code, 200);
}

#[tokio::test]
async fn other_addresses_are_taken_over() {
    let (old, new) = (Place::new(6), Place::new(7));
    let wanted = wanted(&[("lblocal", PORT, 1)]);
    let mut services = old.services(health());
    services.sync(&wanted).await;
    let moved = Some(vec![new.0.into()]);
    services.set_addresses(IpFamily::V4, moved).await;
    TcpListener::bind(old.at(PORT)).unwrap();
    services.sync(&wanted).await;
    assert_eq!(get(new.at(PORT), "/").await.code, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_one_service_that_never_finish_a_request_keep_no_load_balancer_from_another() {
    let place = Place::new(9);
    let mut services = place.services(health());
    let both = wanted(&[("flooded", PORT, 1), ("other", OTHER_PORT, 1)]);
    assert!(services.sync(&both).await.is_empty());
    let flooding = move || weft_testkit::Flood::tcp(place.at(PORT), 2_000).unwrap();
    let mut flood = tokio::task::spawn_blocking(flooding).await.unwrap();
    for port in [PORT, OTHER_PORT] {
        let answer = tokio::time::timeout(Duration::from_secs(10), get(place.at(port), "/")).await;
        let answer = answer.expect("an answer");
        assert!(answer.body.contains("\"localEndpoints\": 1"), "{answer:?}");
    }
    assert!(flood.is_cut_to(256));
    services.sync(&wanted(&[])).await;
}

#[tokio::test]
async fn health_checks_beyond_the_limit_are_reported_and_opened_when_others_go() {
    let place = Place::new(10);
    let mut services = place.services(health()).with_most_sockets(1);
    let both = wanted(&[("first", PORT, 1), ("second", OTHER_PORT, 1)]);
    for _ in 0..2 {
        let failures = services.sync(&both).await;
        assert_eq!(failures.len(), 1);
        assert_eq!(failures[0].service.name.to_string(), "second");
        let note = failures[0].event("here").note;
        assert!(note.contains("at most 1 sockets"), "{note}");
        assert_eq!(get(place.at(PORT), "/").await.code, 200);
    }
    // Without a successful sync, as when descriptors ran out.
    let second = wanted(&[("second", OTHER_PORT, 1)]);
    services.close_unwanted(&second).await;
    drop(TcpListener::bind(place.at(PORT)).unwrap());
    assert!(services.sync(&second).await.is_empty());
    assert_eq!(get(place.at(OTHER_PORT), "/").await.code, 200);
}
