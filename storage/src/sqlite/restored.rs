//! Ends the state of a restored copy that must not continue, in one transaction.

use records::RestoreSummary;

use super::{SqliteStore, error_mapping::map_error, now_us};
use crate::StoreError;

/// No node has the name `restored`, because the name of a node contains a slash. A task that has this
/// owner already may have had owners that the copy has lost. The parameter is the time in seconds,
/// which exceeds the epochs of those owners.
const STOP_TASKS: &str = "UPDATE tasks SET owner = 'restored', epoch = max(epoch + 1000, ?),
         step = CASE step WHEN 'queued' THEN 'sent' ELSE step END
     WHERE status IN ('working', 'input_required')";

const END_APPROVALS: &str = "UPDATE approvals SET
         state = CASE WHEN state IN ('pending', 'approved') THEN 'expired' ELSE state END,
         arguments = CASE WHEN state IN ('pending', 'approved') THEN x'' ELSE arguments END,
         window_until_us = NULL, changed_at_us = ?
     WHERE state IN ('pending', 'approved') OR window_until_us IS NOT NULL";

impl SqliteStore {
    /// Has no deadline, because no request waits for it.
    pub(super) async fn end_restored(&self) -> Result<RestoreSummary, StoreError> {
        let mut writing = self.begin().await?;
        let sessions = sqlx::query("DELETE FROM sessions");
        let sessions = sessions.execute(writing.connection()).await.map_err(map_error)?;
        let tasks = sqlx::query(STOP_TASKS).bind(now_us() / 1_000_000);
        let tasks = tasks.execute(writing.connection()).await.map_err(map_error)?;
        let approvals = sqlx::query(END_APPROVALS).bind(now_us());
        let approvals = approvals.execute(writing.connection()).await.map_err(map_error)?;
        writing.commit().await?;
        Ok(RestoreSummary {
            sessions: sessions.rows_affected(),
            tasks: tasks.rows_affected(),
            approvals: approvals.rows_affected(),
        })
    }
}
