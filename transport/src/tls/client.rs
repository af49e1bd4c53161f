//! TLS of the clients of TCP, WebSocket and QUIC: trusted authorities and presented certificates.
//!
//! Clients always verify certificates: against the system's authorities and, if configured, a file
//! of further ones.

use std::{path::PathBuf, sync::Arc};

use rustls::{
    ClientConfig,
    pki_types::ServerName,
    version::{TLS12, TLS13},
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{ALPN_HTTP1, ALPN_MCP, ClientIdentity, TlsError, trust, trust::without_resumption};
use crate::{connect_error::ConnectError, tcp::Stream};

/// TLS settings of a backend beyond the defaults.
#[derive(Debug, Clone, Default)]
pub struct ClientTlsFiles {
    /// PEM file of authorities trusted in addition to those of the system.
    pub ca: Option<PathBuf>,
    /// Certificate presented to servers that request one.
    pub identity: Option<Arc<ClientIdentity>>,
    /// Name expected in the certificate, if it differs from the host connected to.
    pub server_name: Option<String>,
}

/// Configurations for all wires. Clones are cheap.
#[derive(Debug, Clone)]
pub struct ClientTls {
    tcp: Arc<ClientConfig>,
    websocket: Arc<ClientConfig>,
    quic: Arc<ClientConfig>,
    server_name: Option<ServerName<'static>>,
    may_lack_roots: bool,
}

impl ClientTls {
    pub fn load(files: &ClientTlsFiles) -> Result<Self, TlsError> {
        let trust::SystemRoots { store: mut roots, may_lack_some } = trust::system_roots();
        if let Some(ca) = &files.ca {
            trust::add_authorities(&mut roots, ca)?;
        }
        let builder = ClientConfig::builder_with_provider(trust::provider())
            .with_protocol_versions(&[&TLS13, &TLS12])?
            .with_root_certificates(roots);
        let config = match &files.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                without_resumption(builder.with_client_cert_resolver(Arc::clone(identity) as _))
            }
        };
        let speaking = |protocols: &[&[u8]]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            Arc::new(config)
        };
        let name = |name: &String| {
            ServerName::try_from(name.clone())
                .map_err(|_| TlsError::ServerName { name: name.clone() })
        };
        Ok(Self {
            // A TLS proxy in front of a TCP backend may not support our protocol's name, so the
            // client requests none.
            tcp: speaking(&[]),
            websocket: speaking(&[ALPN_HTTP1]),
            quic: speaking(&[ALPN_MCP]),
            server_name: files.server_name.as_ref().map(name).transpose()?,
            may_lack_roots: may_lack_some,
        })
    }

    /// Returns whether a read error left out authorities of the system that a later load may find.
    pub fn may_lack_roots(&self) -> bool {
        self.may_lack_roots
    }

    pub(crate) async fn secure_tcp(
        &self,
        tcp: TcpStream,
        host: &str,
    ) -> Result<Stream, ConnectError> {
        self.secure(&self.tcp, tcp, host).await
    }

    pub(crate) async fn secure_websocket(
        &self,
        tcp: TcpStream,
        host: &str,
    ) -> Result<Stream, ConnectError> {
        self.secure(&self.websocket, tcp, host).await
    }

    /// Returns the configuration for QUIC, which requires TLS 1.3.
    pub(crate) fn quic(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.quic)
    }

    /// Returns the name that the server has to prove.
    pub(crate) fn server_name(&self, host: &str) -> Result<ServerName<'static>, ConnectError> {
        match &self.server_name {
            Some(name) => Ok(name.clone()),
            None => ServerName::try_from(host.to_owned())
                .map_err(|error| ConnectError::Tls { reason: format!("{host}: {error}") }),
        }
    }

    async fn secure(
        &self,
        config: &Arc<ClientConfig>,
        tcp: TcpStream,
        host: &str,
    ) -> Result<Stream, ConnectError> {
        let name = self.server_name(host)?;
        let stream = TlsConnector::from(Arc::clone(config)).connect(name, tcp).await;
        let stream = stream.map_err(|error| ConnectError::Tls { reason: error.to_string() })?;
        Ok(Stream::Tls(Box::new(stream.into())))
    }
}
