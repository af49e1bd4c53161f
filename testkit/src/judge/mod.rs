//! Judges every message the broker emits: its envelope, its content by the schema of its session's
//! revision (V-04, RPC-01, V-03), and that it invents no reserved `_meta` key (META-01).
//!
//! The clients and backends of this crate report their own messages ([`Judge::record_peer_message`]) and the
//! broker's messages to them ([`JudgedExchange::check_broker_message`]). Invariant: a fault is never lost.
//! The owner holds a [`JudgeGuard`], which panics on the test's own thread when it is dropped, also
//! if a background task found the fault.

pub mod schema;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};

pub use schema::{Recipient, Revision};

/// Characters of a message that a fault shows.
const MESSAGE_CHARS_SHOWN: usize = 1_000;
/// Faults that a verdict shows.
const FAULTS_SHOWN: usize = 10;

/// Refusals by the HTTP head alone, or by a body too large to be kept: the id was not read yet.
const KINDS_BEFORE_THE_ID: [&str; 10] = [
    "host_refused",
    "insufficient_scope",
    "media_type_unsupported",
    "message_too_large",
    "not_acceptable",
    "not_found",
    "origin_refused",
    "too_many_sign_ins",
    "issuer_unavailable",
    "unauthorized",
];
/// Longest id that is repeated in a refusal; a longer one is refused.
const ID_BYTES_MAX: usize = 1_024;

/// `_meta` member that names the task of a message.
const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";

/// `_meta` members of a request of 2026-07-28 about itself.
const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const HOP_META: [&str; 4] = [
    PROTOCOL_VERSION,
    "io.modelcontextprotocol/clientCapabilities",
    "io.modelcontextprotocol/clientInfo",
    "io.modelcontextprotocol/logLevel",
];

/// `_meta` members that the broker adds to results and streams for clients of 2026-07-28.
const STATELESS_RESULT_META: [&str; 2] =
    ["io.modelcontextprotocol/serverInfo", "io.modelcontextprotocol/subscriptionId"];
/// Requests of 2026-07-28 that may be answered with `input_required`.
const MAY_REQUIRE_INPUT: [&str; 3] = ["tools/call", "prompts/get", "resources/read"];

/// Reserved `_meta` keys that some peer of this process wrote: the broker may pass those on.
static SPOKEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A request whose response has not come.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PendingRequest {
    method: String,
    as_task: bool,
}

#[derive(Debug, Default)]
struct JudgeState {
    /// Waiting requests by the session of their sender and the request's id. An id may be used
    /// again, so there may be several.
    requests: HashMap<(Option<String>, String), Vec<PendingRequest>>,
    /// Agreed revision by session.
    revisions: HashMap<String, Revision>,
    faults: Vec<String>,
}

/// State of the exchange of one broker with its clients, or of one backend with its brokers.
#[derive(Debug, Clone, Default)]
pub struct Judge(Arc<Mutex<JudgeState>>);

