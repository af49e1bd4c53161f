//! Backends and the links to them. A request passes their policy, their admission and a link on its way to a backend.
//!
//! Nothing here knows a session. The sender of a request is an [`Asker`](asker::Asker), the user of a link a
//! [`LinkClient`](link_client::LinkClient), and the recipient of what a backend sends an [`Inbound`](inbound::Inbound).

pub mod asker;
pub mod backend;
pub mod backend_admission;
pub mod catalog_refresh;
pub mod children;
pub mod inbound;
pub mod link;
pub mod link_client;
pub mod policy;
pub mod prober;
pub mod resources;
pub mod schema_cache;
pub mod subscriptions;
pub mod validation_pool;
