//! `weft-lab testkit` as a process: another controller's cloud.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::program::{lab, run};

/// A running double; killed if a test forgets to stop it.
struct Double {
    child: Child,
    line: String,
}

impl Double {
    fn start(arguments: &[&str]) -> Self {
        let arguments: Vec<&str> = ["testkit"].iter().chain(arguments).copied().collect();
        let mut command = lab(&arguments);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        Self { child, line }
    }

    /// The host and port of the address that the line begins with.
    fn authority(&self) -> &str {
        let rest = self.line.strip_prefix("http://").unwrap();
        rest.split(['/', ' ']).next().unwrap()
    }

    fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.authority()).unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: double\r\nconnection: close\r\n\
             content-length: {length}\r\n{headers}\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn stop(mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        // Already ended in a test that got so far.
        self.child.kill().ok();
    }
}

#[test]
fn a_controller_is_told_how_to_reach_the_double_of_hetzner_and_is_counted_and_disturbed() {
    let directory = tempfile::tempdir().unwrap();
    let servers = directory.path().join("servers.json");
    fs::write(
        &servers,
        r#"[{"id": 7, "name": "node-7", "ip": "10.0.0.7"}]"#,
    )
    .unwrap();
    let double = Double::start(&[
        "hcloud",
        "--latency=0,0,0",
        "--calls-per-hour=100",
        "--servers",
        servers.to_str().unwrap(),
    ]);
    assert!(double.line.contains("HCLOUD_ENDPOINT=http://127.0.0.1:"));
    let token = "authorization: Bearer any\r\n";
    let server = double.ask("GET", "/v1/servers/7", token, "");
    assert!(server.contains("\"ip\":\"10.0.0.7\""), "{server}");
    assert!(server.contains("ratelimit-remaining: 99"), "{server}");
    let fault = r#"[{"endpoint": "list_networks", "kind": "fail", "code": "locked"}]"#;
    double.ask("POST", "/_double/faults", "", fault);
    let refused = double.ask("GET", "/v1/networks?name=weft", token, "");
    assert!(
        refused.contains("423") && refused.contains("\"code\":\"locked\""),
        "{refused}"
    );
    let counters = double.ask("GET", "/_double/counters", "", "");
    let expected = r#"{"get_server":{"ok":1},"list_networks":{"locked":1}}"#;
    assert!(counters.ends_with(expected), "{counters}");
    let refused = double.ask("PUT", "/_double/machines", "", "rubbish");
    assert!(refused.starts_with("HTTP/1.1 400"), "{refused}");
    assert_eq!(double.stop(), Some(0));
}

#[test]
fn the_double_of_ec2_has_the_tables_it_was_given() {
    let double = Double::start(&["ec2", "--latency=0", "--table=rtb-a", "--table=rtb-b"]);
    assert!(
        double
            .line
            .contains("AWS_ENDPOINT_URL_EC2=http://127.0.0.1:")
    );
    let signed = "authorization: AWS4-HMAC-SHA256 Credential=a, SignedHeaders=b, Signature=c\r\n\
                  x-amz-date: 20260101T000000Z\r\n";
    let tables = double.ask("POST", "/", signed, "Action=DescribeRouteTables");
    assert!(
        tables.contains("rtb-a") && tables.contains("rtb-b"),
        "{tables}"
    );
    let unsigned = double.ask("POST", "/", "", "Action=DescribeRouteTables");
    assert!(unsigned.contains("AuthFailure"), "{unsigned}");
    assert_eq!(double.stop(), Some(0));
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let run = run(&mut lab(&["testkit", "hcloud", "--latency=1,2"]));
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("three numbers"), "{}", run.stderr);
}