impl Judge {
    fn notes(&self) -> MutexGuard<'_, JudgeState> {
        self.0.lock()
    }

    /// Notes a text that a peer sent to the broker: a message, a batch, or an event stream. Any
    /// other text contains no request.
    pub fn record_peer_message(&self, session: Option<&str>, text: &[u8]) {
        let Ok(text) = std::str::from_utf8(text) else { return };
        let reserved = text.split('"').filter(|piece| is_reserved(piece)).map(str::to_owned);
        SPOKEN.lock().extend(reserved);
        match serde_json::from_str(text) {
            Ok(message) => self.remember(session, &message),
            Err(_) => text
                .lines()
                .filter_map(|line| serde_json::from_str(line.strip_prefix("data:")?).ok())
                .for_each(|message| self.remember(session, &message)),
        }
    }

    fn remember(&self, session: Option<&str>, message: &Value) {
        if let Value::Array(batch) = message {
            batch.iter().for_each(|message| self.remember(session, message));
        }
        let (Some(method), Some(id)) = (message["method"].as_str(), message.get("id")) else {
            return;
        };
        let request = PendingRequest {
            method: method.to_owned(),
            as_task: !message["params"]["task"].is_null(),
        };
        let mut notes = self.notes();
        let same_id =
            notes.requests.entry((session.map(str::to_owned), id.to_string())).or_default();
        if !same_id.contains(&request) {
            same_id.push(request);
        }
    }

    /// Judges the traffic that a stdio backend noted: `< ` begins a line it received, `> ` one it
    /// sent.
    pub fn replay(&self, record: &[u8]) {
        // The backend has a judge of its own, because its ids are its own.
        let record_judge = Self::default();
        let mut hearing = JudgedExchange::new(&record_judge, Recipient::Backend);
        // The last line may be cut short where the process was killed.
        let whole = record.rsplitn(2, |byte| *byte == b'\n').nth(1).unwrap_or_default();
        for line in whole.split(|byte| *byte == b'\n') {
            match line.split_at_checked(2) {
                Some((b"< ", heard)) => hearing.check_broker_message(heard),
                Some((b"> ", message)) => {
                    record_judge.record_peer_message(None, message);
                    let message: Value = serde_json::from_slice(message).unwrap_or_default();
                    hearing.named = message["result"]["protocolVersion"]
                        .as_str()
                        .and_then(Revision::of)
                        .or(hearing.named);
                }
                _ => {}
            }
        }
        self.notes().faults.extend(record_judge.faults());
    }

    /// Returns the faults found so far.
    pub fn faults(&self) -> Vec<String> {
        self.notes().faults.clone()
    }
}

/// Panics when dropped if its judge found a fault.
#[derive(Debug)]
pub struct JudgeGuard(pub Judge);

impl Drop for JudgeGuard {
    fn drop(&mut self) {
        let faults = self.0.faults();
        if faults.is_empty() {
            return;
        }
        let shown = faults.iter().take(FAULTS_SHOWN).cloned().collect::<Vec<_>>().join("\n\n");
        let text =
            format!("{} messages of the broker are not as MCP says:\n\n{shown}", faults.len());
        if std::thread::panicking() {
            eprintln!("{text}");
        } else {
            panic!("{text}");
        }
    }
}

/// One exchange in which the broker sends messages.
#[derive(Debug, Clone)]
pub struct JudgedExchange {
    pub judge: Judge,
    pub toward: Recipient,
    /// Session of the peer's request; after `initialize` the new one.
    pub session: Option<String>,
    pub new_session: Option<String>,
    /// The revision the peer named, if any.
    pub named: Option<Revision>,
    /// Reason why only the envelope is judged: the content is invalid on purpose and not the
    /// broker's.
    pub content_excused: Option<&'static str>,
    /// The valid id of the one request this answers, if that is known.
    pub answers: Option<Value>,
}

impl JudgedExchange {
    pub fn new(judge: &Judge, toward: Recipient) -> Self {
        Self {
            judge: judge.clone(),
            toward,
            session: None,
            new_session: None,
            named: None,
            content_excused: None,
            answers: None,
        }
    }

    /// Judges a message or batch.
    pub fn check_broker_message(&self, text: &[u8]) {
        let shown =
            || String::from_utf8_lossy(text).chars().take(MESSAGE_CHARS_SHOWN).collect::<String>();
        let found = match serde_json::from_slice::<Value>(text) {
            Ok(Value::Array(batch))
                if self.revision() == Revision::V2025_03_26 && !batch.is_empty() =>
            {
                batch.iter().try_for_each(|message| self.message(message))
            }
            Ok(message) => self.message(&message),
            // A number that the test's own reader cannot hold is relayed as it is.
            Err(_) if self.content_excused.is_some() => Ok(()),
            Err(error) => Err(format!("not JSON: {error}")),
        };
        if let Err(fault) = found {
            let fault = format!(
                "to a {:?} ({}): {}\n  {}",
                self.toward,
                self.revision().name(),
                shown(),
                fault.replace('\n', "\n  ")
            );
            self.judge.notes().faults.push(fault);
        }
    }

    fn revision(&self) -> Revision {
        let agreed = self
            .session
            .as_ref()
            .and_then(|session| self.judge.notes().revisions.get(session).copied());
        agreed.or(self.named).unwrap_or(Revision::LATEST)
    }

