//! Backends and the links to them. A request passes the policy, the admission and a link of its
//! backend.
//!
//! Nothing here knows a session. Three traits connect it to the rest:
//!
//! - An [`Asker`](asker::Asker) sends a request.
//! - A [`LinkClient`](link_client::LinkClient) uses a link.
//! - An [`Inbound`](asker::Inbound) receives the messages of a backend.

mod admission_state;
pub mod asker;
pub mod backend;
pub mod backend_admission;
pub mod capability_probe;
pub mod catalog_owner;
pub mod catalog_refresh;
pub mod children;
pub mod fixed_lists;
pub mod inbound;
pub mod link;
pub mod link_client;
pub mod link_lists;
mod list_fetch;
mod own_lists;
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
pub mod validation_pool;
pub mod verdicts;
