//! What the broker presents to a server that asks for a certificate. Reloaded in place: clients made before present the new one in
//! their next handshake.

use std::{path::PathBuf, sync::Arc};

use arc_swap::ArcSwap;
use rustls::{SignatureScheme, client::ResolvesClientCert, sign::CertifiedKey};

use super::{TlsError, trust};

/// The files of a client's certificate, PEM: the chain, leaf first, and its key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientIdentityFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// A certificate and its key, as the files were when they were last good.
#[derive(Debug)]
pub struct ClientIdentity {
    files: ClientIdentityFiles,
    current: ArcSwap<CertifiedKey>,
}

impl ClientIdentityFiles {
    /// Whether they can be used, together.
    pub fn check(&self) -> Result<(), TlsError> {
        self.read().map(|_| ())
    }

    fn read(&self) -> Result<CertifiedKey, TlsError> {
        trust::certified_key(&self.cert, &self.key, &trust::provider())
    }
}

impl ClientIdentity {
    pub fn load(files: ClientIdentityFiles) -> Result<Self, TlsError> {
        let current = ArcSwap::from_pointee(files.read()?);
        Ok(Self { files, current })
    }

    /// Reads the files again. After an error everything is as it was.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.current.store(Arc::new(self.files.read()?));
        Ok(())
    }
}

impl ResolvesClientCert for ClientIdentity {
    /// Whatever authorities the server names: some name too few, and the operator has said which one is for it.
    fn resolve(
        &self,
        _authorities: &[&[u8]],
        schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        let current = self.current.load_full();
        current.key.choose_scheme(schemes).is_some().then_some(current)
    }

    fn has_certs(&self) -> bool {
        true
    }
}
