//! Behaviours of every [`SealStore`](crate::SealStore).

use protocol::ids::PrincipalId;
use records::{
    AdminChange, BackendRecord, GrantKey, GrantRecord, GrantState, SealedLocation, SealedValue,
    SecretKey, SecretKind, StoredRoot, TokenIssuerRecord,
};

use super::{LONG, Outcome, backend, config::tenant_record, tenant};
use crate::DurableStore;

const OLD: u8 = 1;
const NEW: u8 = 2;

pub async fn the_first_root_key_of_a_secret_stays(store: &dyn DurableStore) -> Outcome {
    assert_eq!(store.roots().await?, []);
    let (second, first) = (root(2, b"\0second"), root(1, b"first"));
    store.add_root(&second).await?;
    store.add_root(&first).await?;
    store.add_root(&root(2, b"of another process")).await?;
    assert_eq!(store.roots().await?, [second, first], "in the order of their creation");
    Ok(())
}

pub async fn root_keys_of_other_secrets_are_removed_for_one_that_has_a_root_key(
    store: &dyn DurableStore,
) -> Outcome {
    let (one, two) = (root(1, b"one"), root(2, b"two"));
    store.add_root(&one).await?;
    store.add_root(&two).await?;
    store.keep_root(&root(3, b"").secret).await?;
    assert_eq!(store.roots().await?, [one, two.clone()], "the third has none");
    store.keep_root(&two.secret).await?;
    assert_eq!(store.roots().await?, [two]);
    Ok(())
}

pub async fn values_of_earlier_keys_are_found_and_sealed_again(
    store: &dyn DurableStore,
) -> Outcome {
    let all = values();
    for value in &all {
        put(store, value).await?;
    }
    // Secrets of the other kinds end soon.
    store.put_secret(&secret(SecretKind::Login), &[OLD], LONG).await?;
    assert_eq!(store.sealed_before(OLD, 0, 10).await?, []);
    assert_eq!(store.sealed_before(NEW, 0, 10).await?, all);
    assert_eq!(store.sealed_before(NEW, 1, 2).await?, all[1..3]);
    let version = store.grant(&grant_key()).await?.expect("a grant").version;
    for value in &all {
        store.reseal(value, &[NEW, 0, 255]).await?;
    }
    assert_eq!(store.sealed_before(NEW, 0, 10).await?, []);
    let sealed = all.into_iter().map(|value| SealedValue { sealed: vec![NEW, 0, 255], ..value });
    assert_eq!(store.sealed_before(NEW + 1, 0, 10).await?, sealed.collect::<Vec<_>>());
    let grant = store.grant(&grant_key()).await?.expect("a grant");
    assert_eq!((grant.version, grant.record.sealed), (version, vec![NEW, 0, 255]));
    Ok(())
}

pub async fn a_value_that_changed_is_not_sealed_again(store: &dyn DurableStore) -> Outcome {
    for value in values() {
        put(store, &value).await?;
        let before = SealedValue { sealed: vec![OLD, 9], ..value.clone() };
        store.reseal(&before, &[NEW]).await?;
        let found = store.sealed_before(NEW, 0, 10).await?;
        assert!(found.contains(&value), "{value:?}");
    }
    Ok(())
}

/// Returns a value of each location, in the order of their rows.
fn values() -> Vec<SealedValue> {
    let locations = [
        SealedLocation::Backend { tenant: tenant("acme"), backend: backend("one") },
        SealedLocation::Secret(secret(SecretKind::Client)),
        SealedLocation::Grant { key: grant_key(), issuer: "https://as.example".to_owned() },
        SealedLocation::Issuer { tenant: tenant("acme"), issuer: "login".to_owned() },
        SealedLocation::Secret(secret(SecretKind::Key)),
    ];
    let sealed = |(number, location)| SealedValue { location, sealed: vec![OLD, number, 0, 255] };
    (0..).zip(locations).map(sealed).collect()
}

async fn put(store: &dyn DurableStore, value: &SealedValue) -> Outcome {
    let settings = value.sealed.clone();
    match &value.location {
        SealedLocation::Backend { tenant, backend } => {
            store.apply(AdminChange::PutTenant(&tenant_record(tenant.as_str())), None).await?;
            let (tenant, backend) = (tenant.clone(), backend.clone());
            let record =
                BackendRecord { tenant, backend, settings, created_at_us: 1, updated_at_us: 1 };
            store.apply(AdminChange::PutBackend(&record), None).await?;
        }
        SealedLocation::Issuer { tenant, issuer } => {
            let (tenant, issuer) = (tenant.clone(), issuer.clone());
            let record =
                TokenIssuerRecord { tenant, issuer, settings, created_at_us: 1, updated_at_us: 1 };
            store.apply(AdminChange::PutTokenIssuer(&record), None).await?;
        }
        SealedLocation::Grant { key, issuer } => {
            let (key, issuer) = (key.clone(), issuer.clone());
            let state = GrantState::Connected;
            let record = GrantRecord {
                key,
                issuer,
                sealed: settings,
                state,
                expires_at_us: None,
                last_error: None,
            };
            store.put_grant(&record, None).await?;
        }
        SealedLocation::Secret(key) => store.put_secret(key, &settings, LONG).await?,
    }
    Ok(())
}

fn root(secret: u8, sealed: &[u8]) -> StoredRoot {
    StoredRoot { secret: [secret; 16], seal_key: 200, sealed: sealed.to_vec() }
}

fn grant_key() -> GrantKey {
    let principal = PrincipalId::new("ann");
    GrantKey { tenant: tenant("acme"), backend: backend("one"), principal }
}

fn secret(kind: SecretKind) -> SecretKey {
    SecretKey { kind, tenant: tenant("acme"), name: "a name".to_owned() }
}
