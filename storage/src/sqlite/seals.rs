//! [`SealStore`] on SQLite.

use async_trait::async_trait;
use records::{RootSecretId, SealedValue, StoredRoot};

use super::{SqliteStore, error_mapping::map_error, with_deadline};
use crate::{SealStore, StoreError, seal_rows};

impl SqliteStore {
    /// Carries out one statement.
    async fn change_seals(
        &self,
        statement: &'static str,
        bytes: &[&[u8]],
        texts: &[&str],
    ) -> Result<(), StoreError> {
        with_deadline("writing sealed values", async {
            let mut writing = self.begin().await?;
            let query =
                bytes.iter().fold(sqlx::query(statement), |query, bytes| query.bind(*bytes));
            let query = texts.iter().fold(query, |query, text| query.bind(*text));
            query.execute(writing.connection()).await.map_err(map_error)?;
            writing.commit().await
        })
        .await
    }
}

#[async_trait]
impl SealStore for SqliteStore {
    async fn roots(&self) -> Result<Vec<StoredRoot>, StoreError> {
        with_deadline("reading root keys", async {
            let rows = sqlx::query(seal_rows::ROOTS).fetch_all(&self.readers).await;
            rows.map_err(map_error)?.iter().map(seal_rows::root).collect()
        })
        .await
    }

    async fn add_root(&self, root: &StoredRoot) -> Result<(), StoreError> {
        let number = root.seal_key.to_string();
        self.change_seals(seal_rows::ADD_ROOT, &[&root.secret, &root.sealed], &[&number]).await
    }

    async fn keep_root(&self, secret: &RootSecretId) -> Result<(), StoreError> {
        self.change_seals(seal_rows::KEEP_ROOT, &[secret], &[]).await
    }

    async fn sealed_before(
        &self,
        number: u8,
        skip: u32,
        limit: u32,
    ) -> Result<Vec<SealedValue>, StoreError> {
        with_deadline("reading sealed values", async {
            let number: &[u8] = &[number];
            let query = sqlx::query(seal_rows::SEALED_BEFORE).bind(number);
            let rows = query.bind(limit).bind(skip).fetch_all(&self.readers).await;
            rows.map_err(map_error)?.iter().map(seal_rows::value).collect()
        })
        .await
    }

    async fn reseal(&self, value: &SealedValue, sealed: &[u8]) -> Result<(), StoreError> {
        let (statement, key) = seal_rows::reseal(&value.location);
        self.change_seals(statement, &[sealed, &value.sealed], &key).await
    }
}
