//! Reads certificates and keys from PEM files, and the authorities this system trusts.

use std::{
    path::Path,
    sync::{Arc, OnceLock},
};

use rustls::{
    RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};

use super::TlsError;

/// The one cryptography library of this process.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// The authorities the operating system trusts, as they are when all of them could be read first: that takes longer than anything
/// else at the start of a process. Their absence is no error: an own one may be configured.
pub(crate) fn system_roots() -> RootCertStore {
    static ROOTS: OnceLock<RootCertStore> = OnceLock::new();
    if let Some(roots) = ROOTS.get() {
        return roots.clone();
    }
    let (roots, is_whole) = read_system_roots();
    if is_whole { ROOTS.get_or_init(|| roots).clone() } else { roots }
}

/// And whether they are all there are.
fn read_system_roots() -> (RootCertStore, bool) {
    let mut roots = RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    for error in &native.errors {
        tracing::warn!(%error, "a system certificate authority could not be read");
    }
    roots.add_parsable_certificates(native.certs);
    if roots.is_empty() {
        tracing::warn!(
            "this system has no certificate authorities installed, backends over tls need an extra one"
        );
    }
    let is_whole = native.errors.is_empty() && !roots.is_empty();
    (roots, is_whole)
}

/// Adds every certificate of the file; each has to be usable.
pub(super) fn add_authorities(roots: &mut RootCertStore, path: &Path) -> Result<(), TlsError> {
    for authority in certificates(path)? {
        roots.add(authority).map_err(|error| TlsError::Authority {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
    }
    Ok(())
}

/// A chain and its private key, which have to belong together.
pub(super) fn certified_key(
    cert: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsError> {
    let chain = certificates(cert)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error))?;
    CertifiedKey::from_der(chain, private, provider).map_err(|error| TlsError::Pair {
        cert: cert.to_owned(),
        key: key.to_owned(),
        reason: error.to_string(),
    })
}

/// What authorities have revoked.
pub(super) fn revocation_lists(
    path: &Path,
) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> =
        CertificateRevocationListDer::pem_file_iter(path).and_then(Iterator::collect);
    let found = found.map_err(|error| unreadable(path, &error))?;
    if found.is_empty() {
        Err(TlsError::NoRevocationList { path: path.to_owned() })
    } else {
        Ok(found)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found = found.map_err(|error| unreadable(path, &error))?;
    if found.is_empty() {
        Err(TlsError::NoCertificate { path: path.to_owned() })
    } else {
        Ok(found)
    }
}

fn unreadable(path: &Path, error: &rustls::pki_types::pem::Error) -> TlsError {
    TlsError::File { path: path.to_owned(), reason: error.to_string() }
}
