//! How many child processes each tenant has: a place is taken before one is started and free when nothing of it is left.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use protocol::ids::TenantId;

use super::sync::lock;

#[derive(Debug, Clone, Default)]
pub struct Children(Arc<Mutex<HashMap<TenantId, usize>>>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the tenant has {max} child processes, which is stdio.children_per_tenant")]
pub struct Full {
    max: usize,
}

/// One child's place.
#[derive(Debug)]
pub struct Place {
    children: Children,
    tenant: TenantId,
}

impl Children {
    pub fn enter(&self, tenant: &TenantId, max: usize) -> Result<Place, Full> {
        let mut counts = lock(&self.0);
        let count = counts.entry(tenant.clone()).or_default();
        if *count >= max {
            return Err(Full { max });
        }
        *count += 1;
        Ok(Place { children: self.clone(), tenant: tenant.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = lock(&self.children.0);
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
    fn each_tenant_has_places_of_its_own() {
        let children = Children::default();
        let [one, other] = ["one", "other"].map(|name| TenantId::parse(name).unwrap());
        let places: Vec<Place> = (0..2).map(|_| children.enter(&one, 2).unwrap()).collect();
        assert!(children.enter(&one, 2).is_err() && children.enter(&other, 2).is_ok());
        drop(places);
        assert!(children.enter(&one, 2).is_ok() && lock(&children.0).is_empty());
    }
}
