//! Denials of a sign-in: the answer to the caller, and the reason for operators.

use std::sync::Arc;

use protocol::error::{ErrorKind, Refusal};

use super::tokens::TokenIssuer;
use crate::rules::sign_in_failures::SignInFailureReason;

/// A sign-in that was denied.
#[derive(Debug)]
pub enum AuthError {
    Refused {
        refusal: Refusal,
        /// `None`: its credential is good, and not for this.
        failure: Option<SignInFailureReason>,
    },
    /// The key that its token is signed with is not known. It may be by now, or after a fetch.
    KeyUnknown(UnknownSigningKey),
}

impl AuthError {
    pub fn failed(refusal: Refusal, reason: SignInFailureReason) -> Self {
        Self::Refused { refusal, failure: Some(reason) }
    }

    /// The answer, and why the sign-in failed.
    pub fn into_parts(self) -> (Refusal, Option<SignInFailureReason>) {
        match self {
            Self::Refused { refusal, failure } => (refusal, failure),
            Self::KeyUnknown(_) => (token_not_valid(), Some(SignInFailureReason::Token)),
        }
    }
}

/// A request whose credential could not be read.
impl From<Refusal> for AuthError {
    fn from(refusal: Refusal) -> Self {
        let failure =
            (refusal.kind == ErrorKind::Unauthorized).then_some(SignInFailureReason::Malformed);
        Self::Refused { refusal, failure }
    }
}

/// A key that an issuer may have made since its keys were fetched.
#[derive(Debug)]
pub struct UnknownSigningKey(pub(super) Arc<TokenIssuer>);

impl UnknownSigningKey {
    /// Waits for the issuer's keys, where they may be fetched now, and not for long.
    pub async fn fetched(&self) {
        self.0.fetched().await;
    }
}

/// The one answer to every token that is not valid, so that it tells nothing of the reason.
pub(super) fn token_not_valid() -> Refusal {
    Refusal::new(ErrorKind::Unauthorized, "the token is not valid here")
}
