//! Client certificate that the broker presents to servers that request one. A reload changes it in
//! place: existing clients present the new certificate in their next handshake.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use rustls::{SignatureScheme, client::ResolvesClientCert, sign::CertifiedKey};

use super::{TlsError, trust};

/// PEM files of a client's certificate: the chain, leaf first, and its key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientIdentityFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// A certificate and its key, from the last valid state of the files.
#[derive(Debug)]
pub struct ClientIdentity {
    files: ClientIdentityFiles,
    current: ArcSwap<CertifiedKey>,
    /// Number of reloads that changed the certificate.
    version: AtomicU64,
}

impl ClientIdentityFiles {
    /// Checks that the files are valid and belong together.
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
        Ok(Self { files, current, version: AtomicU64::new(0) })
    }

    /// Reads the files again. After an error the old certificate stays in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        let read = Arc::new(self.files.read()?);
        let replaced = self.current.swap(Arc::clone(&read));
        if replaced.cert != read.cert {
            self.version.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    /// Returns the version of the certificate. A handshake after this call presents this version or
    /// a later one.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
}

impl ResolvesClientCert for ClientIdentity {
    /// Ignores the authorities that the server names. Some servers name too few, and the operator
    /// chose this certificate for the server.
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
