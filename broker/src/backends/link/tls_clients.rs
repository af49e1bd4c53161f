//! TLS clients for backends. Each expected server name has one, with the authorities of the system.
//! The client certificates are read again at a reload.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use transport::{
    http_client::HttpClient,
    tls::{ClientIdentity, ClientIdentityFiles, ClientTls, ClientTlsFiles},
};

use super::failure::Failure;

/// Entries in each table. Operators decide how many names and certificates there are.
const KEPT_MAX: usize = 1_000;

/// TLS clients of the process, for all links.
#[derive(Debug, Default)]
pub struct TlsClients(Mutex<TlsClientCache>);

#[derive(Debug, Default)]
struct TlsClientCache {
    /// TLS clients by expected server name and client certificate.
    clients: HashMap<(Option<String>, Option<ClientIdentityFiles>), ClientTls>,
    http: HashMap<ClientIdentityFiles, HttpClient>,
    /// Client certificates that a client or a connection still uses.
    identities: HashMap<ClientIdentityFiles, Weak<ClientIdentity>>,
}

impl TlsClients {
    /// Returns the TLS client for a backend. `server_name` is the name in the backend's
    /// certificate, if it differs from the host. `presented` is the broker's certificate, for a
    /// backend that requires one.
    pub(super) async fn tls_client(
        &self,
        server_name: Option<String>,
        presented: Option<ClientIdentityFiles>,
    ) -> Result<ClientTls, Failure> {
        let key = (server_name, presented);
        if let Some(known) = self.0.lock().clients.get(&key) {
            return Ok(known.clone());
        }
        let identity = self.identity(key.1.clone()).await?;
        let files =
            ClientTlsFiles { server_name: key.0.clone(), identity, ..ClientTlsFiles::default() };
        // Reads the system's certificates from its files.
        let tls = blocking(move || ClientTls::load(&files)).await?;
        if !tls.may_lack_roots() {
            keep(&mut self.0.lock().clients, key, tls.clone());
        }
        Ok(tls)
    }

    /// Returns the client for HTTP backends: `plain`, or one that presents a certificate.
    pub(super) async fn http_client(
        &self,
        plain: &HttpClient,
        presented: Option<ClientIdentityFiles>,
    ) -> Result<HttpClient, Failure> {
        let Some(files) = presented else { return Ok(plain.clone()) };
        if let Some(known) = self.0.lock().http.get(&files) {
            return Ok(known.clone());
        }
        let Some(identity) = self.identity(Some(files.clone())).await? else {
            return Ok(plain.clone());
        };
        let plain = plain.clone();
        let client = blocking(move || plain.with_client_identity(identity)).await?;
        keep(&mut self.0.lock().http, files, client.clone());
        Ok(client)
    }

    async fn identity(
        &self,
        files: Option<ClientIdentityFiles>,
    ) -> Result<Option<Arc<ClientIdentity>>, Failure> {
        let Some(files) = files else { return Ok(None) };
        if let Some(known) = self.0.lock().identities.get(&files).and_then(Weak::upgrade) {
            return Ok(Some(known));
        }
        let named = files.clone();
        let loaded = Arc::new(blocking(move || ClientIdentity::load(named)).await?);
        let identities = &mut self.0.lock().identities;
        // Another task may have loaded it meanwhile. Only one identity per file may exist, so that
        // a reload reaches it.
        if let Some(known) = identities.get(&files).and_then(Weak::upgrade) {
            return Ok(Some(known));
        }
        identities.retain(|_, identity| identity.strong_count() > 0);
        identities.insert(files, Arc::downgrade(&loaded));
        Ok(Some(loaded))
    }

    /// Reads the client certificates again, for the next handshakes. Invalid files change nothing.
    pub async fn reload(&self) {
        let known: Vec<_> = {
            let cache = self.0.lock();
            let identities = cache.identities.iter();
            identities
                .filter_map(|(files, one)| Some((files.cert.clone(), one.upgrade()?)))
                .collect()
        };
        for (cert_file, identity) in known {
            if let Err(error) = blocking(move || identity.reload()).await {
                tracing::error!(cert_file = %cert_file.display(), %error, "the broker could not reload the client certificate of a backend and keeps the old one");
            }
        }
    }
}

fn keep<K: std::hash::Hash + Eq, V>(known: &mut HashMap<K, V>, key: K, value: V) {
    if known.len() >= KEPT_MAX {
        known.clear();
    }
    known.insert(key, value);
}

/// Runs a function that reads files on a blocking thread.
async fn blocking<T: Send + 'static, E: std::fmt::Display + Send + 'static>(
    read: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, Failure> {
    let read = tokio::task::spawn_blocking(read)
        .await
        .map_err(|error| Failure::NotSent(error.to_string()))?;
    read.map_err(|error| Failure::NotSent(error.to_string()))
}
