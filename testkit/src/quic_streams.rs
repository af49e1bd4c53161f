//! The scripted stdio backend behind QUIC, with requests on streams of their own. It implements the
//! binding in docs/transports.md and shares no code with the broker's implementation.
//!
//! A line of the child goes to the stream of its request, else to the control stream. A request
//! whose stream is reset or stopped is cancelled at the child.

use std::{
    collections::HashMap,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use quinn::{Connection, RecvStream, SendStream};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::Command,
    sync::mpsc,
};
use tokio_util::task::TaskTracker;

const MESSAGE_BYTES_MAX: usize = 64 << 20;
const QUEUE: usize = 1024;
/// Code with which a client gives up a request.
const CANCELLED: u32 = 16;

/// Counters of the streams of all connections.
#[derive(Debug, Default)]
pub struct StreamCounters {
    requests: AtomicUsize,
    cancelled: AtomicUsize,
    /// Methods of requests on control streams.
    control: Mutex<Vec<String>>,
}

impl StreamCounters {
    /// Returns the number of requests that came on streams of their own.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// Returns the number of those requests that their client gave up.
    pub fn cancelled(&self) -> usize {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// Returns the methods of messages on control streams.
    pub fn on_control(&self) -> Vec<String> {
        self.control.lock().clone()
    }
}

/// Settings of such a backend.
#[derive(Debug, Clone, Copy)]
pub struct StreamOptions {
    /// Set when its answer to `initialize` announces streams.
    pub announced: bool,
    /// Streams that may be open at a time, the control stream included.
    pub streams_max: u32,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { announced: true, streams_max: 101 }
    }
}

#[derive(Debug, Clone)]
struct RequestRouter {
    announced: bool,
    to_child: mpsc::Sender<String>,
    /// Streams of open requests, by the request's id as JSON.
    open: Arc<Mutex<HashMap<String, mpsc::Sender<String>>>>,
    seen: Arc<StreamCounters>,
    requests: TaskTracker,
    /// Set once no request is answered any more, under the lock of `open`.
    is_over: Arc<AtomicBool>,
}

/// Serves one connection, to its end.
pub(crate) async fn serve(
    connection: Connection,
    mut command: Command,
    mode: StreamOptions,
    seen: Arc<StreamCounters>,
) {
    let Ok((mut control_out, control_in)) = connection.accept_bi().await else { return };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().expect("the scripted backend starts");
    let (mut input, output) =
        (child.stdin.take().expect("it is piped"), child.stdout.take().expect("it is piped"));
    let (to_child, mut for_child) = mpsc::channel::<String>(QUEUE);
    let desk = RequestRouter {
        announced: mode.announced,
        to_child,
        open: Arc::default(),
        seen,
        requests: TaskTracker::new(),
        is_over: Arc::default(),
    };
    let feeding = async {
        while let Some(line) = for_child.recv().await {
            if input.write_all(format!("{line}\n").as_bytes()).await.is_err() {
                return;
            }
        }
    };
    let reading = async {
        let mut lines = BufReader::new(control_in).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let message: Value = serde_json::from_str(&line).unwrap_or_default();
            desk.seen.control.lock().extend(message["method"].as_str().map(str::to_owned));
            let _gone = desk.to_child.send(line).await;
        }
    };
    let notifications = async {
        let (mut output, mut line) = (BufReader::new(output), String::new());
        // `read_line` keeps the line end, which the last line may lack.
        while output.read_line(&mut line).await.is_ok_and(|bytes| bytes > 0) {
            let line = desk.route(std::mem::take(&mut line)).await;
            if let Some(line) = line
                && control_out.write_all(line.as_bytes()).await.is_err()
            {
                return;
            }
        }
        // The streams of unanswered requests end. Lines that were sent on them arrive before the
        // connection ends.
        {
            let mut open = desk.open.lock();
            desk.is_over.store(true, Ordering::SeqCst);
            open.clear();
        }
        desk.requests.close();
        desk.requests.wait().await;
        let _gone = control_out.finish(); // the other half may go on
        std::future::pending::<()>().await;
    };
    let accepting = async {
        while let Ok((writer, reader)) = connection.accept_bi().await {
            desk.requests.spawn(desk.clone().request(writer, reader));
        }
    };
    tokio::select! {
        () = feeding => {}
        () = reading => {}
        () = notifications => {}
        () = accepting => {}
    }
}

impl RequestRouter {
    /// Sends a line of the child to the stream of its request; returns a line that belongs to none.
    async fn route(&self, line: String) -> Option<String> {
        let mut message: Value = serde_json::from_str(&line).unwrap_or_default();
        let is_answer = message.get("method").is_none() && message.get("id").is_some();
        if is_answer && self.announced && message["result"]["protocolVersion"].is_string() {
            message["result"]["_meta"] = json!({"dev.mcp-broker/streams": true});
            return Some(format!("{message}\n"));
        }
        let stream = {
            let mut open = self.open.lock();
            match &message {
                _ if is_answer => open.remove(&message["id"].to_string()),
                _ if message["method"] == "notifications/progress" => {
                    open.get(&message["params"]["progressToken"].to_string()).cloned()
                }
                // A message that names no request belongs to the only open one.
                _ if open.len() == 1 => open.values().next().cloned(),
                _ => None,
            }
        };
        match stream {
            Some(stream) => {
                let _given_up = stream.send(line).await;
                None
            }
            None => Some(line),
        }
    }

    /// Serves one stream: a request, and the messages that belong to it.
    async fn request(self, mut writer: SendStream, mut reader: RecvStream) {
        let Ok(text) = reader.read_to_end(MESSAGE_BYTES_MAX).await else {
            self.seen.cancelled.fetch_add(1, Ordering::SeqCst);
            return;
        };
        let text = String::from_utf8(text).expect("messages are UTF-8");
        let message: Value = serde_json::from_str(&text).expect("one message on a stream");
        self.seen.requests.fetch_add(1, Ordering::SeqCst);
        let (lines, mut messages) = mpsc::channel(QUEUE);
        {
            let mut open = self.open.lock();
            // The request would wait for an answer that never comes.
            if self.is_over.load(Ordering::SeqCst) {
                return;
            }
            open.insert(message["id"].to_string(), lines);
        }
        let _gone = self.to_child.send(text.trim_end().to_owned()).await;
        let stopped = writer.stopped();
        let writing = async {
            while let Some(line) = messages.recv().await {
                let _stopped = writer.write_all(line.as_bytes()).await;
            }
        };
        tokio::select! {
            () = writing => {
                if writer.finish().is_ok() {
                    let _acknowledged = writer.stopped().await;
                }
            }
            stopped = stopped => {
                if stopped == Ok(Some(CANCELLED.into())) {
                    self.seen.cancelled.fetch_add(1, Ordering::SeqCst);
                    self.open.lock().remove(&message["id"].to_string());
                    let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": message["id"]}});
                    let _gone = self.to_child.send(cancelled.to_string()).await;
                }
            }
        }
    }
}
