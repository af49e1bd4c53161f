//! Rows of the database with the tokens of callers: their names, and the writes of this process.
//!
//! Invariants:
//! - A principal has [`SUBJECT_ROWS_PER_PRINCIPAL`] rows at most, however many tokens it brings. A
//!   token that finds another one in its row replaces it.
//! - Few writes of a tenant run at the same time. A token that was not written is written at the
//!   next request with it.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use protocol::ids::{PrincipalId, TenantId};
use records::{SecretKey, SecretKind};
use rules::limits::oauth::{
    GRANT_CACHED_MAX, SUBJECT_ROWS_PER_PRINCIPAL, SUBJECT_WRITES_PER_TENANT_MAX,
};

use super::secret_text::digest_of;
use crate::auth::SubjectDigest;

/// Tokens that this process has written or writes now.
#[derive(Debug, Default)]
pub(super) struct SubjectRows {
    state: Mutex<RowState>,
}

#[derive(Debug, Default)]
struct RowState {
    /// Token in each row, as far as this process knows.
    written: HashMap<RowName, SubjectDigest>,
    /// Number of writes that run.
    writes: HashMap<TenantId, usize>,
}

type RowName = (TenantId, String);

/// A write of one token. Its end gives its place to another write.
#[derive(Debug)]
pub(super) struct RowWrite {
    rows: Arc<SubjectRows>,
    pub(super) key: SecretKey,
    digest: SubjectDigest,
    is_done: bool,
}

impl SubjectRows {
    /// Returns the write of a token. `None`: its row has it, or too many writes of its tenant run.
    pub(super) fn write(
        self: &Arc<Self>,
        tenant: &TenantId,
        principal: &PrincipalId,
        digest: &SubjectDigest,
    ) -> Option<RowWrite> {
        let key = row_of(tenant, principal, digest);
        let name = (tenant.clone(), key.name.clone());
        let mut state = self.state.lock();
        if state.written.get(&name) == Some(digest) {
            return None;
        }
        let writes = state.writes.entry(tenant.clone()).or_default();
        if *writes >= SUBJECT_WRITES_PER_TENANT_MAX {
            return None;
        }
        *writes += 1;
        if state.written.len() >= GRANT_CACHED_MAX {
            state.written.clear(); // a lost entry only causes another write
        }
        state.written.insert(name, digest.clone());
        let (rows, digest) = (self.clone(), digest.clone());
        Some(RowWrite { rows, key, digest, is_done: false })
    }
}

impl RowWrite {
    /// Notes that the row has the token.
    pub(super) fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for RowWrite {
    fn drop(&mut self) {
        let mut state = self.rows.state.lock();
        let tenant = &self.key.tenant;
        if let Some(writes) = state.writes.get_mut(tenant) {
            *writes -= 1;
            if *writes == 0 {
                state.writes.remove(tenant);
            }
        }
        let name = (tenant.clone(), self.key.name.clone());
        if !self.is_done && state.written.get(&name) == Some(&self.digest) {
            state.written.remove(&name);
        }
    }
}

/// Returns the row of a token.
pub(super) fn row_of(
    tenant: &TenantId,
    principal: &PrincipalId,
    digest: &SubjectDigest,
) -> SecretKey {
    let sum = digest.bytes().fold(0, |sum: usize, byte| sum.wrapping_mul(31) + usize::from(byte));
    let row = sum % SUBJECT_ROWS_PER_PRINCIPAL;
    let name = digest_of(&format!("{row}\0{}", principal.as_str()));
    SecretKey { kind: SecretKind::Subject, tenant: tenant.clone(), name }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    #[test]
    fn the_tokens_of_a_principal_have_few_rows() {
        let (acme, ann, bob) = (tenant("acme"), PrincipalId::new("ann"), PrincipalId::new("bob"));
        let row = |of: &PrincipalId, number: u32| {
            row_of(&acme, of, &digest_of(&number.to_string()).as_str().into()).name
        };
        let rows: HashSet<String> = (0..5_000).map(|number| row(&ann, number)).collect();
        assert_eq!(rows.len(), SUBJECT_ROWS_PER_PRINCIPAL);
        assert!((0..5_000).all(|number| !rows.contains(&row(&bob, number))), "of ann alone");
    }

    #[test]
    fn a_token_is_written_once_and_again_after_a_failure_or_another_token() {
        let (rows, acme, ann) =
            (Arc::new(SubjectRows::default()), tenant("acme"), PrincipalId::new("ann"));
        let digest = |text: &str| -> SubjectDigest { text.into() };
        let write = |text: &str| rows.write(&acme, &ann, &digest(text));
        let first = write("a").expect("the first write");
        assert!(write("a").is_none(), "it runs");
        drop(first);
        write("a").expect("it had failed").done();
        assert!(write("a").is_none(), "the row has it");
        let same_row = (0..)
            .map(|number: u32| number.to_string())
            .find(|text| row_of(&acme, &ann, &digest(text)) == row_of(&acme, &ann, &digest("a")));
        write(&same_row.unwrap()).expect("another token").done();
        assert!(write("a").is_some(), "the other one has replaced it");
    }

    #[test]
    fn the_writes_of_a_tenant_are_bounded_and_leave_others_alone() {
        let (rows, ann) = (Arc::new(SubjectRows::default()), PrincipalId::new("ann"));
        let write = |of: &str, number: usize| {
            rows.write(&tenant(of), &ann, &format!("{number}").as_str().into())
        };
        let mut running: Vec<RowWrite> = (0..1_000).filter_map(|at| write("acme", at)).collect();
        assert_eq!(running.len(), SUBJECT_WRITES_PER_TENANT_MAX);
        assert!(write("zoo", 1).is_some());
        running.pop();
        assert!(write("acme", 2_000).is_some());
    }
}
