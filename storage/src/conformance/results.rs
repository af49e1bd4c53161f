//! Behaviours of every [`ResultStore`](crate::ResultStore).

use std::time::Duration;

use protocol::ids::PrincipalId;
use records::{AdminChange, BackendRecord, KeptResult, ResultKey, ResultLimits};

use super::{LONG, Outcome, backend, config::tenant_record, tenant};
use crate::DurableStore;

const MANY: ResultLimits = ResultLimits { principal_bytes: u64::MAX, tenant_bytes: u64::MAX };

pub async fn a_result_is_kept_as_given_for_its_principal_only(store: &dyn DurableStore) -> Outcome {
    let kept = result("r1", "ann", 300);
    assert_eq!(store.result(&kept.key).await?, None);
    assert!(store.put_result(&kept, LONG, MANY).await?);
    assert_eq!(store.result(&kept.key).await?, Some(kept.clone()));
    for other in [
        ResultKey { principal: PrincipalId::new("bob"), ..kept.key.clone() },
        ResultKey { tenant: tenant("zoo"), ..kept.key.clone() },
        ResultKey { id: "r2".to_owned(), ..kept.key.clone() },
        ResultKey { id: "r1\0".to_owned(), ..kept.key.clone() },
    ] {
        assert_eq!(store.result(&other).await?, None, "{other:?}");
    }
    Ok(())
}

pub async fn a_result_expires_and_is_removed(store: &dyn DurableStore) -> Outcome {
    let (over, kept) = (result("r1", "ann", 10), result("r2", "ann", 10));
    store.put_result(&kept, LONG, MANY).await?;
    store.put_result(&over, Duration::ZERO, MANY).await?;
    assert_eq!(store.result(&over.key).await?, None);
    assert_eq!((store.remove_results(10).await?, store.remove_results(10).await?), (1, 0));
    assert_eq!(store.result(&kept.key).await?, Some(kept));
    Ok(())
}

pub async fn the_oldest_results_of_a_principal_are_evicted(store: &dyn DurableStore) -> Outcome {
    let limits = ResultLimits { principal_bytes: 100, tenant_bytes: 1_000 };
    let other = result("b", "bob", 90);
    store.put_result(&other, LONG, limits).await?;
    let all = ["r1", "r2", "r3"].map(|id| result(id, "ann", 50));
    for one in &all {
        assert!(store.put_result(one, LONG, limits).await?);
    }
    let mut kept = Vec::new();
    for one in &all {
        kept.push(store.result(&one.key).await?.is_some());
    }
    assert_eq!(kept, [false, true, true]);
    assert!(store.result(&other.key).await?.is_some(), "another principal's");
    Ok(())
}

pub async fn a_tenant_without_capacity_stores_no_result(store: &dyn DurableStore) -> Outcome {
    let limits = ResultLimits { principal_bytes: 100, tenant_bytes: 120 };
    assert!(store.put_result(&result("a", "ann", 100), LONG, limits).await?);
    let late = result("b", "bob", 30);
    assert!(!store.put_result(&late, LONG, limits).await?);
    assert_eq!(store.result(&late.key).await?, None);
    let mut other = result("c", "bob", 100);
    other.key.tenant = tenant("zoo");
    assert!(store.put_result(&other, LONG, limits).await?, "another tenant's");
    Ok(())
}

pub async fn a_result_without_capacity_evicts_nothing(store: &dyn DurableStore) -> Outcome {
    let limits = ResultLimits { principal_bytes: 100, tenant_bytes: 120 };
    let (other, own) = (result("a", "ann", 60), result("b", "bob", 50));
    for one in [&other, &own] {
        assert!(store.put_result(one, LONG, limits).await?);
    }
    assert!(!store.put_result(&result("c", "bob", 70), LONG, limits).await?);
    assert!(store.result(&own.key).await?.is_some(), "its place would not have sufficed");
    assert!(store.put_result(&result("d", "bob", 60), LONG, limits).await?);
    assert!(store.result(&own.key).await?.is_none() && store.result(&other.key).await?.is_some());
    Ok(())
}

pub async fn an_expired_result_needs_no_capacity(store: &dyn DurableStore) -> Outcome {
    let limits = ResultLimits { principal_bytes: 100, tenant_bytes: 120 };
    assert!(store.put_result(&result("a", "ann", 100), Duration::ZERO, limits).await?);
    let kept = result("b", "ann", 60);
    assert!(store.put_result(&kept, LONG, limits).await?);
    assert!(store.put_result(&result("c", "bob", 60), Duration::ZERO, limits).await?);
    assert!(!store.put_result(&result("d", "bob", 70), LONG, limits).await?);
    assert!(store.put_result(&result("e", "bob", 60), LONG, limits).await?);
    assert_eq!(store.result(&kept.key).await?, Some(kept));
    Ok(())
}

pub async fn results_end_with_their_backend_and_tenant(store: &dyn DurableStore) -> Outcome {
    let acme = tenant("acme");
    store.apply(AdminChange::PutTenant(&tenant_record("acme")), None).await?;
    let of_backend = result("r1", "ann", 10);
    let mut of_other = result("r2", "ann", 10);
    of_other.backend = backend("two");
    let row = BackendRecord {
        tenant: acme.clone(),
        backend: backend("one"),
        settings: vec![1],
        created_at_us: 1,
        updated_at_us: 1,
    };
    store.apply(AdminChange::PutBackend(&row), None).await?;
    for one in [&of_backend, &of_other] {
        store.put_result(one, LONG, MANY).await?;
    }
    store.apply(AdminChange::DeleteBackend(&acme, &row.backend), None).await?;
    assert_eq!(store.result(&of_backend.key).await?, None);
    assert!(store.result(&of_other.key).await?.is_some());
    store.apply(AdminChange::DeleteTenant(&acme), None).await?;
    assert_eq!(store.result(&of_other.key).await?, None);
    Ok(())
}

fn result(id: &str, principal: &str, size: usize) -> KeptResult {
    KeptResult {
        key: ResultKey {
            tenant: tenant("acme"),
            principal: PrincipalId::new(principal),
            id: id.to_owned(),
        },
        backend: backend("one"),
        tool: "send\0money".to_owned(),
        mime_type: "text/plain".to_owned(),
        page_bytes: 4_096,
        body: vec![b'x'; size],
    }
}
