//! Clients of 2025-11-25 and before, in front of backends of 2026-07-28: they notice no difference.

mod eras;
mod inputs;
mod notifications;
mod requests;
pub(crate) mod tasks;

use testkit::{StatelessBackend, TestBroker};

use crate::builder;

async fn broker_with(backend: &StatelessBackend) -> TestBroker {
    builder().backend("default", "b", backend.spec()).start().await
}

/// Returns a backend for each kind of wire: the same promises hold over both.
async fn on_both_wires() -> [StatelessBackend; 2] {
    [StatelessBackend::http().await, StatelessBackend::pipe().await]
}
