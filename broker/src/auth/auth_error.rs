//! Denied sign-ins: the answer for the caller and the reason for operators.

use std::sync::Arc;

use protocol::error::{ErrorKind, Refusal};
use rules::sign_in_failures::SignInFailureReason;

use super::tokens::{
    introspection::{UncheckedToken, issuer_unavailable},
    issuer::TokenIssuer,
};

/// A sign-in that was denied.
#[derive(Debug)]
pub enum AuthError {
    Refused {
        refusal: Refusal,
        /// Reason of the failed sign-in. `None` when the credential is valid but does not permit
        /// the request.
        failure: Option<SignInFailureReason>,
    },
    /// The signing key of the token is unknown. A fetch of the issuer's keys may make it known.
    KeyUnknown(UnknownSigningKey),
    /// The issuer of the token has to be asked about it.
    NotIntrospected(UncheckedToken),
}

impl AuthError {
    pub fn failed(refusal: Refusal, reason: SignInFailureReason) -> Self {
        Self::Refused { refusal, failure: Some(reason) }
    }

    /// Returns the answer for the caller and the reason of the failed sign-in.
    pub fn into_parts(self) -> (Refusal, Option<SignInFailureReason>) {
        match self {
            Self::Refused { refusal, failure } => (refusal, failure),
            Self::NotIntrospected(_) => (issuer_unavailable(), None),
            Self::KeyUnknown(_) => (token_not_valid(), Some(SignInFailureReason::Token)),
        }
    }
}

/// Converts the refusal of an unreadable credential.
impl From<Refusal> for AuthError {
    fn from(refusal: Refusal) -> Self {
        let failure =
            (refusal.kind == ErrorKind::Unauthorized).then_some(SignInFailureReason::Malformed);
        Self::Refused { refusal, failure }
    }
}

/// A signing key that the issuer may have made after the last fetch of its keys.
#[derive(Debug)]
pub struct UnknownSigningKey(pub(super) Arc<TokenIssuer>);

impl UnknownSigningKey {
    /// Waits a limited time for the issuer's keys, if a fetch is running or permitted now.
    pub async fn wait_for_keys(&self) {
        self.0.wait_for_fetch().await;
    }
}

/// Returns the same answer for every invalid token, so that the answer does not reveal the reason.
pub(super) fn token_not_valid() -> Refusal {
    Refusal::new(ErrorKind::Unauthorized, "the token is not valid for this broker")
}
