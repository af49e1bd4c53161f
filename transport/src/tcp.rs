//! TCP connections, with and without TLS: connecting, and splitting into frames.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::timeout,
};
use tokio_rustls::TlsStream;

use crate::{
    connect::{self, host_and_port},
    connect_error::ConnectError,
    egress::EgressPolicy,
    lines::{LineReader, LineWriter},
    resolver::Resolver,
    stall::StallGuard,
    tls::{ClientCertificate, ClientTls},
};

/// A connection, with or without TLS.
#[derive(Debug)]
pub enum Stream {
    Plain(TcpStream),
    // Boxed: an idle plain connection would otherwise waste most of its memory on unused TLS state.
    Tls(Box<TlsStream<TcpStream>>),
}

/// Connects to `address` (`host:port`) under the policy, with TLS if it is given. All of it takes
/// at most `limit`.
pub async fn connect(
    address: &str,
    egress: &EgressPolicy,
    tls: Option<&ClientTls>,
    limit: Duration,
) -> Result<Stream, ConnectError> {
    let connecting = async {
        let (host, port) = host_and_port(address)?;
        let tcp = connect::open(Resolver::shared(), host, port, egress).await?;
        match tls {
            None => Ok(Stream::Plain(tcp)),
            Some(tls) => tls.secure_tcp(tcp, host).await,
        }
    };
    timeout(limit, connecting).await.unwrap_or(Err(ConnectError::Timeout))
}

impl Stream {
    /// Returns the client's certificate, or `None` if the listener requested none or the client has
    /// none.
    pub fn client_certificate(&self) -> Option<ClientCertificate> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => {
                stream.get_ref().1.peer_certificates().and_then(ClientCertificate::new)
            }
        }
    }

    /// Returns the socket itself, for its addresses and options.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }

    /// Splits the connection for two tasks. Without TLS the halves share no lock, so reads and
    /// writes never wait for each other.
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        match self {
            Self::Plain(socket) => {
                let (reader, writer) = socket.into_split();
                (ReadHalf::Plain(reader), WriteHalf::Plain(writer))
            }
            Self::Tls(stream) => {
                let (reader, writer) = tokio::io::split(*stream);
                (ReadHalf::Tls(reader), WriteHalf::Tls(writer))
            }
        }
    }

    /// Frames the connection as lines of at most `line_bytes_max` bytes. A write without progress
    /// for `stall` ends the connection.
    pub fn into_lines(
        self,
        line_bytes_max: usize,
        stall: Duration,
    ) -> (LineReader<ReadHalf>, LineWriter<StallGuard<WriteHalf>>) {
        let (reader, writer) = self.split();
        (LineReader::new(reader, line_bytes_max), LineWriter::new(StallGuard::new(writer, stall)))
    }
}

#[derive(Debug)]
pub enum ReadHalf {
    Plain(OwnedReadHalf),
    Tls(tokio::io::ReadHalf<TlsStream<TcpStream>>),
}

#[derive(Debug)]
pub enum WriteHalf {
    Plain(OwnedWriteHalf),
    Tls(tokio::io::WriteHalf<TlsStream<TcpStream>>),
}

/// Implements reading and writing for both variants.
macro_rules! delegate_read {
    ($name:ident) => {
        impl AsyncRead for $name {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
                    Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
                }
            }
        }
    };
}

macro_rules! delegate_write {
    ($name:ident) => {
        impl AsyncWrite for $name {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
                    Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
                }
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                slices: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
                    Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
                }
            }

            fn is_write_vectored(&self) -> bool {
                match self {
                    Self::Plain(stream) => stream.is_write_vectored(),
                    Self::Tls(stream) => stream.is_write_vectored(),
                }
            }

            fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::Plain(stream) => Pin::new(stream).poll_flush(context),
                    Self::Tls(stream) => Pin::new(stream).poll_flush(context),
                }
            }

            fn poll_shutdown(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
                    Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
                }
            }
        }
    };
}

delegate_read!(Stream);
delegate_read!(ReadHalf);
delegate_write!(Stream);
delegate_write!(WriteHalf);