    fn message(&self, message: &Value) -> Result<(), String> {
        match (message.get("method"), message.get("result"), message.get("error")) {
            (Some(_), None, None) => self.check_unsolicited(message)?,
            (None, Some(result), None) => self.result(message, result)?,
            (None, None, Some(_)) => self.error(message)?,
            _ => {
                return Err("neither a request or notification nor one kind of response".to_owned());
            }
        }
        // The broker hosts tasks, so it adds this member to messages for clients by itself.
        let of_a_task = |key: &String| self.toward == Recipient::Client && key == RELATED_TASK;
        // Each request of 2026-07-28 carries what the handshake carried before.
        let of_the_hop = |key: &String| {
            self.toward == Recipient::Backend
                && is_stateless(message)
                && HOP_META.contains(&key.as_str())
        };
        let to_modern =
            self.toward == Recipient::Client && self.revision() == Revision::V2026_07_28;
        let of_the_answer =
            |key: &String| to_modern && STATELESS_RESULT_META.contains(&key.as_str());
        let is_invented = |key: &String| !of_a_task(key) && !of_the_hop(key) && !of_the_answer(key);
        let invented: Vec<String> =
            invented_keys(message).into_iter().filter(is_invented).collect();
        if invented.is_empty() {
            Ok(())
        } else {
            Err(format!("reserved _meta keys no peer wrote: {invented:?}"))
        }
    }

    /// Judges a request or notification.
    fn check_unsolicited(&self, message: &Value) -> Result<(), String> {
        let method = message["method"].as_str().ok_or("the method is not a text")?;
        let is_request = message.get("id").is_some();
        let revision = match (method, message["params"]["protocolVersion"].as_str()) {
            ("initialize", Some(offered)) => {
                Revision::of(offered).ok_or("initialize offers a version that is none")?
            }
            _ if is_stateless(message) => Revision::V2026_07_28,
            _ => self.revision(),
        };
        check(
            revision,
            if is_request { "JSONRPCRequest" } else { "JSONRPCNotification" },
            message,
        )?;
        match revision.definition_of(self.toward, is_request, method) {
            Some(_) if self.content_excused.is_some() => Ok(()),
            Some(definition) => check(revision, definition, message),
            // Tasks are an extension, which the schema does not have.
            None if revision == Revision::V2026_07_28 && method.starts_with("tasks/") => Ok(()),
            None if schema::is_mcp_method(method) => {
                let kind = if is_request { "request" } else { "notification" };
                Err(format!(
                    "{} has no {kind} {method} towards a {:?}",
                    revision.name(),
                    self.toward
                ))
            }
            None => Ok(()),
        }
    }

    fn result(&self, message: &Value, result: &Value) -> Result<(), String> {
        let request = message.get("id").and_then(|id| {
            self.judge.notes().requests.get(&(self.session.clone(), id.to_string())).cloned()
        });
        let request = request.unwrap_or_default();
        let mut revision = self.revision();
        let agreed = result["protocolVersion"].as_str().and_then(Revision::of);
        if let Some(agreed) =
            agreed.filter(|_| request.iter().any(|request| request.method == "initialize"))
        {
            revision = agreed;
            self.new_session.iter().for_each(|session| {
                self.judge.notes().revisions.insert(session.clone(), agreed);
            });
        }
        let envelope = if revision.has("JSONRPCResultResponse") {
            "JSONRPCResultResponse"
        } else {
            "JSONRPCResponse"
        };
        check(revision, envelope, message)?;
        if self.content_excused.is_some() {
            return Ok(());
        }
        let mut outcome = Ok(());
        // Clients without sessions choose the same ids: the result may belong to any of the requests.
        for PendingRequest { method, as_task } in request {
            if revision == Revision::V2026_07_28 && method.starts_with("tasks/") {
                return Ok(()); // of an extension, which the schema does not have
            }
            let definition = if revision == Revision::V2026_07_28
                && result["resultType"] != "complete"
            {
                of_another_type(&method, result)
            } else if as_task && result.get("task").is_some() && revision.has("CreateTaskResult") {
                Ok(Some("CreateTaskResult".to_owned()))
            } else {
                Ok(revision.result_of(&method))
            };
            outcome = definition.and_then(|definition| {
                definition.map_or(Ok(()), |definition| check(revision, &definition, result))
            });
            if outcome.is_ok() {
                return Ok(());
            }
        }
        outcome
    }

