//! Listeners whose address is taken: retried, or fatal.

use std::{
    io,
    net::TcpListener,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use weft_proxy_agent::listen::{BindPolicy, RetryingServer};
use weft_runtime::{Component, ComponentRun, ComponentScope, Phase};

use crate::web::manager;

/// A component that reports that it runs.
struct Announcer(CancellationToken);

impl Component for Announcer {
    fn name(&self) -> &'static str {
        "announcer"
    }

    fn phase(&self) -> Phase {
        Phase::Server
    }

    fn run(self: Arc<Self>, scope: ComponentScope) -> ComponentRun {
        Box::pin(async move {
            scope.ready();
            self.0.cancel();
            scope.stopped().await;
            Ok(())
        })
    }
}

fn taken() -> io::Error {
    io::ErrorKind::AddrInUse.into()
}

#[tokio::test(start_paused = true)]
async fn a_taken_address_is_tried_every_five_seconds_and_does_not_delay_the_start() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let reported = Arc::new(Mutex::new(Vec::new()));
    let (served, others) = (CancellationToken::new(), CancellationToken::new());
    let server = {
        let (attempts, served) = (attempts.clone(), served.clone());
        let open = move || match attempts.fetch_add(1, SeqCst) {
            0..3 => Err(taken()),
            _ => Ok(Announcer(served.clone())),
        };
        let address = "127.0.0.1:1".parse().unwrap();
        let report = reported.clone();
        RetryingServer::new("health server", address, BindPolicy::Retry, open)
            .report(move |error| report.lock().unwrap().push(error.to_string()))
    };
    let manager = manager(Registry::default());
    manager.add_component(server).unwrap();
    let began = Instant::now();
    let shutdown = async {
        manager.add_component(Announcer(others.clone())).unwrap();
        others.cancelled().await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        served.cancelled().await;
    };
    manager.run(shutdown).await.unwrap();
    assert_eq!(began.elapsed(), Duration::from_secs(15));
    let reported = reported.lock().unwrap();
    assert_eq!(
        *reported,
        ["cannot bind 127.0.0.1:1 for the health server"; 3].map(str::to_owned)
    );
}

#[tokio::test]
async fn a_taken_address_is_fatal_where_that_is_asked_for() {
    let occupied = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = occupied.local_addr().unwrap();
    let open = move || {
        TcpListener::bind(address)?;
        Ok(Announcer(CancellationToken::new()))
    };
    let manager = manager(Registry::default());
    let server = RetryingServer::new("metrics server", address, BindPolicy::HardFail, open);
    manager.add_component(server).unwrap();
    let error = manager.run(std::future::pending()).await.unwrap_err();
    let chain = format!("{error}: {}", std::error::Error::source(&error).unwrap());
    let expected = format!("cannot bind {address} for the metrics server");
    assert!(chain.contains(&expected), "{chain}");
}
