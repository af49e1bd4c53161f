//! TLS towards backends: the system's authorities, read once for each name that is expected in a certificate.

use std::{collections::HashMap, sync::Mutex};

use transport::tls::{ClientTls, ClientTlsFiles};

use super::connection::Failure;
use crate::actors::sync::lock;

/// Names whose settings are kept; there are as many as operators registered.
const NAMES_MAX: usize = 1_000;

/// Kept by the process, for every link.
#[derive(Debug, Default)]
pub struct Trust(Mutex<HashMap<Option<String>, ClientTls>>);

impl Trust {
    /// What verifies a backend's certificate. `server_name`: the name in it, where that is not the host connected to.
    pub(super) async fn of(&self, server_name: Option<String>) -> Result<ClientTls, Failure> {
        if let Some(known) = lock(&self.0).get(&server_name) {
            return Ok(known.clone());
        }
        let files = ClientTlsFiles { server_name: server_name.clone(), ..ClientTlsFiles::default() };
        // Reads the system's certificates from its files.
        let loaded = tokio::task::spawn_blocking(move || ClientTls::load(&files)).await;
        let tls = loaded.map_err(|error| Failure::NotSent(error.to_string()))?.map_err(|error| Failure::NotSent(error.to_string()))?;
        let mut known = lock(&self.0);
        if known.len() >= NAMES_MAX {
            known.clear();
        }
        known.insert(server_name, tls.clone());
        Ok(tls)
    }
}
