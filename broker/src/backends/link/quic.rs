//! A link over QUIC: the control stream, and streams of single requests if the backend takes them
//! ([`super::request_streams`]).

use std::sync::Arc;

use rules::limits::BACKEND_WRITE_STALL_MAX;
use transport::{
    frame::CloseReason,
    quic::{self, ConnectOptions, Limits},
};

use super::{
    Link,
    connection::Connection,
    failure::Failure,
    pipe::{self, LAST_WRITE_WAIT},
    request_streams::RequestStreams,
};

/// Connects and performs the handshakes.
pub(super) async fn open(
    link: &Arc<Link>,
    address: &str,
    server_name: Option<&String>,
    streams: Option<bool>,
) -> Result<Arc<Connection>, Failure> {
    let (context, config) = (&link.backend.context, &link.backend.context.config);
    let limits = Limits {
        message_bytes_max: link.backend.message_bytes(),
        idle_timeout: config.timeouts.quic_idle,
        stall_max: BACKEND_WRITE_STALL_MAX,
        ..Limits::default()
    };
    let options = ConnectOptions {
        address,
        egress: &config.egress,
        tls: &link
            .backend
            .resources
            .tls_clients
            .tls_client(server_name.cloned(), link.backend.spec.tls.identity())
            .await?,
        limits: &limits,
        timeout: config.timeouts.connect,
    };
    let (client, source, sink) =
        quic::connect(options).await.map_err(|error| Failure::NotSent(error.to_string()))?;
    let own = RequestStreams::new(client.clone(), streams);
    let opened =
        pipe::open_prepared(link, source, sink, |connection| connection.set_streams(own)).await?;
    // A silent backend would keep the socket open as long as the connection object, so it is closed
    // here.
    let ended = opened.clone();
    context.running.spawn(async move {
        ended.closed().await;
        if tokio::time::timeout(LAST_WRITE_WAIT, client.closed()).await.is_err() {
            client.close(CloseReason::Done);
        }
    });
    Ok(opened)
}
