//! A raw QUIC client with direct access to streams. It shares the library with the broker, but not
//! the code for messages on streams.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use quinn::{
    ClientConfig, Connection, Endpoint, RecvStream, SendStream, TokenStore, TransportConfig,
    VarInt, crypto::rustls::QuicClientConfig,
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::UdpSocket,
    sync::mpsc,
    task::JoinSet,
};

use crate::{
    Authority,
    authority::CertificateFiles,
    deadline::within,
    duplex::{QUEUE, Wire},
};

/// A QUIC connection with a socket of its own.
#[derive(Debug)]
pub struct QuicPeer {
    pub endpoint: Endpoint,
    pub connection: Connection,
}

impl QuicPeer {
    /// Connects; `Err` is the reason of a failure.
    pub async fn connect(
        address: SocketAddr,
        authority: &Authority,
        identity: Option<&CertificateFiles>,
        protocol: &str,
    ) -> Result<Self, String> {
        Self::connect_with(TransportConfig::default(), address, authority, identity, protocol).await
    }

    /// Connects with a receive window of so many bytes for each stream.
    pub async fn connect_narrowly(
        address: SocketAddr,
        authority: &Authority,
        stream_bytes: u32,
    ) -> Self {
        let mut transport = TransportConfig::default();
        transport.stream_receive_window(VarInt::from_u32(stream_bytes));
        Self::connect_with(transport, address, authority, None, "mcp")
            .await
            .expect("the listener accepts")
    }

    async fn connect_with(
        transport: TransportConfig,
        address: SocketAddr,
        authority: &Authority,
        identity: Option<&CertificateFiles>,
        protocol: &str,
    ) -> Result<Self, String> {
        let crypto = QuicClientConfig::try_from(authority.trusting(identity, &[protocol]))
            .expect("TLS 1.3 is among the versions");
        let endpoint = Endpoint::client(([127, 0, 0, 1], 0).into()).expect("a free port");
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(Arc::new(transport));
        let connecting = endpoint.connect_with(config, address, "localhost").expect("a good name");
        let connection =
            within("a QUIC handshake", connecting).await.map_err(|error| error.to_string())?;
        Ok(Self { endpoint, connection })
    }

    /// Returns the first datagrams of a client, which a test can send from any address. `token`:
    /// the proof of its address that it shows.
    pub async fn hello(
        authority: &Authority,
        protocol: &str,
        token: Option<&'static [u8]>,
    ) -> Vec<Vec<u8>> {
        let crypto = QuicClientConfig::try_from(authority.trusting(None, &[protocol]))
            .expect("TLS 1.3 is among the versions");
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.token_store(Arc::new(OneToken(token)));
        let nobody = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let endpoint = Endpoint::client(([127, 0, 0, 1], 0).into()).expect("a free port");
        let _connecting = endpoint
            .connect_with(config, nobody.local_addr().expect("it is bound"), "localhost")
            .expect("a good name");
        let mut datagrams: Vec<Vec<u8>> = Vec::new();
        // The second datagram is the rest of a long hello, or a repetition because no answer came.
        while datagrams.len() < 2 {
            let mut datagram = vec![0; 2048];
            let count =
                within("a hello", nobody.recv(&mut datagram)).await.expect("the socket is there");
            datagram.truncate(count);
            datagrams.push(datagram);
        }
        datagrams
    }

    /// Opens the first stream, which carries a session.
    pub async fn control(&self) -> Wire {
        let (writer, reader) =
            within("a stream", self.connection.open_bi()).await.expect("the connection is there");
        Wire::halves(reader, writer)
    }

    /// Returns the session's wire, with each request but the first on a stream of its own.
    pub async fn streams(&self) -> Wire {
        let Wire { out: control, incoming: mut from_control, mut tasks } = self.control().await;
        let (out, mut outgoing) = mpsc::channel::<String>(QUEUE);
        let (sender, incoming) = mpsc::channel(QUEUE);
        let (connection, answers) = (self.connection.clone(), sender.clone());
        let sending = tokio::spawn(async move {
            let mut requests = JoinSet::new();
            while let Some(text) = outgoing.recv().await {
                let message: Value = serde_json::from_str(&text).unwrap_or_default();
                let is_further =
                    message["method"].as_str().is_some_and(|method| method != "initialize")
                        && message.get("id").is_some();
                if is_further {
                    requests.spawn(exchange(connection.clone(), text, answers.clone()));
                } else if control.send(text).await.is_err() {
                    return;
                }
            }
        });
        let hearing = tokio::spawn(async move {
            while let Some(reply) = from_control.recv().await {
                if sender.send(reply).await.is_err() {
                    return;
                }
            }
        });
        tasks.extend([sending.abort_handle(), hearing.abort_handle()]);
        Wire { out, incoming, tasks }
    }

    /// Opens a stream for one request, which is sent and finished.
    pub async fn request(&self, message: &Value) -> (SendStream, RecvStream) {
        let (mut writer, reader) =
            within("a stream", self.connection.open_bi()).await.expect("the connection is there");
        writer
            .write_all(format!("{message}\n").as_bytes())
            .await
            .expect("there is room for a request");
        writer.finish().expect("it is finished once");
        (writer, reader)
    }

    /// Reads everything on a stream until its end.
    pub async fn lines(mut reader: RecvStream) -> Vec<Value> {
        let all = within("the end of a stream", reader.read_to_end(64 << 20))
            .await
            .expect("the stream ends as it should");
        let lines = all.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).expect("a message")).collect()
    }

    /// Moves to another port, as when a client's network changes.
    pub fn move_to_another_port(&self) {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
        self.endpoint.rebind(socket).expect("a socket like the one before");
    }

    /// Closes the connection with a code.
    pub fn close(&self, code: u32) {
        self.connection.close(VarInt::from_u32(code), b"");
    }

    /// Waits for the end of the connection; returns the reason.
    pub async fn ended(&self) -> String {
        within("the end of the connection", self.connection.closed()).await.to_string()
    }
}

/// Token that a client shows as if from an earlier connection.
struct OneToken(Option<&'static [u8]>);

impl TokenStore for OneToken {
    fn insert(&self, _: &str, _: Bytes) {}

    fn take(&self, _: &str) -> Option<Bytes> {
        self.0.map(Bytes::from_static)
    }
}

/// Sends a request on its stream; passes the answers on.
async fn exchange(
    connection: Connection,
    text: String,
    sender: mpsc::Sender<Result<String, String>>,
) {
    let Ok((mut writer, reader)) = connection.open_bi().await else { return };
    if writer.write_all(format!("{text}\n").as_bytes()).await.is_err() || writer.finish().is_err() {
        return;
    }
    let mut lines = BufReader::new(reader).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if sender.send(Ok(line)).await.is_err() {
            return;
        }
    }
}
