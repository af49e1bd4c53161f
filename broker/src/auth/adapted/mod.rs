//! The broker as the authorization server of clients, in front of an issuer that cannot serve them
//! itself. It has an identifier, metadata and endpoints of its own (RFC 8414), and sends every
//! request on to the issuer.
//!
//! Invariants:
//! - Nothing is stored, so every replica gives the same answers.
//! - The redirect URI stays the client's, and the issuer checks it. Codes and sign-ins of users
//!   never pass the broker.
//! - The broker adds the secret of a client only to a request of that client for a code or a
//!   refresh token. The client must have shown no credential.

mod metadata;
mod parameters;
mod registration;
mod token_request;

use std::sync::Arc;

use aws_lc_rs::digest;
use config::{AdaptedFront, IssuerConfig};
use tokio::sync::Semaphore;

pub use self::{
    parameters::ParameterFault,
    registration::{RegistrationFault, registered_client},
    token_request::{TokenAnswer, TokenRequest, TokenRequestFault},
};
pub use super::tokens::metadata::{IssuerMetadata, MetadataFault};
use super::tokens::{KeyFetcher, TokenVerifier, issuer::TokenIssuer};

/// First segment of the paths of all authorization servers.
pub const PATH: &str = "/authorization";
/// Number of bytes of the digest in an identifier.
const ID_BYTES: usize = 8;

/// Returns the name of an issuer in paths: the begin of the SHA-256 of its URL, in hexadecimal
/// digits. It is the same on every replica.
pub fn front_id(issuer: &str) -> String {
    let hash = digest::digest(&digest::SHA256, issuer.as_bytes());
    hash.as_ref()[..ID_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the authorization server that clients use for an issuer.
pub fn authorization_server(resource: &str, issuer: &IssuerConfig) -> String {
    match issuer.front {
        Some(_) => format!("{resource}{PATH}/{}", front_id(&issuer.issuer)),
        None => issuer.issuer.clone(),
    }
}

/// Reason why the broker cannot stand in front of an issuer now.
#[derive(Debug, thiserror::Error)]
pub enum FrontUnavailable {
    #[error("the issuer's metadata could not be fetched yet")]
    NotFetched,
    #[error("the issuer cannot be adapted: {0}")]
    Metadata(#[from] MetadataFault),
}

/// An issuer in force, and the broker's authorization server in front of it.
#[derive(Debug, Clone)]
pub struct AdaptedIssuer {
    issuer: Arc<TokenIssuer>,
    fetcher: KeyFetcher,
    /// Permits of token requests that are forwarded at the same time.
    forwards: Arc<Semaphore>,
}

impl TokenVerifier {
    /// Returns the issuer whose authorization server for clients has this id.
    pub fn adapted(&self, id: &str) -> Option<AdaptedIssuer> {
        let issuers = self.issuers.load();
        let issuer = issuers.values().find(|issuer| {
            let config = issuer.config();
            config.front.is_some() && front_id(&config.issuer) == id
        })?;
        Some(AdaptedIssuer {
            issuer: issuer.clone(),
            fetcher: self.fetcher.clone(),
            forwards: self.forwards.clone(),
        })
    }
}

impl AdaptedIssuer {
    /// Returns the settings of the front.
    pub fn front(&self) -> &AdaptedFront {
        self.issuer.config().front.as_ref().expect("only an issuer with a front is adapted")
    }

    /// Returns the identifier of the broker's authorization server.
    pub fn own_issuer(&self) -> String {
        authorization_server(self.issuer.resource(), self.issuer.config())
    }

    /// Returns the issuer's metadata. Waits a limited time for the first fetch.
    pub async fn metadata(&self) -> Result<Arc<IssuerMetadata>, FrontUnavailable> {
        if self.issuer.metadata().is_none() {
            self.issuer.wait_for_fetch().await;
        }
        match self.issuer.metadata().as_deref() {
            None => Err(FrontUnavailable::NotFetched),
            Some(Ok(metadata)) => Ok(metadata.clone()),
            Some(Err(fault)) => Err(FrontUnavailable::Metadata(fault.clone())),
        }
    }

    /// Returns the audience that replaces `resource`.
    fn audience(&self) -> &str {
        self.issuer.config().audiences.first().map_or(self.issuer.resource(), String::as_str)
    }
}
