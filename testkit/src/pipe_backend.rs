//! The scripted stdio backend behind a socket: each connection is a process of its own, and bytes are passed on as they are.

use std::{
    net::SocketAddr,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    process::Command,
    task::AbortHandle,
};

use crate::{StdioScript, abort_on_drop::AbortOnDrop};

/// A backend on a port of 127.0.0.1; gone when dropped.
#[derive(Debug)]
pub struct PipeBackend {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    connections: Arc<Mutex<Vec<AbortHandle>>>,
    _server: AbortOnDrop,
}

impl PipeBackend {
    /// Messages as lines over TCP.
    pub async fn tcp(script: &StdioScript) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Self::on(listener, script.clone())
    }

    fn on(listener: TcpListener, script: StdioScript) -> Self {
        let address = listener.local_addr().expect("a bound listener has an address");
        let (accepted, connections) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (counted, kept) = (accepted.clone(), connections.clone());
        let server = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let serving = tokio::spawn(serve(socket, script.command()));
                kept.lock().expect("nothing panics while it holds this lock").push(serving.abort_handle());
            }
        });
        Self { address, accepted, connections, _server: AbortOnDrop(server) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The admin API's body for this backend.
    pub fn spec(&self) -> Value {
        json!({"transport": {"type": "tcp", "address": self.address.to_string()}})
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Ends every connection there is.
    pub fn cut(&self) {
        self.connections.lock().expect("nothing panics while it holds this lock").drain(..).for_each(|connection| connection.abort());
    }
}

impl Drop for PipeBackend {
    fn drop(&mut self) {
        self.cut();
    }
}

/// One connection: until either side ends.
async fn serve(mut socket: TcpStream, mut command: Command) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().expect("the scripted backend starts");
    let (mut input, mut output) = (child.stdin.take().expect("it is piped"), child.stdout.take().expect("it is piped"));
    let (mut reader, mut writer) = socket.split();
    let to_child = async {
        let _ended = tokio::io::copy(&mut reader, &mut input).await;
    };
    let from_child = async {
        let _ended = tokio::io::copy(&mut output, &mut writer).await;
        let _gone = writer.shutdown().await;
    };
    tokio::select! {
        () = to_child => {}
        () = from_child => {}
    }
}
