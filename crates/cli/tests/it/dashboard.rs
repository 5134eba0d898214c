//! The live page of `weft controller`.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use serde_json::Value;
use weft_testkit::free_port;

use crate::{
    routes::stage::{Stage, eventually},
    weft::{run, weft},
};

/// The answer to a request, head and body.
fn ask(request: &str, host: &str, port: u16) -> Result<(String, String), String> {
    let failed = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).map_err(failed)?;
    let request = format!("{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(failed)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or("no answer")?;
    Ok((head.to_owned(), body.to_owned()))
}

fn state(port: u16) -> Result<Value, String> {
    let (_, body) = ask("GET /api/state", &format!("localhost:{port}"), port)?;
    serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))
}

#[test]
fn the_page_of_a_controller_shows_the_cluster_and_its_controllers() {
    let stage = Stage::new();
    stage.add_node(1, "memory://1");
    let port = free_port();
    let page = format!("--dashboard=127.0.0.1:{port}");
    let flags = [
        &*page,
        "--secure-port=0",
        "--leader-elect=false",
        "--cluster-name=shop",
        "--controllers=pod-cidr",
        "--allocate-node-cidrs",
        "--cluster-cidr=10.244.0.0/16",
    ];
    let _running = stage.start("controller.log", &mut stage.controller(&flags));
    // The kind that this controller needs is not installed, which the page says.
    let state = eventually("a node and a waiting controller on the page", || {
        let state = state(port)?;
        let node = state["nodes"][0]["name"] == "node-1";
        let detail = state["processes"][0]["detail"].as_str().unwrap_or_default();
        if node && detail.contains("is not served") {
            Ok(state)
        } else {
            Err(state.to_string())
        }
    });
    assert_eq!(state["mode"], "cluster");
    assert_eq!(state["cluster"]["name"], "shop");
    assert_eq!(state["nodes"][0]["addresses"][0], "10.0.1.1");
    let process = &state["processes"][0];
    assert_eq!(process["name"], "pod-cidr");
    assert_eq!(process["state"], "starting");
    assert_eq!(process["actions"], Value::Array(Vec::new()));
    let host = format!("127.0.0.1:{port}");
    let (head, _) = ask("POST /api/processes/pod-cidr/stop", &host, port).unwrap();
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    let (head, body) = ask("GET /", &host, port).unwrap();
    assert!(
        head.starts_with("HTTP/1.1 200 ") && body.contains("<title>Weft"),
        "{head}"
    );
    let (head, _) = ask("GET /", "weft.example", port).unwrap();
    assert!(head.starts_with("HTTP/1.1 421 "), "{head}");
}

#[test]
fn an_address_that_others_can_reach_takes_a_second_flag() {
    let refused = run(&mut weft(&["controller", "--dashboard=0.0.0.0:8088"]));
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("--dashboard-allow-remote"),
        "{refused:?}"
    );
    let alone = run(&mut weft(&["controller", "--dashboard-allow-remote"]));
    assert_eq!(alone.code, Some(2), "{alone:?}");
}
