//! Opens the configured stores and updates their schema.

use std::{sync::Arc, time::Duration};

use config::{Config, EventLogStorage};
use records::RestoreSummary;
use storage::{
    DurableStore, EventStore, HotStore, MemoryHotStore, PostgresOptions, PostgresStore,
    RedisOptions, RedisStore, SqliteOptions, SqliteStore, StoreError,
};

use super::{ServeError, database_wait::DatabaseWait};
use crate::{
    auth::{Keys, KeysError, OpenRoot, RootSecrets},
    control::{LoadError, restore_record},
    persistence::Stores,
};

/// Time limit for the connection to a database server at start.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// An open database.
pub(super) struct OpenDatabase {
    durable: Arc<dyn DurableStore>,
    events: Arc<dyn EventStore>,
}

impl OpenDatabase {
    /// Locks an SQLite file, or connects to a server. An unreachable server is an error.
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
                    url_file: config.storage.url_file.clone(),
                    migrate,
                    connect_timeout: CONNECT_TIMEOUT,
                };
                let store = Arc::new(PostgresStore::open(&options).await?);
                Ok(Self { durable: store.clone(), events: store })
            }
        }
    }

    pub(super) fn durable(&self) -> &dyn DurableStore {
        self.durable.as_ref()
    }

    /// Adds the hot store, which is Redis if configured. Redis then also stores the event streams.
    /// An unreachable Redis is not an error.
    pub(super) async fn into_stores(
        self,
        config: &Config,
        keys: &Keys,
    ) -> Result<Stores, StoreError> {
        let (hot, events): (Arc<dyn HotStore>, Arc<dyn EventStore>) =
            match &config.storage.redis_url {
                None => (Arc::new(MemoryHotStore::new()), self.events),
                Some(url) => {
                    let options = RedisOptions {
                        url: url.expose().to_owned(),
                        url_file: config.storage.redis_url_file.clone(),
                        key: *keys.redis,
                        event_retention: config.events.log_retention(),
                    };
                    let redis = Arc::new(RedisStore::open(&options).await?);
                    if !redis.is_connected() {
                        tracing::warn!(
                            "Redis cannot be reached: the broker starts without it and keeps trying"
                        );
                    }
                    (redis.clone(), redis)
                }
            };
        let events = (config.events.log == EventLogStorage::Store).then_some(events);
        Ok(Stores { durable: self.durable, events, hot })
    }
}

/// Opens the root key of the database with the root secrets. Removes a secret file that was created
/// for nothing.
pub(super) async fn open_root(
    config: &Config,
    durable: &dyn DurableStore,
    wait: &DatabaseWait,
) -> Result<OpenRoot, ServeError> {
    let secrets = RootSecrets::load(config)?;
    let opened = wait.repeat(async || OpenRoot::open(&secrets, durable).await).await;
    if let Err(ServeError::Keys(KeysError::SecretMissing)) = opened {
        RootSecrets::remove_new_file(config);
    }
    opened
}

/// Updates the schema. Returns the name of the database for messages.
pub(super) async fn migrate(config: &Config) -> Result<String, StoreError> {
    OpenDatabase::open(config, true).await?.durable.close().await;
    Ok(match &config.storage.database {
        config::DatabaseConfig::Sqlite(path) => path.display().to_string(),
        config::DatabaseConfig::Postgres(_) => "the PostgreSQL database".to_owned(),
    })
}

/// Ends the state of a restored database that must not continue, and records that in the audit log.
/// Ends nothing while a replica has a lease, or if the root secret does not open the database.
pub(super) async fn end_restored_state(config: &Config) -> Result<RestoreSummary, ServeError> {
    let database = open_existing(config).await?;
    let durable = database.durable();
    let wait = DatabaseWait::new(config);
    refuse_replicas(durable).await?;
    let root = open_root(config, durable, &wait).await?;
    if root.keys.newly_created {
        RootSecrets::remove_new_file(config);
        return Err(LoadError::SecretMissing.into());
    }
    refuse_replicas(durable).await?; // opening the root key may have waited for the database
    let summary = durable.end_restored_state().await?;
    let records = [restore_record(&config.node.id, summary)];
    wait.repeat(async || durable.append_audit(&records).await).await?;
    // A replica that started meanwhile may have continued something before it ended.
    refuse_replicas(durable).await?;
    durable.close().await;
    Ok(summary)
}

/// Opens a database that a broker has used. A missing or empty one is an error, because it is not
/// the restored one.
async fn open_existing(config: &Config) -> Result<OpenDatabase, ServeError> {
    match OpenDatabase::open(config, false).await {
        Err(StoreError::SchemaOlder { found: 0, .. }) => Err(ServeError::NotRestored),
        Err(StoreError::SchemaOlder { .. }) if config.storage.migrate_on_start => {
            Ok(OpenDatabase::open(config, true).await?)
        }
        opened => Ok(opened?),
    }
}

/// Returns an error if a replica has a lease.
async fn refuse_replicas(durable: &dyn DurableStore) -> Result<(), StoreError> {
    match durable.live_nodes().await?.first() {
        None => Ok(()),
        Some(replica) => {
            let detail = format!("the replica {} has a lease", replica.node);
            Err(StoreError::Busy { detail })
        }
    }
}
