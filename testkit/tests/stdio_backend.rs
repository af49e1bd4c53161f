//! The scripted stdio backend, used directly.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::{BufRead, BufReader, Lines, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use serde_json::{Value, json};
use testkit::{eventually, stdio::processes_with};

struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stdio-backend"));
        let mut child =
            command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, input, output }
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{message}").unwrap();
    }

    fn line(&mut self) -> String {
        self.output.next().unwrap().unwrap()
    }

    fn message(&mut self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    fn call(&mut self, tool: &str) {
        self.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": {}}}));
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_stdio_backend_sends_a_question_and_returns_the_answer() {
    let mut peer = Peer::start(&[]);
    peer.call("roots");
    let question = peer.message();
    assert_eq!(question["method"], "roots/list");
    peer.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": {"roots": []}}));
    assert!(peer.message()["result"]["content"][0]["text"].as_str().unwrap().contains("roots"));
}

#[test]
fn the_stdio_backend_ends_when_its_input_is_closed() {
    let mut peer = Peer::start(&[]);
    peer.call("echo");
    peer.message();
    peer.input = None;
    assert!(peer.child.wait().unwrap().success());
}

#[test]
fn noise_is_sent_before_answers_if_requested() {
    let mut peer = Peer::start(&["--banner"]);
    assert!(peer.line().contains("welcome"));
    assert_eq!(peer.line(), "[1, 2");
    peer.call("pid");
    assert_eq!(peer.message()["result"]["content"][0]["text"], peer.child.id().to_string());
}

#[tokio::test]
async fn processes_of_a_stubborn_child_are_found_by_their_marker() {
    let marker = format!("family-{}", std::process::id());
    let mut peer = Peer::start(&[
        "--grandchildren",
        "2",
        "--ignore-sigterm",
        "--ignore-stdin-close",
        "--marker",
        &marker,
    ]);
    peer.call("echo");
    peer.message();
    let family = eventually("three processes", || async {
        let found = processes_with(&marker);
        if found.len() == 3 { Ok(found) } else { Err(found) }
    })
    .await;
    peer.child.kill().unwrap();
    for pid in family {
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_raw(pid.cast_signed()).unwrap(),
            rustix::process::Signal::KILL,
        );
    }
    eventually("nobody left", || async {
        let alive = processes_with(&marker);
        if alive.is_empty() { Ok(()) } else { Err(alive) }
    })
    .await;
}
