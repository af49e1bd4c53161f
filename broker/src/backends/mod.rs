//! Backends and the links to them. A request passes the policy, the admission and a link of its
//! backend.
//!
//! The layers, from below. A file imports its own layer and those below it:
//!
//! 1. `link/connection.rs` with the wires' senders, its pending requests and their requesters.
//! 2. [`backend`] with its [`link`]: each holds the other. A backend has its links in a `LinkSet`.
//! 3. [`inbound`] routes what a backend sends.
//! 4. `link/connection/` sends requests, `link/http/` and `link/stateless/` carry them.
//! 5. `link/driver.rs` opens a connection over the wire of its backend, restores the state of a lost
//!    one, and reads lists. A link calls it through the trait `LinkDriver`.
//! 6. `backend/links.rs` makes links. Refreshes of the catalog and probes use them.
//!
//! Nothing here knows a session. Three traits connect it to the rest:
//!
//! - A [`Requester`](link::connection::requester::Requester) sends a request.
//! - A [`LinkClient`](link_client::LinkClient) uses a link.
//! - An [`Inbound`](link::connection::requester::Inbound) receives the messages of a backend.

mod admission_state;
pub mod backend;
pub mod backend_admission;
pub mod capability_probe;
pub mod catalog_owner;
pub mod catalog_refresh;
pub mod children;
mod early_ping;
pub mod fault_lines;
pub mod fixed_lists;
pub mod inbound;
pub mod link;
pub mod link_client;
pub mod link_lists;
mod list_fetch;
mod list_refresh;
#[cfg(test)]
pub(crate) mod lists_for_tests;
mod look_alikes;
mod own_lists;
mod param_headers;
mod pin_batches;
pub mod pins;
pub mod placeholder;
pub mod policy;
pub mod principal_lists;
pub mod principal_reads;
pub mod prober;
pub mod provenance;
pub mod resources;
pub mod roots;
pub mod schema_cache;
mod subscription_reconciler;
pub mod subscriptions;
mod tools_read;
pub mod validation_pool;
pub mod verdicts;
