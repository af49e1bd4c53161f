//! Repeats the steps of a start that use the database. A server that restarts, fails over or holds
//! a lock answers again some seconds later.

use std::time::Duration;

use config::{Config, DatabaseConfig};
use storage::StoreError;
use tokio::time::{Instant, sleep};

use super::ServeError;
use crate::{auth::KeysError, control::LoadError};

/// A start gives up if the database has not answered a step for this time.
const DATABASE_WAIT: Duration = Duration::from_secs(30);

const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// The time that each step of a start may wait for the database server. A migration before it may
/// have taken minutes.
pub(super) struct DatabaseWait {
    step_max: Duration,
}

impl DatabaseWait {
    /// Returns the wait for the configured database. A file of this machine answers at once or not
    /// at all.
    pub(super) fn new(config: &Config) -> Self {
        let step_max = match config.storage.database {
            DatabaseConfig::Postgres(_) => DATABASE_WAIT,
            DatabaseConfig::Sqlite(_) => Duration::ZERO,
        };
        Self { step_max }
    }

    /// Repeats a step while the database does not answer it. The step must be idempotent.
    pub(super) async fn repeat<T, E: Into<ServeError>>(
        &self,
        step: impl AsyncFn() -> Result<T, E>,
    ) -> Result<T, ServeError> {
        let give_up_at = Instant::now() + self.step_max;
        loop {
            let error = match step().await {
                Ok(done) => return Ok(done),
                Err(error) => error.into(),
            };
            if !is_temporary(&error) || Instant::now() >= give_up_at {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_step_after_a_long_migration_is_repeated() {
        let (wait, tries) = (DatabaseWait { step_max: DATABASE_WAIT }, AtomicU32::new(0));
        tokio::time::advance(DATABASE_WAIT * 2).await;
        let step = async || match tries.fetch_add(1, Ordering::Relaxed) {
            0 => Err(StoreError::Busy { detail: "a lock".to_owned() }),
            count => Ok(count),
        };
        assert_eq!(wait.repeat(step).await.ok(), Some(1));
        let refused = async || Err::<(), _>(StoreError::Busy { detail: "a lock".to_owned() });
        let before = Instant::now();
        assert!(wait.repeat(refused).await.is_err());
        assert!(before.elapsed() >= DATABASE_WAIT);
    }
}
