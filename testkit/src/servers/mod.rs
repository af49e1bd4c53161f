//! Databases and reverse proxies that tests start themselves, to stop, kill and freeze them. Each
//! ends with its test.

pub mod front_proxy;
pub mod pgbouncer;
pub mod postgres;
pub mod redis;
pub mod redis_cluster;
pub mod redis_sentinel;

pub use front_proxy::FrontProxy;
pub use pgbouncer::PgBouncer;
pub use postgres::PostgresServer;
pub use redis::{RedisReply, RedisServer};
pub use redis_cluster::RedisCluster;
pub use redis_sentinel::RedisWithSentinels;
