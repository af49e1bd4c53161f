//! Databases that tests start themselves, to stop, kill and freeze them. None outlives its test.

pub mod postgres;

pub use postgres::PostgresServer;
