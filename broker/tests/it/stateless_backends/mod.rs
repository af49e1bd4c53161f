//! Clients of 2025-11-25 and before, in front of backends that speak 2026-07-28: they notice nothing.

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

/// The same promises hold over both kinds of wire.
async fn on_both_wires() -> [StatelessBackend; 2] {
    [StatelessBackend::http().await, StatelessBackend::pipe().await]
}
