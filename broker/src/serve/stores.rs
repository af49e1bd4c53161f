//! Opens what outlives the process, as configured, and brings it up to date.

use std::sync::Arc;

use storage::{DurableStore, SqliteOptions, SqliteStore, StoreError, hot::MemoryHot};

use crate::{
    config::{Config, Database, Storage},
    durable::Stores,
};

/// Opens the database and, where configured, Redis. A database that can not be reached is an error; Redis is connected to
/// when it can be.
pub(super) async fn open(config: &Config) -> Result<Stores, StoreError> {
    let durable = open_database(&config.storage, config.storage.migrate_on_start).await?;
    Ok(Stores { durable, events: None, hot: Arc::new(MemoryHot::new()) })
}

/// Brings the schema up to date. Returns what to call the database.
pub(super) async fn migrate(config: &Config) -> Result<String, StoreError> {
    open_database(&config.storage, true).await?.close().await;
    Ok(match &config.storage.database {
        Database::Sqlite(path) => path.display().to_string(),
        Database::Postgres(_) => "the PostgreSQL database".to_owned(),
    })
}

async fn open_database(storage: &Storage, migrate: bool) -> Result<Arc<dyn DurableStore>, StoreError> {
    match &storage.database {
        Database::Sqlite(path) => Ok(Arc::new(SqliteStore::open(&SqliteOptions { path: path.clone(), migrate }).await?)),
        Database::Postgres(_) => Err(StoreError::Unavailable { detail: "this build has no PostgreSQL".to_owned() }),
    }
}
