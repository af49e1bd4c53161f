//! The bundled demo backend: a small MCP server on standard input and output, run as a child
//! process by `mcp-broker demo`.
//!
//! It supports MCP 2025-11-25 and 2025-06-18. It has tools, progress, log messages, cancellation,
//! elicitation, resources with a subscription, and a prompt with completion. It uses nothing of the
//! broker.
//!
//! Invariant: every request gets exactly one answer, except a cancelled one, which gets none.

mod catalog;
mod session;
mod tools;

use std::{io, process::ExitCode, sync::Arc};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};
use tokio_util::task::TaskTracker;
use transport::{LineReader, LineWriter, ReadError};

use self::session::{DemoSession, RpcError};

const LINE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum number of outgoing messages. A full queue makes the sender wait.
const OUTBOX_MESSAGES_MAX: usize = 64;
/// Newest first. The first one is offered to a client that requests another.
const VERSIONS: [&str; 2] = ["2025-11-25", "2025-06-18"];

/// Serves this process's standard streams until the input ends.
pub fn run() -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("demo backend: the operating system refused an event loop: {error}");
            return ExitCode::FAILURE;
        }
    };
    let served = runtime.block_on(serve(tokio::io::stdin(), tokio::io::stdout()));
    // The thread that reads standard input cannot be interrupted.
    runtime.shutdown_background();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo backend: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin + Send + 'static,
) -> Result<(), ReadError> {
    let (outbox, queue) = mpsc::channel(OUTBOX_MESSAGES_MAX);
    let writer = tokio::spawn(write(queue, output));
    let session = Arc::new(DemoSession::new(outbox));
    let (mut lines, calls) = (LineReader::new(input, LINE_BYTES_MAX), TaskTracker::new());
    let ended = loop {
        match lines.next().await {
            Ok(Some(line)) => receive(&session, &calls, &line).await,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    session.cancel_all();
    calls.close();
    calls.wait().await;
    drop(session);
    // Ends when the last sender is dropped. A failed writer cannot report its error.
    let _ = writer.await;
    ended
}

async fn write(
    mut queue: mpsc::Receiver<Value>,
    output: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let mut writer = LineWriter::new(output);
    while let Some(message) = queue.recv().await {
        writer.send_all(&mut vec![Bytes::from(message.to_string())]).await?;
    }
    Ok(())
}

/// Handles one line of input. Requests are answered in order, except tool calls, which run
/// concurrently.
async fn receive(session: &Arc<DemoSession>, calls: &TaskTracker, line: &[u8]) {
    let message = match serde_json::from_slice::<Value>(line) {
        Ok(message) if message.is_object() => message,
        Ok(_) => {
            return session
                .answer(Value::Null, Err(RpcError::new(-32600, "not one JSON-RPC message")))
                .await;
        }
        Err(_) => return session.answer(Value::Null, Err(RpcError::new(-32700, "not JSON"))).await,
    };
    match (message["method"].as_str(), message.get("id")) {
        (Some("tools/call"), Some(id)) => {
            let (session, id, params) =
                (Arc::clone(session), id.clone(), message["params"].clone());
            // Registered before the next line is read, which may cancel it.
            let cancelled = session.start(&id);
            calls.spawn(async move {
                let answer = tokio::select! { biased;
                    () = cancelled.cancelled() => None,
                    answer = tools::call(&session, &params) => Some(answer),
                };
                session.end(&id);
                if let Some(answer) = answer {
                    session.answer(id, answer).await;
                }
            });
        }
        (Some(method), Some(id)) => {
            let answer = request(session, method, &message["params"]);
            session.answer(id.clone(), answer).await;
        }
        (Some("notifications/cancelled"), None) => session.cancel(&message["params"]["requestId"]),
        (Some(_), None) => {}
        (None, Some(id)) => session.answered(id, &message),
        (None, None) => {}
    }
}

/// Answers every request except tool calls, without waiting.
fn request(session: &DemoSession, method: &str, params: &Value) -> Result<Value, RpcError> {
    match method {
        "initialize" => Ok(initialize(session, params)),
        "ping" => Ok(json!({})),
        "tools/list" => one_page(params, "tools", catalog::tools()),
        "resources/list" => one_page(params, "resources", catalog::resources()),
        "resources/templates/list" => {
            one_page(params, "resourceTemplates", catalog::resource_templates())
        }
        "prompts/list" => one_page(params, "prompts", catalog::prompts()),
        "resources/read" => read_resource(session, text(params, "uri")?),
        "resources/subscribe" => subscribe(session, text(params, "uri")?, true),
        "resources/unsubscribe" => subscribe(session, text(params, "uri")?, false),
        "prompts/get" => catalog::prompt(text(params, "name")?, &params["arguments"]),
        "completion/complete" => Ok(catalog::complete(&params["ref"], &params["argument"])),
        "logging/setLevel" => session.set_level(text(params, "level")?),
        _ => Err(RpcError::new(-32601, format!("unknown method {method}"))),
    }
}

fn initialize(session: &DemoSession, params: &Value) -> Value {
    let requested = params["protocolVersion"].as_str().unwrap_or_default();
    let version = VERSIONS.into_iter().find(|version| *version == requested).unwrap_or(VERSIONS[0]);
    // MCP 2025-11-25, Elicitation: an empty object means forms; `url` alone does not.
    let elicitation = &params["capabilities"]["elicitation"];
    let forms =
        elicitation.as_object().is_some_and(|modes| modes.is_empty() || modes.contains_key("form"));
    session.locked(|state| state.supports_forms = forms);
    json!({
        "protocolVersion": version,
        "capabilities": {
            "tools": {}, "prompts": {}, "completions": {}, "logging": {},
            "resources": { "subscribe": true }
        },
        "serverInfo": { "name": "mcp-broker-demo", "title": "Demo backend of mcp-broker", "version": env!("CARGO_PKG_VERSION") },
        "instructions": "Try echo, add, countdown, ask and increment; subscribe to demo://counter before you increment."
    })
}

/// Returns the only page of a list. The demo gives out no cursor, so any cursor is invalid.
fn one_page(params: &Value, member: &str, list: Value) -> Result<Value, RpcError> {
    match params.get("cursor") {
        None => Ok(json!({ member: list })),
        Some(_) => Err(RpcError::invalid("this server did not issue the cursor")),
    }
}

fn read_resource(session: &DemoSession, uri: &str) -> Result<Value, RpcError> {
    let count = session.locked(|state| state.count);
    let found =
        catalog::resource_text(uri, count).ok_or_else(|| RpcError::unknown_resource(uri))?;
    Ok(json!({ "contents": [{ "uri": uri, "mimeType": "text/plain", "text": found }] }))
}

fn subscribe(session: &DemoSession, uri: &str, wanted: bool) -> Result<Value, RpcError> {
    session.locked(|state| {
        if catalog::resource_text(uri, state.count).is_none() {
            return Err(RpcError::unknown_resource(uri));
        }
        if wanted {
            state.subscriptions.insert(uri.to_owned());
        } else {
            state.subscriptions.remove(uri);
        }
        Ok(json!({}))
    })
}

fn text<'a>(params: &'a Value, name: &str) -> Result<&'a str, RpcError> {
    params[name]
        .as_str()
        .ok_or_else(|| RpcError::invalid(format!("{name} is missing or not a text")))
}

#[cfg(test)]
mod tests;
