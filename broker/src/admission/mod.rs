//! What comes in is refused here when it is too much: rates by scope ([`rate_limiter`]), a process that has too much to do
//! ([`overload`]), and bytes that wait for clients who do not read ([`outbox_budget`]).
//!
//! The order of the checks of a request: [`overload::Overload::admits`], before its body is read where the wire tells what it
//! is; the session's phase; its principal's rate, then its tenant's; and once it is known where it goes, the backend's and the
//! tool's. Called by actors and listeners. Nothing here waits, and no check does more than look at numbers.

pub mod outbox_budget;
pub mod overload;
pub mod rate_limiter;
