//! Number of child processes of each tenant. A child has a permit from before its start until all
//! of its processes have ended.
//!
//! [`Children`] also holds the guardian, which ends the children if the broker is killed.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use protocol::ids::TenantId;
use transport::child_guardian::Guardian;

/// Path of the running program, even after its file was replaced.
pub const PROGRAM: &str = "/proc/self/exe";

#[derive(Debug, Clone)]
pub struct Children {
    counts: Arc<Mutex<HashMap<TenantId, usize>>>,
    guardian: Arc<Guardian>,
}

impl Default for Children {
    fn default() -> Self {
        Self { counts: Arc::default(), guardian: Guardian::new(PROGRAM.into()) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the tenant has {max} child processes, which is stdio.children_per_tenant")]
pub struct ChildLimitReached {
    max: usize,
}

/// Permit for one child process.
#[derive(Debug)]
pub struct ChildPermit {
    children: Children,
    tenant: TenantId,
}

impl Children {
    pub fn guardian(&self) -> &Arc<Guardian> {
        &self.guardian
    }

    pub fn acquire(&self, tenant: &TenantId, max: usize) -> Result<ChildPermit, ChildLimitReached> {
        let mut counts = self.counts.lock();
        let count = counts.entry(tenant.clone()).or_default();
        if *count >= max {
            return Err(ChildLimitReached { max });
        }
        *count += 1;
        Ok(ChildPermit { children: self.clone(), tenant: tenant.clone() })
    }
}

impl Drop for ChildPermit {
    fn drop(&mut self) {
        let mut counts = self.children.counts.lock();
        if let Some(count) = counts.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenant_has_its_own_limit_of_children() {
        let children = Children::default();
        let [one, other] = ["one", "other"].map(|name| TenantId::parse(name).unwrap());
        let permits: Vec<ChildPermit> =
            (0..2).map(|_| children.acquire(&one, 2).unwrap()).collect();
        assert!(children.acquire(&one, 2).is_err() && children.acquire(&other, 2).is_ok());
        drop(permits);
        assert!(children.acquire(&one, 2).is_ok() && children.counts.lock().is_empty());
    }
}
