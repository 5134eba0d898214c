//! Telemetry: spans, client metrics, signals, heap.

use std::{
    io::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::ListParams};
use prometheus_client::registry::Registry;
use tokio::time::timeout;
use weft_apiserver::{ApiServer, Fault, Matcher, Times};
use weft_runtime::{
    Action, ClientMetrics, Context, Controller, HeapStatistics, Manager, ObjectKey, ReconcileError,
    connect, prometheus_text, reconcile_with, shutdown_signal,
};

use crate::harness::{Harness, Note, eventually};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn every_reconcile_has_a_span_with_key_attempt_and_reason() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let harness = Harness::embedded().await;
    harness.create("a", "1").await;
    let cluster = harness.cluster();
    let controller: Controller<ObjectKey> = Controller::builder("notes", &cluster)
        .reconciles::<Note>(harness.spec())
        .build(reconcile_with(|context: Context<ObjectKey>| async move {
            tracing::info!("at work");
            if context.failures() == 0 {
                return Err(ReconcileError::retry("not yet"));
            }
            Ok(Action::await_change())
        }));
    controller.start();
    eventually("retried", || controller.handle().info().succeeded == 1).await;
    let text = log.text();
    let key = harness.key("a");
    for (attempt, reason) in [(1, "initial"), (2, "retry")] {
        let span = format!(
            "reconcile{{controller=notes key={key} attempt={attempt} reason={reason}}}: it::telemetry: at work"
        );
        assert!(text.contains(&span), "no {span} in\n{text}");
    }
    assert!(
        text.contains("reconcile failed, retrying error=not yet"),
        "{text}"
    );
    assert!(text.contains("controller changed state"), "{text}");
}

#[tokio::test]
async fn the_client_counts_every_request_and_hides_no_retry() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = ApiServer::builder().start().await.unwrap();
    let config = server.listening().unwrap().kube_config();
    let mut registry = Registry::default();
    let metrics = ClientMetrics::register(&mut registry);
    let client = connect(&config, Some(&metrics)).unwrap();
    let namespaces: Api<Namespace> = Api::all(client);
    namespaces.list(&ListParams::default()).await.unwrap();
    let lists = Matcher::any().resource("namespaces");
    server
        .faults()
        .inject(lists.clone(), Fault::too_many_requests(1), Times::Next(1));
    server.stats().clear_log();
    let refused = namespaces.list(&ListParams::default()).await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 429));
    let asked = server.stats().requests(&lists);
    assert_eq!(asked.len(), 1, "the client retried behind our back");
    let text = prometheus_text(&registry);
    let host = config.cluster_url.authority().unwrap();
    for code in ["200", "429"] {
        let line = format!(
            "rest_client_requests_total{{code=\"{code}\",host=\"{host}\",method=\"GET\"}} 1"
        );
        assert!(text.contains(&line), "no {line} in\n{text}");
    }
    let count =
        format!("rest_client_request_duration_seconds_count{{host=\"{host}\",verb=\"GET\"}} 2");
    assert!(text.contains(&count), "{text}");
}

#[tokio::test]
async fn a_manager_ends_cleanly_on_sigterm() {
    let harness = Harness::embedded().await;
    let manager = Manager::builder("test", harness.cluster()).build().unwrap();
    let run = tokio::spawn({
        let manager = manager.clone();
        let signal = shutdown_signal().unwrap();
        async move { manager.run(signal).await }
    });
    tokio::task::yield_now().await;
    let this = std::process::id().to_string();
    assert!(
        std::process::Command::new("kill")
            .args(["-TERM", &this])
            .status()
            .unwrap()
            .success()
    );
    let report = timeout(Duration::from_secs(30), run)
        .await
        .expect("in time")
        .unwrap()
        .unwrap();
    assert!(report.aborted.is_empty());
}

#[tokio::test]
async fn a_counting_allocator_shows_in_the_metrics() {
    let harness = Harness::embedded().await;
    let counted = || {
        Some(HeapStatistics {
            live_bytes: 4711,
            peak_bytes: 5000,
            allocations: 3,
        })
    };
    let manager = Manager::builder("test", harness.cluster())
        .heap(counted)
        .build()
        .unwrap();
    let text = prometheus_text(manager.registry());
    assert!(text.contains("weft_runtime_heap_live_bytes 4711"), "{text}");
    assert!(text.contains("process_resident_memory_bytes"), "{text}");
}
