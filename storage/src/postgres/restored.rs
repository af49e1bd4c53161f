//! Ends the state of a restored copy that must not continue, in steps that each end in time.

use records::RestoreSummary;

use super::{PostgresStore, config::only, rows::count};
use crate::StoreError;

/// Rows that one step changes at most. A session can have many events.
const STEP_ROWS: i64 = 100;

const END_SESSIONS: &str = "WITH ended AS (
        DELETE FROM sessions WHERE key IN (SELECT key FROM sessions LIMIT $1) RETURNING 1)
    SELECT count(*) AS changed FROM ended";

/// No node has the name `restored`, because the name of a node contains a slash. A task with this
/// owner is done.
const STOP_TASKS: &str = "WITH stopped AS (
        UPDATE tasks SET owner = 'restored', epoch = epoch + 1000, step = greatest(step, 1::smallint)
        WHERE task IN (
            SELECT task FROM tasks
            WHERE status IN ('working', 'input_required') AND owner IS DISTINCT FROM 'restored' LIMIT $1)
        RETURNING 1)
    SELECT count(*) AS changed FROM stopped";

const END_APPROVALS: &str = "WITH ended AS (
        UPDATE approvals SET
            state = CASE WHEN state IN ('pending', 'approved') THEN 'expired' ELSE state END,
            arguments = CASE WHEN state IN ('pending', 'approved') THEN ''::bytea ELSE arguments END,
            window_until_us = NULL, changed_at_us = now_us()
        WHERE approval IN (
            SELECT approval FROM approvals
            WHERE state IN ('pending', 'approved') OR window_until_us IS NOT NULL LIMIT $1)
        RETURNING 1)
    SELECT count(*) AS changed FROM ended";

impl PostgresStore {
    pub(super) async fn end_restored(&self) -> Result<RestoreSummary, StoreError> {
        Ok(RestoreSummary {
            sessions: self.in_steps(END_SESSIONS).await?,
            tasks: self.in_steps(STOP_TASKS).await?,
            approvals: self.in_steps(END_APPROVALS).await?,
        })
    }

    /// Repeats a statement until it finds no more rows. Returns the number of changed rows.
    async fn in_steps(&self, statement: &'static str) -> Result<u64, StoreError> {
        let step = |_| sqlx::query(statement).bind(STEP_ROWS);
        let mut total = 0;
        loop {
            let changed = count(only(&self.rows(step).await?)?, "changed")?;
            total += changed;
            if changed < STEP_ROWS.unsigned_abs() {
                return Ok(total);
            }
        }
    }
}
