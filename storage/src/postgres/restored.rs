//! Ends the state of a restored copy that must not continue, in steps that each end in time.

use records::RestoreSummary;
use sqlx::{
    postgres::{PgArguments, Postgres},
    query::Query,
};

use super::{PostgresStore, config::only, rows::count};
use crate::StoreError;

/// Rows that one step changes at most. A session can have many events.
const STEP_ROWS: i64 = 100;

const END_SESSIONS: &str = "WITH ended AS (
        DELETE FROM sessions WHERE key IN (SELECT key FROM sessions LIMIT $1) RETURNING 1)
    SELECT count(*) AS changed FROM ended";

/// The second parameter is the owner that marks a task as done by this call. An earlier call does not
/// count: its tasks may have had owners that the copy has lost. The time in seconds exceeds the epochs
/// of those owners.
const STOP_TASKS: &str = "WITH stopped AS (
        UPDATE tasks SET owner = $2, epoch = greatest(epoch + 1000, now_us() / 1000000),
            step = greatest(step, 1::smallint)
        WHERE task IN (
            SELECT task FROM tasks
            WHERE status IN ('working', 'input_required') AND owner IS DISTINCT FROM $2 LIMIT $1)
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
        // No node has such a name, because the name of a node contains a slash.
        let owner = format!("restored {:016x}", rand::random::<u64>());
        let end_sessions = |_| sqlx::query(END_SESSIONS).bind(STEP_ROWS);
        let stop_tasks = |_| sqlx::query(STOP_TASKS).bind(STEP_ROWS).bind(owner.as_str());
        let end_approvals = |_| sqlx::query(END_APPROVALS).bind(STEP_ROWS);
        Ok(RestoreSummary {
            sessions: self.in_steps(end_sessions).await?,
            tasks: self.in_steps(stop_tasks).await?,
            approvals: self.in_steps(end_approvals).await?,
        })
    }

    /// Repeats a statement until it finds no more rows. Returns the number of changed rows.
    async fn in_steps<'q>(
        &self,
        step: impl Fn(bool) -> Query<'q, Postgres, PgArguments> + Copy + Send + Sync,
    ) -> Result<u64, StoreError> {
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
