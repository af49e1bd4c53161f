//! Behaviours of every [`AuditStore`](crate::AuditStore).

use std::{
    sync::LazyLock,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use protocol::ids::{BackendId, KeyId};
use records::{
    AdminChange, AuditFilter, AuditKind, AuditOrder, AuditRecord, SESSION_KEY_BYTES, SessionKey,
};

use super::{
    Outcome,
    config::{backend_record, key_record, tenant_record},
    tenant,
};
use crate::{DurableStore, StoreError};

/// Returns the time of the record with this number. It is recent, as a store bounds the times of
/// records by its clock.
pub(super) fn moment(number: u32) -> i64 {
    static FIRST: LazyLock<i64> = LazyLock::new(|| {
        let first = SystemTime::now() - Duration::from_secs(3_600);
        let seconds = first.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        i64::try_from(seconds).unwrap_or_default() * 1_000_000
    });
    *FIRST + i64::from(number) * 1_000
}

pub(super) fn record(number: u8, kind: AuditKind, of: Option<&str>) -> AuditRecord {
    AuditRecord {
        id: [number; 16],
        at_us: moment(u32::from(number)),
        kind,
        tenant: of.map(str::to_owned),
        body: format!("{{\"n\":{number}}}"),
    }
}

async fn numbers(
    store: &dyn DurableStore,
    filter: &AuditFilter,
) -> Result<Vec<u8>, crate::StoreError> {
    Ok(store
        .audit_records(filter, None, 100)
        .await?
        .iter()
        .map(|stored| stored.record.id[0])
        .collect())
}

pub async fn records_are_kept_as_given_and_in_order(store: &dyn DurableStore) -> Outcome {
    let mut odd = record(2, AuditKind::Call, Some("acme"));
    odd.body = "{\"argument\":\"\\u0000 ü '\"}".into();
    let given = [record(1, AuditKind::Admin, None), odd, record(3, AuditKind::Call, Some("other"))];
    store.append_audit(&given[..2]).await?;
    store.append_audit(&given[2..]).await?;
    let found = store.audit_records(&AuditFilter::default(), None, 100).await?;
    assert_eq!(found.iter().map(|stored| stored.record.clone()).collect::<Vec<_>>(), given);
    assert!(found.is_sorted_by_key(|stored| stored.number));
    Ok(())
}

pub async fn a_record_sent_again_is_added_once(store: &dyn DurableStore) -> Outcome {
    let given = [record(1, AuditKind::Admin, None), record(2, AuditKind::Admin, None)];
    store.append_audit(&given[..1]).await?;
    store.append_audit(&given).await?;
    assert_eq!(numbers(store, &AuditFilter::default()).await?, [1, 2]);
    store.append_audit(&[]).await?;
    Ok(())
}

pub async fn records_are_filtered_and_paged(store: &dyn DurableStore) -> Outcome {
    let kinds = [AuditKind::Admin, AuditKind::Call];
    let given: Vec<AuditRecord> = (1..=20)
        .map(|number| {
            record(
                number,
                kinds[usize::from(number % 2)],
                [Some("acme"), Some("b"), None][usize::from(number % 3)],
            )
        })
        .collect();
    store.append_audit(&given).await?;
    let of_acme = AuditFilter { tenant: Some("acme".into()), ..AuditFilter::default() };
    assert_eq!(numbers(store, &of_acme).await?, [3, 6, 9, 12, 15, 18]);
    let calls = AuditFilter {
        kind: Some(AuditKind::Call),
        since_us: Some(moment(5)),
        until_us: Some(moment(12)),
        ..of_acme
    };
    assert_eq!(numbers(store, &calls).await?, [9]);
    let newest = AuditFilter { order: AuditOrder::NewestFirst, ..calls.clone() };
    assert_eq!(numbers(store, &AuditFilter { since_us: None, ..newest }).await?, [9, 3]);
    assert_eq!(paged(store, AuditOrder::OldestFirst).await?, (1..=20).collect::<Vec<u8>>());
    assert_eq!(paged(store, AuditOrder::NewestFirst).await?, (1..=20).rev().collect::<Vec<u8>>());
    Ok(())
}

/// Returns the numbers of all records, read page by page.
async fn paged(store: &dyn DurableStore, order: AuditOrder) -> Result<Vec<u8>, StoreError> {
    let filter = AuditFilter { order, ..AuditFilter::default() };
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = store.audit_records(&filter, after, 7).await?;
        seen.extend(page.iter().map(|stored| stored.record.id[0]));
        after = page.last().map(|last| last.number);
        if page.len() < 7 {
            return Ok(seen);
        }
    }
}

pub async fn records_outlive_their_tenant(store: &dyn DurableStore) -> Outcome {
    store.apply(AdminChange::PutTenant(&tenant_record("acme")), None).await?;
    store.append_audit(&[record(1, AuditKind::Call, Some("acme"))]).await?;
    assert!(store.apply(AdminChange::DeleteTenant(&tenant("acme")), None).await?);
    assert_eq!(numbers(store, &AuditFilter::default()).await?, [1]);
    Ok(())
}

pub async fn a_change_and_its_audit_record_are_stored_together(
    store: &dyn DurableStore,
) -> Outcome {
    let audit = |number| record(number, AuditKind::Admin, Some("acme"));
    let (acme, of_acme, key, backend) = (
        tenant_record("acme"),
        tenant("acme"),
        key_record("acme", "k1"),
        backend_record("acme", "b"),
    );
    let name = BackendId::parse("b").expect("a legal name");
    assert!(store.apply(AdminChange::PutTenant(&acme), Some(&audit(1))).await?);
    assert!(store.apply(AdminChange::PutKey(&key), Some(&audit(2))).await?);
    assert!(store.apply(AdminChange::PutBackend(&backend), Some(&audit(3))).await?);
    // A change without effect adds no record.
    let twice = store.apply(AdminChange::PutKey(&key), Some(&audit(4))).await;
    assert!(matches!(twice, Err(StoreError::Exists { .. })), "{twice:?}");
    let orphan =
        store.apply(AdminChange::PutBackend(&backend_record("absent", "b")), Some(&audit(5))).await;
    assert!(matches!(orphan, Err(StoreError::UnknownTenant { .. })), "{orphan:?}");
    assert!(!store.apply(AdminChange::AddTenant(&acme), Some(&audit(6))).await?);
    assert!(
        !store
            .apply(AdminChange::DeleteKey(&of_acme, &KeyId::new("none")), Some(&audit(7)))
            .await?
    );
    assert!(!store.apply(AdminChange::DeleteTenant(&tenant("absent")), Some(&audit(8))).await?);
    let nobodys = SessionKey::new([9; SESSION_KEY_BYTES]);
    assert!(!store.apply(AdminChange::EndSession(&nobodys), Some(&audit(9))).await?);
    assert!(store.apply(AdminChange::PutTenant(&acme), Some(&audit(10))).await?, "replaced");
    assert!(store.apply(AdminChange::DeleteBackend(&of_acme, &name), Some(&audit(11))).await?);
    assert!(store.apply(AdminChange::DeleteKey(&of_acme, &key.key), Some(&audit(12))).await?);
    assert!(store.apply(AdminChange::DeleteTenant(&of_acme), Some(&audit(13))).await?);
    assert_eq!(numbers(store, &AuditFilter::default()).await?, [1, 2, 3, 10, 11, 12, 13]);
    Ok(())
}