    fn error(&self, message: &Value) -> Result<(), String> {
        let revision = self.revision();
        let mut message = message.clone();
        if message.get("id").is_none_or(Value::is_null) {
            let unread = message["error"]["data"]["kind"]
                .as_str()
                .is_some_and(|kind| KINDS_BEFORE_THE_ID.contains(&kind));
            if let Some(id) =
                self.answers.as_ref().filter(|id| !unread && id.to_string().len() <= ID_BYTES_MAX)
            {
                return Err(format!("the error does not carry the request's id {id}"));
            }
            // JSON-RPC's null and the absent id of 2025-11-25 both mean "unknown"; older schemas
            // have no such error.
            if revision < Revision::V2025_11_25 {
                message["id"] = json!(0);
            }
        }
        let is_url_error = message["error"]["code"] == -32042;
        if revision == Revision::V2026_07_28 {
            return stateless_error(&message);
        }
        let definition = match revision {
            Revision::V2025_11_25 if is_url_error && self.content_excused.is_none() => {
                "URLElicitationRequiredError"
            }
            Revision::V2025_11_25 => "JSONRPCErrorResponse",
            _ => "JSONRPCError",
        };
        check(revision, definition, &message)
    }
}

/// Returns the definition of a result of 2026-07-28 that is not the whole answer.
fn of_another_type(method: &str, result: &Value) -> Result<Option<String>, String> {
    match result["resultType"].as_str() {
        Some("input_required") if !MAY_REQUIRE_INPUT.contains(&method) => {
            Err(format!("{method} is answered with a question"))
        }
        Some("input_required")
            if result.get("inputRequests").or(result.get("requestState")).is_none() =>
        {
            Err("a question that asks for nothing".to_owned())
        }
        Some("input_required") => Ok(Some("InputRequiredResult".to_owned())),
        // Tasks are an extension, which the schema does not have.
        Some("task") if method == "tools/call" => Ok(None),
        other => Err(format!("a result of type {other:?} to {method}")),
    }
}

/// Checks that codes of 2026-07-28 have their meaning, and none of earlier revisions is left (MCP
/// 2026-07-28, Basic: Error Codes).
fn stateless_error(message: &Value) -> Result<(), String> {
    let definition = match message["error"]["code"].as_i64() {
        Some(-32020) => "HeaderMismatchError",
        Some(-32021) => "MissingRequiredClientCapabilityError",
        Some(-32022) => "UnsupportedProtocolVersionError",
        Some(code @ (-32002 | -32042 | -32099..=-32023)) => {
            return Err(format!("2026-07-28 has no error {code}"));
        }
        _ => "JSONRPCErrorResponse",
    };
    check(Revision::V2026_07_28, definition, message)
}

fn check(revision: Revision, definition: &str, value: &Value) -> Result<(), String> {
    revision.check(definition, value).map_err(|faults| format!("is not a {definition}:\n{faults}"))
}

/// Returns whether a request has the form of 2026-07-28.
fn is_stateless(message: &Value) -> bool {
    message["params"]["_meta"][PROTOCOL_VERSION] == Revision::V2026_07_28.name()
}

/// Returns whether MCP reserves this `_meta` key, by any revision's wording.
fn is_reserved(key: &str) -> bool {
    let is_plain = |text: &str| text.len() < 200 && !text.contains(char::is_whitespace);
    key.split_once('/').is_some_and(|(prefix, _)| {
        is_plain(key)
            && prefix.split('.').any(|label| ["modelcontextprotocol", "mcp"].contains(&label))
    })
}

fn invented_keys(value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    collect_reserved(value, &mut found);
    if !found.is_empty() {
        let spoken = SPOKEN.lock();
        found.retain(|key| !spoken.contains(key));
    }
    found
}

fn collect_reserved(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            let meta = members.get("_meta").and_then(Value::as_object);
            found.extend(
                meta.iter().flat_map(|meta| meta.keys()).filter(|key| is_reserved(key)).cloned(),
            );
            members.values().for_each(|member| collect_reserved(member, found));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_reserved(item, found)),
        _ => {}
    }
}
