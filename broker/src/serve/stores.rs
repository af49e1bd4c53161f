//! Opens what outlives the process, as configured, and brings it up to date.

use std::{sync::Arc, time::Duration};

use storage::{
    DurableStore, EventStore, HotStore, MemoryHotStore, PostgresOptions, PostgresStore,
    RedisOptions, RedisStore, SqliteOptions, SqliteStore, StoreError,
};

use crate::{
    auth::Keys,
    config::{self, Config, EventLogStorage},
    persistence::Stores,
};

/// How long a start waits for a database server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The record of everything, open.
pub(super) struct OpenDatabase {
    durable: Arc<dyn DurableStore>,
    events: Arc<dyn EventStore>,
}

impl OpenDatabase {
    /// Locks an SQLite file, or connects to a server. One that cannot be reached is an error.
    pub(super) async fn open(config: &Config, migrate: bool) -> Result<Self, StoreError> {
        match &config.storage.database {
            config::DatabaseConfig::Sqlite(path) => {
                let store = Arc::new(
                    SqliteStore::open(&SqliteOptions { path: path.clone(), migrate }).await?,
                );
                Ok(Self { durable: store.clone(), events: store })
            }
            config::DatabaseConfig::Postgres(url) => {
                let options = PostgresOptions {
                    url: url.expose().to_owned(),
                    migrate,
                    connect_timeout: CONNECT_TIMEOUT,
                };
                let store = Arc::new(PostgresStore::open(&options).await?);
                Ok(Self { durable: store.clone(), events: store })
            }
        }
    }

    /// With Redis, where configured: it keeps the event streams then. That it is not there yet is no error.
    pub(super) async fn with_the_rest(
        self,
        config: &Config,
        keys: &Keys,
    ) -> Result<Stores, StoreError> {
        let (hot, events): (Arc<dyn HotStore>, Arc<dyn EventStore>) = match &config
            .storage
            .redis_url
        {
            None => (Arc::new(MemoryHotStore::new()), self.events),
            Some(url) => {
                let options = RedisOptions {
                    url: url.expose().to_owned(),
                    key: *keys.redis,
                    event_retention: config.events.retain,
                };
                let redis = Arc::new(RedisStore::open(&options).await?);
                if !redis.is_connected() {
                    tracing::warn!(
                        "Redis can not be reached: the broker starts without it and goes on trying"
                    );
                }
                (redis.clone(), redis)
            }
        };
        let events = (config.events.log == EventLogStorage::Store).then_some(events);
        Ok(Stores { durable: self.durable, events, hot })
    }
}

/// Brings the schema up to date. Returns what to call the database.
pub(super) async fn migrate(config: &Config) -> Result<String, StoreError> {
    OpenDatabase::open(config, true).await?.durable.close().await;
    Ok(match &config.storage.database {
        config::DatabaseConfig::Sqlite(path) => path.display().to_string(),
        config::DatabaseConfig::Postgres(_) => "the PostgreSQL database".to_owned(),
    })
}
