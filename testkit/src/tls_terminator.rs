//! TLS in front of a server without it: terminates TLS and passes the bytes on.

use std::{net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use rustls::{ServerConfig, pki_types::CertificateDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::abort_on_drop::AbortOnDrop;

/// A listener on a port of 127.0.0.1; gone when dropped.
#[derive(Debug)]
pub struct TlsTerminator {
    address: SocketAddr,
    shown: Arc<Mutex<Vec<Option<CertificateDer<'static>>>>>,
    _server: AbortOnDrop,
}

impl TlsTerminator {
    pub async fn start(target: SocketAddr, config: ServerConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let (acceptor, shown) =
            (TlsAcceptor::from(Arc::new(config)), Arc::new(Mutex::new(Vec::new())));
        let seen = shown.clone();
        let server = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, seen) = (acceptor.clone(), seen.clone());
                tokio::spawn(async move {
                    let (Ok(mut stream), Ok(mut target)) =
                        (acceptor.accept(socket).await, TcpStream::connect(target).await)
                    else {
                        return;
                    };
                    let leaf = stream
                        .get_ref()
                        .1
                        .peer_certificates()
                        .and_then(|chain| chain.first())
                        .map(|leaf| leaf.clone().into_owned());
                    seen.lock().push(leaf);
                    let _ended = tokio::io::copy_bidirectional(&mut stream, &mut target).await;
                });
            }
        });
        Self { address, shown, _server: AbortOnDrop(server) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the certificates that clients showed, one for each handshake that was completed.
    pub fn client_certificates(&self) -> Vec<Option<CertificateDer<'static>>> {
        self.shown.lock().clone()
    }
}
