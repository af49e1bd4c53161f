//! Admission control: checks that refuse excess work.
//!
//! - [`rate_limiter`] limits the rates by scope.
//! - [`nested_rates`] holds the rates of a tenant or backend, and of its parts.
//! - [`permit_limiter`] limits sessions, calls and connections by tenant and principal.
//! - [`replica_sharing`] defines how replicas share both.
//! - [`overload`] refuses new requests while the process is overloaded.
//! - [`concurrency_limit`] limits the number of concurrent calls.
//! - [`outbox_budget`] limits the bytes that wait for clients that do not read.
//! - [`limiters`] holds those that the whole process shares.
//!
//! Sessions, backends and listeners call the checks in this order:
//!
//! - [`overload::OverloadManager::admits`], before the body is read if the wire shows the kind of
//!   request;
//! - the phase of the session;
//! - the rate of the principal, then that of the tenant;
//! - after routing, the rate of the backend, then that of the tool.
//!
//! A check only reads numbers. A permit that this replica does not hold is the exception: its
//! caller waits for Redis.

pub mod concurrency_limit;
pub mod limiters;
pub mod nested_rates;
pub mod outbox_budget;
pub mod overload;
pub mod permit_limiter;
pub mod rate_limiter;
pub mod replica_sharing;
