//! Calls to a daemon that refuses or sends invalid responses.

use serde_json::{Value, json};

use crate::{
    daemon::{FakeDaemon, Reply, four},
    plugin::Node,
};

fn answer_with(node: &Node, body: Value) -> FakeDaemon {
    FakeDaemon::start(&node.socket(), move |received| match &*received.path {
        "/network/releaseipconfigs" => {
            Reply::json(&json!({"response": {"ReturnCode": 0, "Message": ""}}))
        }
        _ => Reply::json(&body),
    })
}

#[test]
fn an_add_without_a_free_address_fails_with_try_again_later() {
    let node = Node::new();
    let message = "not enough IPs available of type IPv4";
    let _daemon = answer_with(
        &node,
        json!({"podIPInfo": null, "response": {"ReturnCode": 32, "Message": message}}),
    );
    let ended = node.call("ADD", "c1");
    assert_eq!(ended.code(), 11);
    let details = ended.json()["details"].as_str().unwrap().to_owned();
    assert_eq!(details, format!("FailedToAllocateIpConfig (32): {message}"));
}

#[test]
fn a_permanent_refusal_has_its_own_code() {
    for code in [2, 23, 33, 42, 99] {
        let node = Node::new();
        let _daemon = answer_with(
            &node,
            json!({"response": {"ReturnCode": code, "Message": "no"}}),
        );
        assert_eq!(node.call("ADD", "c1").code(), 101, "return code {code}");
    }
}

#[test]
fn addresses_of_an_unusable_response_are_released() {
    let with_bad_gateway = {
        let mut info = four("10.1.0.7");
        info["NetworkContainerPrimaryIPConfig"]["GatewayIPAddress"] = json!("10.1.0");
        info
    };
    let fine = json!({"ReturnCode": 0, "Message": ""});
    for (infos, is_readable) in [
        (json!([]), true),
        (json!([four("0.0.0.0")]), true),
        (json!([four("10.1.0.7"), four("10.1.0.7")]), true),
        (json!([with_bad_gateway]), false),
    ] {
        let node = Node::new();
        let daemon = answer_with(&node, json!({"podIPInfo": infos, "response": fine}));
        assert_eq!(node.call("ADD", "c1").code(), 102, "{infos}");
        let released = daemon.containers("/network/releaseipconfigs");
        assert_eq!(released.len(), usize::from(is_readable), "{infos}");
    }
}

#[test]
fn any_invalid_response_becomes_an_error_object() {
    type Make = fn() -> Reply;
    let cases: [(&str, Make, u64); 9] = [
        ("no JSON", || Reply::Answer(200, "hello".to_owned()), 102),
        ("no code", || Reply::Answer(200, "{}".to_owned()), 102),
        (
            "a bad request",
            || Reply::Answer(400, "what?".to_owned()),
            102,
        ),
        ("an unknown path", || Reply::Answer(404, String::new()), 102),
        (
            "a stranger",
            || Reply::Answer(403, "who are you".to_owned()),
            101,
        ),
        ("start-up", || Reply::Answer(503, "starting".to_owned()), 11),
        (
            "no HTTP",
            || Reply::Raw(b"SSH-2.0-OpenSSH\r\n\r\n".to_vec()),
            102,
        ),
        ("nothing", || Reply::Raw(Vec::new()), 11),
        (
            "half an answer",
            || Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{".to_vec()),
            11,
        ),
    ];
    for (name, say, code) in cases {
        let node = Node::new();
        let _daemon = FakeDaemon::start(&node.socket(), move |_| say());
        assert_eq!(node.call("ADD", "c1").code(), code, "{name}");
    }
}

#[test]
fn a_refused_release_is_left_to_the_runtime_to_retry() {
    let failure = json!({"ReturnCode": 99, "Message": "state potentially corrupt"});
    let nested = json!({"response": failure});
    for body in [nested, failure] {
        let node = Node::new();
        let _daemon = FakeDaemon::start(&node.socket(), move |_| Reply::json(&body));
        let ended = node.call("DEL", "c1");
        assert_eq!(ended.code(), 11);
        assert_eq!(node.queued(), [""; 0], "the queue would only hide it");
    }
}

#[test]
fn an_answer_in_chunks_is_read() {
    let node = Node::new();
    let _daemon = FakeDaemon::start(&node.socket(), |_| {
        let body = json!({"podIPInfo": [four("10.1.0.7")],
                          "response": {"ReturnCode": 0, "Message": ""}})
        .to_string();
        let (one, other) = body.split_at(10);
        let text = format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
             {:x}\r\n{one}\r\n{:x}\r\n{other}\r\n0\r\n\r\n",
            one.len(),
            other.len()
        );
        Reply::Raw(text.into_bytes())
    });
    let ended = node.call("ADD", "c1");
    assert_eq!(ended.json()["ips"][0]["address"], "10.1.0.7/24");
}
