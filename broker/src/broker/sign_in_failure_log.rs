//! The failed sign-ins of the last minute, under one lock.

use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use rules::sign_in_failures::SignInFailures;

/// The failures of the last minute.
#[derive(Debug)]
pub(super) struct SignInFailureLog {
    pub(super) failures: Mutex<SignInFailures>,
    pub(super) started: Instant,
}

impl Default for SignInFailureLog {
    fn default() -> Self {
        Self { failures: Mutex::default(), started: Instant::now() }
    }
}

impl SignInFailureLog {
    pub(super) fn lock(&self) -> MutexGuard<'_, SignInFailures> {
        self.failures.lock()
    }
}
