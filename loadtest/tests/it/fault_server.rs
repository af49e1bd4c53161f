//! A server with one fault, over TCP or HTTP. It answers most calls correctly.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Mutex,
    task::AbortHandle,
};

/// Fault of every tenth call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// No answer. Over HTTP the connection ends instead.
    Drops,
    Doubles,
    /// The id is correct, but the payload is that of the previous call.
    Swaps,
    /// The payload is correct, but the id is that of the previous call.
    Renames,
    Corrupts,
    /// The answer has the number of a request that was never sent.
    Invents,
    /// The answer comes after this time.
    Delays(Duration),
    Refuses,
    /// Once, no call gets an answer for this time.
    StandsStill(Duration),
    /// TCP: after a hundred calls, each connection ends at its next call.
    HangsUp,
    /// HTTP: the connection ends after each answer, without an announcement.
    ClosesIdle,
    /// HTTP/1.0: an answer has no length and ends with the connection.
    ClosesEach,
    /// HTTP: a GET gets no answer.
    OpensNoStream,
    /// HTTP: agrees on this revision only, and answers 400 to requests without it.
    OnlyRevision(&'static str),
}

#[derive(Debug)]
pub(crate) struct FaultServer {
    address: SocketAddr,
    accepting: AbortHandle,
}

#[derive(Debug)]
struct State {
    fault: Fault,
    calls: AtomicU64,
    /// The id and text of the previous call.
    last: Mutex<(Value, Value)>,
    standing: Mutex<()>,
}

impl FaultServer {
    pub(crate) async fn tcp(fault: Fault) -> Self {
        Self::start(fault, false).await
    }

    pub(crate) async fn http(fault: Fault) -> Self {
        Self::start(fault, true).await
    }

    async fn start(fault: Fault, http: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let state = Arc::new(State {
            fault,
            calls: AtomicU64::new(0),
            last: Mutex::default(),
            standing: Mutex::default(),
        });
        let accepting = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (reader, writer) = socket.into_split();
                let (reader, state) = (BufReader::new(reader), state.clone());
                tokio::spawn(async move {
                    if http {
                        state.over_http(reader, writer).await
                    } else {
                        state.over_tcp(reader, writer).await
                    }
                });
            }
        });
        Self { address, accepting: accepting.abort_handle() }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for FaultServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl State {
    async fn over_tcp(self: Arc<Self>, reader: BufReader<OwnedReadHalf>, writer: OwnedWriteHalf) {
        let (mut lines, writer) = (reader.lines(), Arc::new(Mutex::new(writer)));
        while let Ok(Some(line)) = lines.next_line().await {
            if self.fault == Fault::HangsUp && self.calls.load(Ordering::SeqCst) >= 100 {
                return;
            }
            let (state, writer) = (self.clone(), writer.clone());
            // Each call has its own task, so that a delayed one does not delay others.
            tokio::spawn(async move {
                for answer in state.answers(&line).await {
                    let _gone =
                        writer.lock().await.write_all(format!("{answer}\n").as_bytes()).await;
                }
            });
        }
    }

    async fn over_http(
        self: Arc<Self>,
        mut reader: BufReader<OwnedReadHalf>,
        mut writer: OwnedWriteHalf,
    ) {
        while let Some(Request { revision, body }) = request(&mut reader).await {
            if self.fault == Fault::OpensNoStream && body.is_empty() {
                return std::future::pending().await;
            }
            let message: Value = serde_json::from_str(&body).unwrap_or_default();
            let mut out = String::new();
            if let Fault::OnlyRevision(only) = self.fault
                && message["method"] != "initialize"
                && revision.as_deref() != Some(only)
            {
                let refusal = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
                let _gone = writer.write_all(refusal).await;
                continue;
            }
            for answer in self.answers(&body).await {
                let answer = answer.to_string();
                let (version, length) = match self.fault {
                    Fault::ClosesEach => ("1.0", String::new()),
                    _ => ("1.1", format!("Content-Length: {}\r\n", answer.len())),
                };
                out += &format!(
                    "HTTP/{version} 200 OK\r\nContent-Type: application/json\r\n{length}\r\n{answer}"
                );
            }
            if out.is_empty() && message["id"].is_null() {
                out = "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n".to_owned();
            }
            if out.is_empty() || writer.write_all(out.as_bytes()).await.is_err() {
                return;
            }
            let closes_idle = self.fault == Fault::ClosesIdle && message["method"] == "tools/call";
            if closes_idle || self.fault == Fault::ClosesEach {
                return;
            }
        }
    }

    async fn answers(&self, line: &str) -> Vec<Value> {
        let message: Value = serde_json::from_str(line).expect("a client speaks JSON");
        let id = message["id"].clone();
        let answer =
            |id: &Value, result: Value| json!({"jsonrpc": "2.0", "id": id, "result": result});
        match message["method"].as_str().unwrap_or_default() {
            _ if id.is_null() => Vec::new(),
            "initialize" => {
                let revision = match self.fault {
                    Fault::OnlyRevision(only) => only,
                    _ => "2025-11-25",
                };
                vec![answer(
                    &id,
                    json!({"protocolVersion": revision, "capabilities": {}, "serverInfo": {"name": "f", "version": "1"}}),
                )]
            }
            _ => {
                let text = message["params"]["arguments"]["text"].clone();
                let number = self.calls.fetch_add(1, Ordering::SeqCst);
                let before =
                    std::mem::replace(&mut *self.last.lock().await, (id.clone(), text.clone()));
                let echo = |text: &Value| json!({"content": [{"type": "text", "text": text}]});
                let right = answer(&id, echo(&text));
                if let Fault::StandsStill(time) = self.fault {
                    let _others_wait = self.standing.lock().await;
                    if number == 100 {
                        tokio::time::sleep(time).await;
                    }
                    return vec![right];
                }
                if number % 10 != 9 {
                    return vec![right];
                }
                match self.fault {
                    Fault::None
                    | Fault::StandsStill(_)
                    | Fault::HangsUp
                    | Fault::ClosesIdle
                    | Fault::ClosesEach
                    | Fault::OpensNoStream
                    | Fault::OnlyRevision(_) => vec![right],
                    Fault::Drops => Vec::new(),
                    Fault::Doubles => vec![right.clone(), right],
                    Fault::Swaps => vec![answer(&id, echo(&before.1))],
                    Fault::Renames => vec![answer(&before.0, echo(&text))],
                    Fault::Corrupts => vec![answer(
                        &id,
                        echo(&json!(text.as_str().unwrap_or_default().replacen("work", "wurk", 1))),
                    )],
                    Fault::Invents => vec![right, answer(&json!(1_000_000_007), echo(&text))],
                    Fault::Delays(time) => {
                        tokio::time::sleep(time).await;
                        vec![right]
                    }
                    Fault::Refuses => vec![
                        json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32001, "message": "no"}}),
                    ],
                }
            }
        }
    }
}

struct Request {
    /// Value of `MCP-Protocol-Version`.
    revision: Option<String>,
    body: String,
}

/// Returns the next request.
async fn request(reader: &mut BufReader<OwnedReadHalf>) -> Option<Request> {
    let (mut length, mut revision) = (0, None);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let header = line.to_ascii_lowercase();
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if let Some(value) = header.strip_prefix("mcp-protocol-version:") {
            revision = Some(value.trim().to_owned());
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await.ok()?;
    Some(Request { revision, body: String::from_utf8(body).ok()? })
}

/// Returns an address without a listener.
pub(crate) async fn refusing_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    drop(listener);
    assert!(TcpStream::connect(address).await.is_err());
    address
}
