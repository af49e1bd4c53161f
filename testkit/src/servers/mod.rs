//! Databases that tests start themselves, to stop, kill and freeze them. None outlives its test.

pub mod postgres;
pub mod redis;

pub use postgres::PostgresServer;
pub use redis::{RedisReply, RedisServer};
