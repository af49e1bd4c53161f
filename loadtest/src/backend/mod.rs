//! A minimal MCP server over HTTP, TCP, WebSocket, QUIC and stdio. It does so little that a load on
//! it measures the broker or proxy in front of it.

mod http;
mod lines;
mod responder;

use std::{
    io::{Write as _, stderr},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use tokio::net::{TcpListener, TcpStream};
use transport::{
    frame::CloseReason,
    quic::{self, QuicListener},
    tls::ServerTls,
};

pub use self::lines::serve_stdio;
use self::responder::Responder;

/// Pause after a connection that could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

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
        let serving =
            tokio::spawn(accept(listener, move |socket| http::serve(socket, answers.clone())));
        Ok(Self { address, serving: serving.abort_handle() })
    }

    pub async fn tcp(address: &str, offer: &BackendOptions) -> anyhow::Result<Self> {
        let (listener, address) = bound(address).await?;
        let answers = Arc::new(Responder::new(offer));
        let serving =
            tokio::spawn(accept(listener, move |socket| lines::serve_tcp(socket, answers.clone())));
        Ok(Self { address, serving: serving.abort_handle() })
    }

    pub async fn websocket(address: &str, offer: &BackendOptions) -> anyhow::Result<Self> {
        let (listener, address) = bound(address).await?;
        let answers = Arc::new(Responder::new(offer));
        let serving = tokio::spawn(accept(listener, move |socket| {
            lines::serve_websocket(socket, answers.clone())
        }));
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

/// Accepts connections, and serves each in its own task.
async fn accept<Serving>(listener: TcpListener, serve: impl Fn(TcpStream) -> Serving)
where
    Serving: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                transport::socket_options::tune(&socket);
                tokio::spawn(serve(socket));
            }
            // Without free file descriptors, each further attempt fails too, until one is closed.
            Err(error) => {
                let _unseen =
                    writeln!(stderr(), "mcp-loadtest: cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn bound(address: &str) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener =
        TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}
