//! Sessions, their calls, streams and tasks, and clients without sessions. Stands on [`crate::backends`].

pub mod call;
pub mod request_observer;
pub mod session;
pub mod shared;
pub mod stateless;
pub mod stream;
pub mod tasks;
pub mod tenant;
