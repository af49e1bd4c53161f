//! Transcripts as text files: messages of a client, and the answers to them.
//!
//! `in` is a message of the client; the `out` lines after it are all answers. `out pass METHOD`
//! means the message is in order and is routed, `out nothing` that it is dropped or only
//! acknowledged. `new` begins a session.

use bytes::Bytes;
use protocol::handshake::{InitializeParams, initialize_result, success};
use protocol::{
    Batches, Body, Kind, Limits, Message, Method, Refusal, RefusedMessage, SessionPhase, Version,
    decode_body,
};

const LIMITS: Limits = Limits { bytes_max: 4096, depth_max: 16 };

/// The smallest front side that can be written with this crate.
struct Front {
    phase: SessionPhase,
    version: Option<Version>,
}

impl Front {
    fn new() -> Self {
        Self { phase: SessionPhase::Opening, version: None }
    }

    fn receive(&mut self, text: &str) -> Vec<String> {
        let batches = self.version.map_or(Batches::Refused, Version::batches);
        match decode_body(Bytes::copy_from_slice(text.as_bytes()), &LIMITS, batches) {
            Ok(Body::One(message)) => vec![self.message(&message)],
            Ok(Body::Batch(items)) => items
                .iter()
                .map(|item| item.as_ref().map_or_else(rejected, |message| self.message(message)))
                .collect(),
            Err(error) => vec![rejected(&error)],
        }
    }

    fn message(&mut self, message: &Message) -> String {
        let outcome = match message.kind {
            Kind::Request | Kind::Notification => self.phase.admits(message.method),
            Kind::Result | Kind::Error => return format!("pass {:?}", message.kind),
        };
        match (outcome, message.method) {
            // RPC-06: notifications are never answered.
            (Err(_), _) if message.kind == Kind::Notification => "nothing".into(),
            (Err(refusal), _) => refused(&refusal, message),
            (Ok(()), Method::Initialize) => self.initialize(message),
            (Ok(()), Method::Initialized) => {
                self.phase = self.phase.advance(SessionPhase::Ready).expect("admitted");
                "nothing".into()
            }
            (Ok(()), Method::Ping) => {
                answer(success(message.id.as_ref().expect("a request"), b"{}"))
            }
            (Ok(()), _) => format!("pass {}", message.method_text()),
        }
    }

    fn initialize(&mut self, message: &Message) -> String {
        let params = match InitializeParams::parse(message) {
            Ok(params) => params,
            Err(refusal) => return refused(&refusal, message),
        };
        let version = Version::negotiate(&params.requested_version);
        self.version = Some(version);
        self.phase = self.phase.advance(SessionPhase::AwaitingInitialized).expect("admitted");
        let result =
            initialize_result(version, b"{\"tools\":{}}", br#"{"name":"b","version":"1"}"#, None);
        answer(success(message.id.as_ref().expect("a request"), &result))
    }
}

fn answer(bytes: Bytes) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn refused(refusal: &Refusal, message: &Message) -> String {
    answer(refusal.to_response(message.id.as_ref(), "r"))
}

fn rejected(error: &RefusedMessage) -> String {
    answer(error.refusal.to_response(error.id.as_ref(), "r"))
}

fn check(name: &str, transcript: &str) {
    let mut front = Front::new();
    let mut pending: Vec<String> = Vec::new();
    for (number, line) in transcript.lines().enumerate() {
        let line_name = format!("{name}:{}", number + 1);
        let (direction, rest) = line.split_once(' ').unwrap_or((line, ""));
        match direction {
            "" | "#" => {}
            "out" => assert_eq!(pending.first().map(String::as_str), Some(rest), "{line_name}"),
            _ => assert!(pending.is_empty(), "{line_name}: more came back: {pending:?}"),
        }
        match direction {
            "in" => pending = front.receive(rest),
            "new" => front = Front::new(),
            "out" => drop(pending.remove(0)),
            "" | "#" => {}
            other => panic!("{line_name}: unknown word {other}"),
        }
    }
    assert!(pending.is_empty(), "{name}: more came back: {pending:?}");
}

#[test]
fn lifecycle() {
    check("lifecycle.txt", include_str!("transcripts/lifecycle.txt"));
}

#[test]
fn envelope() {
    check("envelope.txt", include_str!("transcripts/envelope.txt"));
}

#[test]
fn batches() {
    check("batches.txt", include_str!("transcripts/batches.txt"));
}
