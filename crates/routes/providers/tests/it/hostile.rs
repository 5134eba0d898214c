//! Providers against servers whose answers are hostile.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use aws_credential_types::{Credentials, provider::SharedCredentialsProvider};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use weft_model::SharedStr;
use weft_providers::{
    Answer, AwsProvider, AwsSettings, Calls, HcloudProvider, HcloudSettings, HcloudToken,
    Provider as _, TableChoice,
};
use weft_routes::ProviderError;

use crate::steps::{create, to, via};

/// A reply: headers, each with its end of line, and a body.
type Reply = (String, String);

/// Answers every request with what a function says to its first line and body.
struct Server {
    endpoint: String,
    calls: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(reply: impl Fn(&str, &str) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}/v1", listener.local_addr().unwrap());
        let calls = Arc::new(AtomicU64::new(0));
        let (counted, reply) = (calls.clone(), Arc::new(reply));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Relaxed);
                tokio::spawn(serve(stream, reply.clone()));
            }
        });
        Self {
            endpoint,
            calls,
            task,
        }
    }

    fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    fn hcloud(&self) -> HcloudProvider {
        let token = HcloudToken::given("token").unwrap();
        let settings = HcloudSettings {
            poll: Duration::from_millis(5),
            action_timeout: Duration::from_secs(2),
            ..HcloudSettings::new(&self.endpoint, token, "4711").unwrap()
        };
        HcloudProvider::new(settings, Calls::default()).unwrap()
    }

    fn aws(&self) -> AwsProvider {
        let credentials = Credentials::new("AKIDEXAMPLE", "secret", None, None, "test");
        let credentials = SharedCredentialsProvider::new(credentials);
        let tables = TableChoice::Cluster("weft".to_owned());
        let settings = AwsSettings::new(&self.endpoint, "eu-central-1", credentials, tables);
        AwsProvider::new(settings.unwrap(), Calls::default()).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads one request and answers it. The client may go away at any moment.
async fn serve(mut stream: TcpStream, reply: Arc<impl Fn(&str, &str) -> Reply>) {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    let (head, body) = loop {
        let Ok(read @ 1..) = stream.read(&mut buffer).await else {
            return;
        };
        request.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&request).to_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.lines().next()?.parse().ok());
        if body.len() >= length.unwrap_or(0) {
            break (head.to_owned(), body.to_owned());
        }
    };
    let (headers, body) = reply(head.lines().next().unwrap_or_default(), &body);
    let head = format!(
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    );
    let _ = stream.write_all(head.as_bytes()).await;
    let _ = stream.write_all(body.as_bytes()).await;
}

fn label<T>(answer: &Answer<T>) -> &'static str {
    let result = answer.result.as_ref();
    result.map_or_else(ProviderError::label, |_| "ok")
}

fn servers(count: u64) -> Vec<SharedStr> {
    (1..=count)
        .map(|id| SharedStr::new(&id.to_string()))
        .collect()
}

fn rate(limit: u64, remaining: u64, reset: u64) -> String {
    format!(
        "RateLimit-Limit: {limit}\r\nRateLimit-Remaining: {remaining}\r\nRateLimit-Reset: {reset}\r\n"
    )
}

/// A page of servers, and which one comes next.
fn page(next: impl std::fmt::Display) -> String {
    format!(
        r#"{{"servers": [{{"id": 1, "private_net": []}}], "meta": {{"pagination": {{"next_page": {next}}}}}}}"#
    )
}

