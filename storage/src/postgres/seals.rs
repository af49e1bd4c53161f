//! [`SealStore`] on PostgreSQL.

use async_trait::async_trait;
use records::{RootSecretId, SealedValue, StoredRoot};

use super::PostgresStore;
use crate::{SealStore, StoreError, seal_rows};

#[async_trait]
impl SealStore for PostgresStore {
    async fn roots(&self) -> Result<Vec<StoredRoot>, StoreError> {
        let rows = self.rows(|_| sqlx::query(seal_rows::ROOTS)).await?;
        rows.iter().map(seal_rows::root).collect()
    }

    async fn add_root(&self, root: &StoredRoot) -> Result<(), StoreError> {
        let add = |_| {
            let query = sqlx::query(seal_rows::ADD_ROOT).bind(root.secret.as_slice());
            query.bind(&*root.sealed).bind(i32::from(root.seal_key))
        };
        self.rows_of(&self.write_pool, add).await?;
        Ok(())
    }

    async fn keep_root(&self, secret: &RootSecretId) -> Result<(), StoreError> {
        let keep = |_| sqlx::query(seal_rows::KEEP_ROOT).bind(secret.as_slice());
        self.rows_of(&self.write_pool, keep).await?;
        Ok(())
    }

    async fn sealed_before(
        &self,
        number: u8,
        skip: u32,
        limit: u32,
    ) -> Result<Vec<SealedValue>, StoreError> {
        let number: &[u8] = &[number];
        let select = |_| {
            let query = sqlx::query(seal_rows::SEALED_BEFORE).bind(number);
            query.bind(i64::from(limit)).bind(i64::from(skip))
        };
        self.rows(select).await?.iter().map(seal_rows::value).collect()
    }

    async fn reseal(&self, value: &SealedValue, sealed: &[u8]) -> Result<(), StoreError> {
        let (statement, key) = seal_rows::reseal(&value.location);
        // A repeated call after a lost answer finds its own bytes, and changes nothing.
        let write = |_| {
            let query = sqlx::query(statement).bind(sealed).bind(&*value.sealed);
            key.iter().fold(query, |query, text| query.bind(*text))
        };
        self.rows_of(&self.write_pool, write).await?;
        Ok(())
    }
}
