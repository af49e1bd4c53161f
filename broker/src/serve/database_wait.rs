//! Repeats the steps of a start that use the database. A server that restarts, fails over or holds
//! a lock answers again some seconds later.

use std::time::Duration;

use storage::StoreError;
use tokio::time::{Instant, sleep};

use super::ServeError;
use crate::{
    auth::KeysError,
    config::{Config, DatabaseConfig},
    control::LoadError,
};

/// A start gives up if the database has not answered for this time.
const DATABASE_WAIT: Duration = Duration::from_secs(30);

const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// The time that a start may wait for its database server.
pub(super) struct DatabaseWait {
    give_up_at: Instant,
}

impl DatabaseWait {
    /// Begins the wait. A file of this machine answers at once or not at all.
    pub(super) fn begin(config: &Config) -> Self {
        let wait = match config.storage.database {
            DatabaseConfig::Postgres(_) => DATABASE_WAIT,
            DatabaseConfig::Sqlite(_) => Duration::ZERO,
        };
        Self { give_up_at: Instant::now() + wait }
    }

    /// Repeats a step while the database does not answer it. The step must be idempotent.
    pub(super) async fn repeat<T, E: Into<ServeError>>(
        &self,
        step: impl AsyncFn() -> Result<T, E>,
    ) -> Result<T, ServeError> {
        loop {
            let error = match step().await {
                Ok(done) => return Ok(done),
                Err(error) => error.into(),
            };
            if !is_temporary(&error) || Instant::now() >= self.give_up_at {
                return Err(error);
            }
            tracing::warn!(%error, "the start waits for the database");
            sleep(RETRY_INTERVAL).await;
        }
    }
}

fn is_temporary(error: &ServeError) -> bool {
    let (ServeError::Store(error)
    | ServeError::Keys(KeysError::Store(error))
    | ServeError::Load(LoadError::Store(error))) = error
    else {
        return false;
    };
    matches!(error.cause(), StoreError::Unavailable { .. } | StoreError::Busy { .. })
}
