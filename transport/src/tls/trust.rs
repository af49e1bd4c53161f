//! Reads certificates and keys from PEM files, and the authorities this system trusts.

use std::{
    io,
    path::Path,
    sync::{Arc, OnceLock},
};

use rustls::{
    ClientConfig, RootCertStore,
    client::Resumption,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use rustls_native_certs::ErrorKind as NativeErrorKind;

use super::TlsError;

/// Returns the only cryptography provider of this process.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Disables resumption. A resumed session shows no certificate, so the server would keep the old
/// one after a reload.
pub(crate) fn without_resumption(mut config: ClientConfig) -> ClientConfig {
    config.resumption = Resumption::disabled();
    config
}

/// The authorities that the operating system trusts.
#[derive(Debug, Clone)]
pub(crate) struct SystemRoots {
    pub(crate) store: RootCertStore,
    /// Whether another read may find more: some files could not be read, for example without a free
    /// descriptor.
    pub(crate) may_lack_some: bool,
}

/// Returns the authorities that the operating system trusts.
///
/// The first complete result is cached, because reading them is the slowest step of a process
/// start. Their absence is not an error: the configuration may name others.
pub(crate) fn system_roots() -> SystemRoots {
    static ROOTS: OnceLock<SystemRoots> = OnceLock::new();
    if let Some(roots) = ROOTS.get() {
        return roots.clone();
    }
    let (roots, is_whole) = read_system_roots();
    if is_whole { ROOTS.get_or_init(|| roots).clone() } else { roots }
}

/// Reads the authorities. Also returns whether the result is complete.
fn read_system_roots() -> (SystemRoots, bool) {
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
    let may_lack_some = native.errors.iter().any(|error| is_transient(&error.kind));
    (SystemRoots { store: roots, may_lack_some }, is_whole)
}

/// Returns whether another read may succeed. Invalid files, links to no file and missing rights
/// stay.
fn is_transient(error: &NativeErrorKind) -> bool {
    match error {
        NativeErrorKind::Io { inner, .. } => {
            !matches!(inner.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
        }
        _ => false,
    }
}

/// Adds every certificate of the file. Each of them must be usable.
pub(super) fn add_authorities(roots: &mut RootCertStore, path: &Path) -> Result<(), TlsError> {
    for authority in certificates(path)? {
        roots.add(authority).map_err(|error| TlsError::Authority {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
    }
    Ok(())
}

/// Reads a chain and its private key, which have to belong together.
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

/// Reads the revocation lists of a file.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_read_errors_that_pass_let_the_authorities_be_read_again() {
        let is_transient_error = |inner: io::Error| {
            is_transient(&NativeErrorKind::Io { inner, path: "/certificates".into() })
        };
        // EMFILE: the process has no free descriptor.
        assert!(is_transient_error(io::Error::from_raw_os_error(24)));
        assert!(!is_transient_error(io::ErrorKind::NotFound.into()), "a link to no file");
        assert!(!is_transient_error(io::ErrorKind::PermissionDenied.into()));
    }
}
