//! Certificates of the listeners: applies changed files, without a signal or at a reload.
//!
//! Called by the loop of [`super::RunningBroker`]. Invariants:
//! - Files that cannot be used together change nothing. The log has each fault once.
//! - A fault counts only if the next reading finds the same files. A certificate and its key are often
//!   replaced one after the other, so one reading may see half of a change.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use aws_lc_rs::digest;
use config::{Certificate, ClientAuth, Config};
use transport::tls::{ReloadedCertificates, TlsError};

use super::{
    ServeError,
    exposure::{ACCEPTORS, report_certificates},
};
use crate::{
    control::Control,
    listeners::tls_acceptor::{self, TlsAcceptor},
    metrics::Metrics,
};

/// The TLS acceptors, and the files from which their certificates come.
pub(super) struct ListenerCertificates {
    acceptors: [TlsAcceptor; 2],
    files: Arc<[PathBuf]>,
    in_force: FileDigests,
    refused: Option<RefusedFiles>,
}

/// Files that cannot be used.
struct RefusedFiles {
    digests: FileDigests,
    is_reported: bool,
}

/// Digest of each file. `None` for a file that cannot be read.
#[derive(Debug, Clone, PartialEq)]
struct FileDigests(Vec<Option<Vec<u8>>>);

/// Certificates as read for each acceptor, which are not in force yet.
pub(super) struct CertificateReading {
    digests: FileDigests,
    loaded: [Result<Option<ReloadedCertificates>, TlsError>; 2],
}

/// Certificates that can come into force.
pub(super) struct UsableCertificates {
    digests: FileDigests,
    loaded: [Option<ReloadedCertificates>; 2],
}

impl ListenerCertificates {
    pub(super) fn load(config: &Config) -> Result<Self, TlsError> {
        let files: Arc<[PathBuf]> = files_of(config).into();
        // Before the acceptors read the files, so that a later change is noticed.
        let in_force = FileDigests::of(&files);
        let acceptors = tls_acceptor::acceptors(config)?;
        Ok(Self { acceptors, files, in_force, refused: None })
    }

    pub(super) fn acceptors(&self) -> &[TlsAcceptor; 2] {
        &self.acceptors
    }

    /// Returns whether there are files that may change.
    pub(super) fn are_files(&self) -> bool {
        !self.files.is_empty()
    }

    /// Reads the files again. [`Self::install`] puts the result into force.
    pub(super) async fn read(&self) -> Result<CertificateReading, ServeError> {
        let (acceptors, files) = (self.acceptors.clone(), Arc::clone(&self.files));
        let read = move || CertificateReading {
            digests: FileDigests::of(&files),
            loaded: acceptors.each_ref().map(TlsAcceptor::load_certificates),
        };
        tokio::task::spawn_blocking(read).await.map_err(|error| ServeError::System {
            what: "a thread for certificates",
            source: io::Error::other(error),
        })
    }

    /// Presents these certificates from the next handshake on.
    pub(super) fn install(&mut self, usable: UsableCertificates, metrics: &Metrics) {
        let UsableCertificates { digests, loaded } = usable;
        for (acceptor, renewed) in self.acceptors.iter().zip(loaded) {
            acceptor.install_certificates(renewed);
        }
        (self.in_force, self.refused) = (digests, None);
        report_certificates(&self.acceptors, metrics);
    }

    /// Applies the files if they changed since they came into force.
    pub(super) async fn follow(&mut self, control: &Control) {
        let files = Arc::clone(&self.files);
        let Ok(found) = tokio::task::spawn_blocking(move || FileDigests::of(&files)).await else {
            return; // the runtime stops
        };
        if found == self.in_force {
            self.refused = None;
            return;
        }
        if self.refused.as_ref().is_some_and(|known| known.is_reported && known.digests == found) {
            return;
        }
        let Ok(reading) = self.read().await else { return };
        self.apply(reading, control).await;
    }

    async fn apply(&mut self, reading: CertificateReading, control: &Control) {
        let metrics = &control.metrics;
        if let Some(fault) = reading.fault() {
            let is_repeated =
                self.refused.as_ref().is_some_and(|known| known.digests == reading.digests);
            if is_repeated {
                reading.count(metrics);
                tracing::error!(%fault, "the changed certificates of the listeners are not applied");
            }
            let digests = reading.digests;
            self.refused = Some(RefusedFiles { digests, is_reported: is_repeated });
            return;
        }
        reading.count(metrics);
        let Ok(usable) = reading.usable() else { return };
        self.install(usable, metrics);
        tracing::info!("the changed certificates of the listeners are in force");
        control.record_certificates().await;
    }
}

impl CertificateReading {
    /// Counts the outcome for each acceptor with TLS.
    pub(super) fn count(&self, metrics: &Metrics) {
        for (loaded, listener) in self.loaded.iter().zip(ACCEPTORS) {
            if !matches!(loaded, Ok(None)) {
                metrics.observability.certificate_reload(listener, loaded.is_ok());
            }
        }
    }

    /// Returns the first reason why the certificates cannot be used.
    fn fault(&self) -> Option<&TlsError> {
        self.loaded.iter().find_map(|loaded| loaded.as_ref().err())
    }

    pub(super) fn usable(self) -> Result<UsableCertificates, TlsError> {
        let [clients, operators] = self.loaded;
        Ok(UsableCertificates { digests: self.digests, loaded: [clients?, operators?] })
    }
}

impl FileDigests {
    fn of(files: &[PathBuf]) -> Self {
        Self(files.iter().map(|file| digest_of(file).ok()).collect())
    }
}

/// Returns the digest of a regular file. A read of another kind of file could wait, or take what the
/// load of the certificates needs.
fn digest_of(file: &Path) -> io::Result<Vec<u8>> {
    if !std::fs::metadata(file)?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let (mut file, mut digest) = (File::open(file)?, digest::Context::new(&digest::SHA256));
    let mut chunk = [0; 16 * 1024];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(digest.finish().as_ref().to_vec()),
            count => digest.update(&chunk[..count]),
        }
    }
}

/// Returns the files that the acceptors read.
fn files_of(config: &Config) -> Vec<PathBuf> {
    let Some(Certificate::Files { cert, key }) = &config.tls.certificate else { return Vec::new() };
    let of_clients = match &config.tls.client_auth {
        ClientAuth::None => None,
        ClientAuth::Optional { ca, crl } | ClientAuth::Required { ca, crl } => Some((ca, crl)),
    };
    let of_clients = of_clients.into_iter().flat_map(|(ca, crl)| [Some(ca), crl.as_ref()]);
    [cert, key].into_iter().chain(of_clients.flatten()).cloned().collect()
}
