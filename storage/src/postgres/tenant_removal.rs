//! Removal of the sessions and tasks of a tenant, in steps that each end in time.

use protocol::ids::TenantId;
use sqlx::Row as _;

use super::{PostgresStore, config::only, error_mapping::map_error};
use crate::StoreError;

/// Steps, each with the most rows that one of it removes. A session can have many events.
const STEPS: [(&str, i32); 2] =
    [("SELECT remove_tasks_of($1, $2)", 200), ("SELECT remove_sessions_of($1, $2)", 100)];

impl PostgresStore {
    /// Removes sessions and tasks of a tenant. The removal of the tenant deletes the rest. Returns
    /// false if the tenant does not exist.
    pub(super) async fn remove_tenant_state(&self, tenant: &TenantId) -> Result<bool, StoreError> {
        let exists =
            |_| sqlx::query("SELECT 1 FROM tenants WHERE tenant = $1").bind(tenant.as_str());
        if self.rows(exists).await?.is_empty() {
            return Ok(false);
        }
        for (statement, limit) in STEPS {
            let step = |_| sqlx::query(statement).bind(tenant.as_str()).bind(limit);
            loop {
                let removed: i64 = only(&self.rows(step).await?)?.try_get(0).map_err(map_error)?;
                // The tenant is still in use and can get new rows, but far fewer at a time.
                if removed < i64::from(limit) {
                    break;
                }
            }
        }
        Ok(true)
    }
}