/// The page that a request asks for.
fn asked(request: &str) -> u64 {
    let number = request.split("page=").nth(1).unwrap();
    let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[tokio::test]
async fn a_reset_beyond_all_time_costs_neither_the_answer_nor_more_than_an_hour() {
    let server = Server::start(|request, _| {
        let body = if request.starts_with("post") {
            r#"{"action": {"id": 1, "status": "success"}}"#
        } else {
            r#"{"network": {"id": 4711, "name": "weft", "routes": []}}"#
        };
        (rate(3600, 1, u64::MAX), body.to_owned())
    })
    .await;
    let provider = server.hcloud();
    let listed = provider.list().await;
    assert_eq!(listed.result, Ok(Vec::new()));
    assert!(listed.rate.unwrap().reset_after <= Duration::from_secs(3600));
    let step = create("10.244.1.0/24", via("10.0.0.2"));
    let created = provider.apply(&step).await;
    assert_eq!(created.result, Ok(()), "the change's answer is not lost");
}

#[tokio::test]
async fn a_list_of_servers_without_end_is_given_up_on() {
    let server =
        Server::start(|request, _| (String::new(), page(asked(request).saturating_add(1)))).await;
    let provider = server.hcloud();
    let asked_for = servers(6);
    let listing = provider.instance_addresses(&asked_for);
    let answer = tokio::time::timeout(Duration::from_secs(60), listing).await;
    assert_eq!(label(&answer.expect("an end")), "garbage");
    assert!(server.calls() <= 200, "{}", server.calls());
}

#[tokio::test]
async fn a_list_of_servers_stops_at_the_budget_that_its_answers_report() {
    let soon = std::time::SystemTime::now() + Duration::from_secs(1800);
    let soon = soon.duration_since(std::time::UNIX_EPOCH).unwrap();
    let server = Server::start(move |request, _| {
        let page_number = asked(request);
        let left = 365_u64.saturating_sub(page_number);
        (rate(3600, left, soon.as_secs()), page(page_number + 1))
    })
    .await;
    let provider = server.hcloud();
    let asked_for = servers(6);
    let listing = provider.instance_addresses(&asked_for);
    let answer = tokio::time::timeout(Duration::from_secs(60), listing).await;
    let answer = answer.expect("an end");
    let Err(ProviderError::RateLimited { after: Some(after) }) = answer.result else {
        panic!("{answer:?}");
    };
    assert!(
        (Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&after),
        "{after:?}"
    );
    assert_eq!(
        server.calls(),
        5,
        "a tenth of the limit is left for changes"
    );
}

#[tokio::test]
async fn a_next_page_that_is_not_the_next_is_an_error() {
    for next in ["1", "0", "3", "18446744073709551615", "-1", "1.5", "\"2\""] {
        let server = Server::start(move |_, _| (String::new(), page(next))).await;
        let answer = server.hcloud().instance_addresses(&servers(6)).await;
        assert_eq!(label(&answer), "garbage", "{next}");
        assert_eq!(server.calls(), 1, "{next}");
    }
}

#[tokio::test]
async fn numbers_that_fit_nowhere_are_garbage() {
    let numbers = ["-1", "18446744073709551616", "1e400", "1.5", "null", "{}"];
    for number in numbers {
        let server = Server::start(move |request, _| {
            let body = if request.starts_with("post") {
                format!(
                    r#"{{"action": {{"id": {number}, "status": "running", "progress": {number}}}}}"#
                )
            } else {
                format!(r#"{{"network": {{"id": {number}, "name": "weft", "routes": []}}}}"#)
            };
            (rate(u64::MAX, u64::MAX, 0), body)
        })
        .await;
        let provider = server.hcloud();
        let listed = provider.list().await;
        assert_eq!(label(&listed), "garbage", "{number}");
        assert_eq!(listed.rate, None, "an invalid rate limit");
        let step = create("10.244.1.0/24", via("10.0.0.2"));
        assert_eq!(label(&provider.apply(&step).await), "garbage", "{number}");
    }
}

#[tokio::test]
async fn a_body_without_end_is_an_error() {
    let server = Server::start(|_, _| (String::new(), " ".repeat(33 << 20))).await;
    let listed = server.hcloud().list().await;
    assert_eq!(label(&listed), "retry");
}

fn tables(token: &str) -> String {
    format!(
        "<DescribeRouteTablesResponse><routeTableSet/><nextToken>{token}</nextToken>\
         </DescribeRouteTablesResponse>"
    )
}

fn instances(token: &str) -> String {
    format!(
        "<DescribeInstancesResponse><reservationSet/><nextToken>{token}</nextToken>\
         </DescribeInstancesResponse>"
    )
}

/// Whichever of the two lists a request asks for.
fn listed(request: &str, token: &str) -> Reply {
    let body = if request.contains("describeinstances") {
        instances(token)
    } else {
        tables(token)
    };
    (String::new(), body)
}

#[tokio::test]
async fn a_page_of_ec2_that_names_itself_is_an_error() {
    let server = Server::start(|_, body| listed(body, "again")).await;
    let provider = server.aws();
    assert_eq!(label(&provider.list().await), "garbage");
    assert_eq!(server.calls(), 2);
    let answer = provider.instance_addresses(&["i-1".into()]).await;
    assert_eq!(label(&answer), "garbage");
    assert_eq!(server.calls(), 4);
}

#[tokio::test]
async fn a_list_of_ec2_without_end_is_given_up_on() {
    let count = AtomicU64::new(0);
    let server = Server::start(move |_, body| {
        let token = count.fetch_add(1, Relaxed).to_string();
        listed(body, &token)
    })
    .await;
    let provider = server.aws();
    assert_eq!(label(&provider.list().await), "garbage");
    assert!(server.calls() <= 200, "{}", server.calls());
    let answer = provider.instance_addresses(&["i-1".into()]).await;
    assert_eq!(label(&answer), "garbage");
    assert!(server.calls() <= 400, "{}", server.calls());
}

#[tokio::test]
async fn a_flood_of_empty_elements_is_refused_before_it_becomes_routes() {
    let routes = "<item/>".repeat(1_000_000);
    let table =
        format!("<item><routeTableId>rtb-1</routeTableId><routeSet>{routes}</routeSet></item>");
    let body = format!(
        "<DescribeRouteTablesResponse><routeTableSet>{table}</routeTableSet></DescribeRouteTablesResponse>"
    );
    let server = Server::start(move |_, _| (String::new(), body.clone())).await;
    let provider = server.aws();
    assert_eq!(label(&provider.list().await), "garbage");
}

#[tokio::test]
async fn numbers_of_ec2_that_fit_nowhere_are_garbage() {
    for number in ["-1", "4294967296", "1e9", "x"] {
        let interface = format!(
            "<item><networkInterfaceId>eni-1</networkInterfaceId>\
             <attachment><deviceIndex>{number}</deviceIndex></attachment></item>"
        );
        let body = format!(
            "<DescribeInstancesResponse><reservationSet><item><instancesSet><item>\
             <instanceId>i-1</instanceId><networkInterfaceSet>{interface}</networkInterfaceSet>\
             </item></instancesSet></item></reservationSet></DescribeInstancesResponse>"
        );
        let server = Server::start(move |_, _| (String::new(), body.clone())).await;
        let provider = server.aws();
        let answer = provider.instance_addresses(&["i-1".into()]).await;
        assert_eq!(label(&answer), "garbage", "{number}");
        let step = create("10.244.1.0/24", to("i-1"));
        assert_ne!(label(&provider.apply(&step).await), "ok", "{number}");
    }
}
