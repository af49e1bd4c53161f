//! A raw QUIC client: streams as a test wants them. The library is the one the broker uses; what goes over the streams is not.

use std::{net::SocketAddr, sync::Arc};

use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, VarInt, crypto::rustls::QuicClientConfig};
use serde_json::Value;

use crate::{Authority, authority::Signed, deadline::within, duplex::Wire};

/// A connection of its own socket.
#[derive(Debug)]
pub struct QuicPeer {
    pub endpoint: Endpoint,
    pub connection: Connection,
}

impl QuicPeer {
    /// Connects, or says why not.
    pub async fn connect(address: SocketAddr, authority: &Authority, identity: Option<&Signed>, protocol: &str) -> Result<Self, String> {
        let crypto = QuicClientConfig::try_from(authority.trusting(identity, &[protocol])).expect("TLS 1.3 is among the versions");
        let endpoint = Endpoint::client(([127, 0, 0, 1], 0).into()).expect("a free port");
        let connecting = endpoint.connect_with(ClientConfig::new(Arc::new(crypto)), address, "localhost").expect("a good name");
        let connection = within("a QUIC handshake", connecting).await.map_err(|error| error.to_string())?;
        Ok(Self { endpoint, connection })
    }

    /// The first stream, on which a session lives.
    pub async fn control(&self) -> Wire {
        let (writer, reader) = within("a stream", self.connection.open_bi()).await.expect("the connection is there");
        Wire::halves(reader, writer)
    }

    /// A stream for one request, which is sent and finished.
    pub async fn request(&self, message: &Value) -> (SendStream, RecvStream) {
        let (mut writer, reader) = within("a stream", self.connection.open_bi()).await.expect("the connection is there");
        writer.write_all(format!("{message}\n").as_bytes()).await.expect("there is room for a request");
        writer.finish().expect("it is finished once");
        (writer, reader)
    }

    /// Everything that comes on a stream, until its end.
    pub async fn lines(mut reader: RecvStream) -> Vec<Value> {
        let all = within("the end of a stream", reader.read_to_end(64 << 20)).await.expect("the stream ends as it should");
        let lines = all.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).expect("a message")).collect()
    }

    /// Another port, as when a client's network changes.
    pub fn move_to_another_port(&self) {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
        self.endpoint.rebind(socket).expect("a socket like the one before");
    }

    /// Ends it with a code.
    pub fn close(&self, code: u32) {
        self.connection.close(VarInt::from_u32(code), b"");
    }

    /// Waits for the end, and says why it ended.
    pub async fn ended(&self) -> String {
        within("the end of the connection", self.connection.closed()).await.to_string()
    }
}
