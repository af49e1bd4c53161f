//! An HTTP server whose answer to a call is the test's own, byte for byte. It answers everything
//! else correctly.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};

/// Answer to a call by the tool's name: bytes, with `@ID@` for the id, and whether the connection
/// then ends.
type Script = Arc<dyn Fn(&str) -> Option<RawAnswer> + Send + Sync>;

#[derive(Debug, Clone)]
pub(super) struct RawAnswer {
    pub(super) bytes: Vec<u8>,
    /// Bytes that are written again and again, until the write fails.
    pub(super) endless: Vec<u8>,
    pub(super) close: bool,
}

impl RawAnswer {
    pub(super) fn of(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), endless: Vec::new(), close: true }
    }
}

pub(super) struct RawHttp {
    address: SocketAddr,
    calls: Arc<AtomicUsize>,
    server: AbortHandle,
}

impl RawHttp {
    pub(super) async fn start(
        script: impl Fn(&str) -> Option<RawAnswer> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (script, calls): (Script, _) = (Arc::new(script), Arc::new(AtomicUsize::new(0)));
        let counted = calls.clone();
        let server = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, script.clone(), counted.clone()));
            }
        });
        Self { address, calls, server: server.abort_handle() }
    }

    pub(super) fn spec(&self) -> Value {
        json!({"transport": {"type": "http", "url": format!("http://{}/mcp", self.address)}})
    }

    /// Returns the number of calls that came.
    pub(super) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Drop for RawHttp {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(mut socket: TcpStream, script: Script, calls: Arc<AtomicUsize>) {
    let mut read = Vec::new();
    while let Some((head, body)) = request(&mut socket, &mut read).await {
        let message: Value = serde_json::from_slice(&body).unwrap_or_default();
        let answer = match (head.starts_with("POST"), message["method"].as_str()) {
            (true, Some("tools/call")) => {
                calls.fetch_add(1, Ordering::SeqCst);
                script(message["params"]["name"].as_str().unwrap_or_default())
            }
            (true, _) => None,
            (false, _) => Some(RawAnswer {
                close: false,
                ..RawAnswer::of("HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
            }),
        };
        let answer = answer
            .unwrap_or_else(|| RawAnswer { close: false, ..RawAnswer::of(ordinary(&message)) });
        if write_answer(&mut socket, answer, &message["id"].to_string()).await.is_none() {
            return;
        }
    }
}

async fn write_answer(socket: &mut TcpStream, answer: RawAnswer, id: &str) -> Option<()> {
    let bytes = replaced(&answer.bytes, id);
    socket.write_all(&bytes).await.ok()?;
    while !answer.endless.is_empty() {
        socket.write_all(&answer.endless).await.ok()?;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    if answer.close { None } else { Some(()) }
}

fn replaced(bytes: &[u8], id: &str) -> Vec<u8> {
    match bytes.windows(4).position(|window| window == b"@ID@") {
        // The id has as many bytes as the placeholder, because lengths come before it.
        Some(at) => [&bytes[..at], format!("{id:>4}").as_bytes(), &bytes[at + 4..]].concat(),
        None => bytes.to_vec(),
    }
}

fn ordinary(message: &Value) -> String {
    let result = match message["method"].as_str() {
        Some("initialize") => {
            json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "1"}})
        }
        Some("tools/list") => json!({"tools": []}),
        Some("tools/call") => json!({"content": [{"type": "text", "text": "fine"}]}),
        _ => json!({}),
    };
    if message["id"].is_null() {
        return "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".to_owned();
    }
    json_answer(&json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string(), "")
}

/// Returns a whole response with a JSON body and further header lines.
pub(super) fn json_answer(body: &str, headers: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Reads head and body of the next request.
async fn request(socket: &mut TcpStream, read: &mut Vec<u8>) -> Option<(String, Vec<u8>)> {
    loop {
        if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&read[..end]).into_owned();
            let length = head.lines().find_map(|line| {
                line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok()
            });
            let total = end + 4 + length.unwrap_or(0);
            if read.len() >= total {
                let body = read[end + 4..total].to_vec();
                read.drain(..total);
                return Some((head, body));
            }
        }
        if socket.read_buf(read).await.ok()? == 0 {
            return None;
        }
    }
}
