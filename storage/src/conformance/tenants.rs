//! Behaviours of every [`DurableStore`] for tenants that have the name of an earlier one.

use protocol::ids::PrincipalId;
use records::{
    AdminChange, GrantKey, GrantRecord, GrantState, KeptResult, PinKey, PinKind, PinSighting,
    ResultKey, ResultLimits, SecretKey, SecretKind,
};

use super::{
    LONG, Outcome, approvals, backend, config::tenant_record, create, done, open, session_record,
    task_record, tasks::counts, tenant,
};
use crate::{DurableStore, StoreError};

/// A replica that has not read the removal of a tenant still writes for it.
pub async fn a_new_tenant_has_nothing_of_an_earlier_one(store: &dyn DurableStore) -> Outcome {
    let (acme, record) = (tenant("acme"), tenant_record("acme"));
    store.apply(AdminChange::PutTenant(&record), None).await?;
    assert!(store.apply(AdminChange::DeleteTenant(&acme), None).await?);
    for change in [AdminChange::PutTenant(&record), AdminChange::AddTenant(&record)] {
        write_rows(store).await?;
        assert_eq!(rows(store).await?, [true; 8]);
        assert!(store.apply(change, None).await?);
        assert_eq!(rows(store).await?, [false; 8], "{}", change.name());
        assert_eq!(counts(store).await?, [0; 5]);
        write_rows(store).await?;
        store.apply(AdminChange::PutTenant(&record), None).await?;
        store.apply(AdminChange::AddTenant(&record), None).await?;
        assert_eq!(rows(store).await?, [true; 8], "a replaced tenant keeps them");
        assert!(store.apply(AdminChange::DeleteTenant(&acme), None).await?);
    }
    Ok(())
}

/// Writes a row of each table whose rows name a tenant and do not need it.
async fn write_rows(store: &dyn DurableStore) -> Outcome {
    let (acme, one) = (tenant("acme"), backend("one"));
    done(store, open(session_record(1), "a")).await?;
    done(store, create(task_record("t1"), "a")).await?;
    let grant = GrantRecord {
        key: grant_key(),
        issuer: "https://as.example".to_owned(),
        sealed: vec![0, 255],
        state: GrantState::Connected,
        expires_at_us: None,
        last_error: None,
    };
    store.put_grant(&grant, None).await?;
    store.put_secret(&secret(), b"sealed", LONG).await?;
    let seen = PinSighting {
        key: PinKey { kind: PinKind::Tool, name: "t".to_owned() },
        hash: format!("v1:{:064}", 1),
        definition: "{}".to_owned(),
        findings: "[]".to_owned(),
    };
    store.record_sightings(&acme, &one, &[seen], &[], 10).await?;
    approvals::open(store, &approvals::record("a", 1)).await?;
    let result = KeptResult {
        key: result_key(),
        backend: one.clone(),
        tool: "send".to_owned(),
        mime_type: "text/plain".to_owned(),
        page_bytes: 4_096,
        body: b"all of it".to_vec(),
    };
    let limits = ResultLimits { principal_bytes: u64::MAX, tenant_bytes: u64::MAX };
    assert!(store.put_result(&result, LONG, limits).await?);
    store.apply(AdminChange::HoldBreaker(&acme, &one), None).await?;
    Ok(())
}

/// Returns which of these rows the store has.
async fn rows(store: &dyn DurableStore) -> Result<[bool; 8], StoreError> {
    let (acme, one) = (tenant("acme"), backend("one"));
    Ok([
        !store.list_sessions(Some(&acme), None, 10).await?.is_empty(),
        !store.list_tasks(Some(&acme), None, None, 10).await?.is_empty(),
        store.grant(&grant_key()).await?.is_some(),
        store.secret(&secret()).await?.is_some(),
        !store.pins_of(&acme, &one).await?.is_empty(),
        approvals::state(store, "a").await?.is_some(),
        store.result(&result_key()).await?.is_some(),
        !store.held_breakers().await?.is_empty(),
    ])
}

fn grant_key() -> GrantKey {
    let principal = PrincipalId::new("ada");
    GrantKey { tenant: tenant("acme"), backend: backend("one"), principal }
}

fn secret() -> SecretKey {
    SecretKey { kind: SecretKind::Key, tenant: tenant("acme"), name: "a name".to_owned() }
}

fn result_key() -> ResultKey {
    let principal = PrincipalId::new("ada");
    ResultKey { tenant: tenant("acme"), principal, id: "r1".to_owned() }
}
