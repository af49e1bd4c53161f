//! Lines on TCP connections in front of a scriptable backend: each connection is a session.

use std::net::SocketAddr;

use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{abort_on_drop::AbortOnDrop, duplex::Wire};

/// Listener that runs until it is dropped.
pub(super) struct LineBridge {
    pub(super) address: SocketAddr,
    _listening: AbortOnDrop,
}

impl LineBridge {
    pub(super) async fn to(backend: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port on loopback");
        let address = listener.local_addr().expect("a bound listener has an address");
        let listening = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).expect("it is open");
                connections.spawn(pass(stream, backend));
            }
        });
        Self { address, _listening: AbortOnDrop(listening) }
    }
}

/// Passes messages both ways until one side ends.
async fn pass(stream: TcpStream, backend: SocketAddr) {
    let (mut near, mut far) = (Wire::lines(stream), Wire::streamable_http(backend, "/mcp"));
    loop {
        let (text, to) = tokio::select! {
            text = near.incoming.recv() => (text, &far.out),
            text = far.incoming.recv() => (text, &near.out),
        };
        let Some(Ok(text)) = text else { return };
        if to.send(text).await.is_err() {
            return;
        }
    }
}
