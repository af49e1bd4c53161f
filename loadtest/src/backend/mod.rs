//! A minimal MCP server over HTTP, TCP, WebSocket, QUIC and stdio. It does so little that a load on
//! it measures the broker or proxy in front of it.

mod http;
mod lines;
mod responder;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::net::TcpListener;
use transport::{
    frame::CloseReason,
    quic::{self, QuicListener},
    tls::ServerTls,
};

pub use self::lines::serve_stdio;
use self::responder::Responder;

/// Tools, resources and delay of the server.
#[derive(Debug, Clone)]
pub struct BackendOptions {
    /// Number of tools in addition to `echo`.
    pub tools: usize,
    pub resources: usize,
    /// Delay before the answer to each tool call.
    pub delay: Duration,
}

impl Default for BackendOptions {
    fn default() -> Self {
        Self { tools: 0, resources: 10, delay: Duration::ZERO }
    }
}

/// Listens on one wire until it is dropped.
#[derive(Debug)]
pub struct Backend {
    address: SocketAddr,
    serving: tokio::task::AbortHandle,
}

impl Backend {
    pub async fn http(address: &str, offer: &BackendOptions) -> anyhow::Result<Self> {
        let (listener, address) = bound(address).await?;
        let answers = Arc::new(Responder::new(offer));
        let serving = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                transport::tcp::tune(&socket);
                tokio::spawn(http::serve(socket, answers.clone()));
            }
        });
        Ok(Self { address, serving: serving.abort_handle() })
    }

    pub async fn tcp(address: &str, offer: &BackendOptions) -> anyhow::Result<Self> {
        let (listener, address) = bound(address).await?;
        let answers = Arc::new(Responder::new(offer));
        let serving = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                transport::tcp::tune(&socket);
                tokio::spawn(lines::serve_tcp(socket, answers.clone()));
            }
        });
        Ok(Self { address, serving: serving.abort_handle() })
    }

    pub async fn websocket(address: &str, offer: &BackendOptions) -> anyhow::Result<Self> {
        let (listener, address) = bound(address).await?;
        let answers = Arc::new(Responder::new(offer));
        let serving = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                transport::tcp::tune(&socket);
                tokio::spawn(lines::serve_websocket(socket, answers.clone()));
            }
        });
        Ok(Self { address, serving: serving.abort_handle() })
    }

    pub async fn quic(
        address: &str,
        tls: Arc<ServerTls>,
        offer: &BackendOptions,
    ) -> anyhow::Result<Self> {
        let listener = QuicListener::bind(address.parse()?, tls, quic::Limits::default(), None)?;
        let address = listener.local_addr()?;
        let answers = Arc::new(Responder::new(offer));
        let serving = tokio::spawn(async move {
            while let Some(incoming) = listener.accept().await {
                tokio::spawn(lines::serve_quic(incoming, answers.clone()));
            }
            listener.close(CloseReason::Done);
        });
        Ok(Self { address, serving: serving.abort_handle() })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn bound(address: &str) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener =
        TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}
