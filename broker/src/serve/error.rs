//! Errors that end the process with an exit code other than 0, and the exit codes.

use std::{io, net::SocketAddr};

use config::FieldErrors;
use storage::StoreError;
use transport::{TlsError, TlsSetupError, quic::ListenError};

use crate::{auth::KeysError, control::LoadError, telemetry::TelemetryError};

/// Error that ends the process with an exit code other than 0.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("{0}")]
    Config(#[from] FieldErrors),
    #[error(transparent)]
    Tls(#[from] TlsSetupError),
    #[error("tls: {0}")]
    Certificates(#[from] TlsError),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(
        "storage.url: the database is missing or empty; restore the copy into it first, or set the URL of the restored one"
    )]
    NotRestored,
    #[error(transparent)]
    Keys(#[from] KeysError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(
        "{key}: cannot listen on {address}: {source}; choose another address, or end the program that uses it"
    )]
    Bind { key: &'static str, address: SocketAddr, source: io::Error },
    #[error("{0}")]
    Inherited(String),
    #[error("listen.quic: {source}")]
    Quic { source: ListenError },
    #[error("the {what} listener ended unexpectedly: {detail}")]
    ListenerEnded { what: &'static str, detail: String },
    #[error("the operating system refused {what}: {source}")]
    System { what: &'static str, source: io::Error },
}

/// Exit codes, after BSD's sysexits.
pub(super) const EXIT_USAGE: u8 = 64;

const EXIT_UNAVAILABLE: u8 = 69;

const EXIT_INTERNAL: u8 = 70;

impl ServeError {
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_)
            | Self::Certificates(_)
            | Self::Inherited(_)
            | Self::Load(
                LoadError::Twice { .. } | LoadError::NoTenant { .. } | LoadError::Refused { .. },
            ) => EXIT_USAGE,
            Self::Keys(KeysError::OtherSecret | KeysError::SecretMissing) => EXIT_INTERNAL,
            Self::Store(_)
            | Self::NotRestored
            | Self::Load(LoadError::Store(_))
            | Self::Keys(_)
            | Self::Bind { .. }
            | Self::Quic { .. } => EXIT_UNAVAILABLE,
            Self::Load(_)
            | Self::Tls(_)
            | Self::Telemetry(_)
            | Self::ListenerEnded { .. }
            | Self::System { .. } => EXIT_INTERNAL,
        }
    }
}
