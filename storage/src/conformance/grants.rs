//! Behaviours of every [`GrantStore`](crate::GrantStore).

use std::time::Duration;

use futures_util::future::join_all;
use protocol::ids::PrincipalId;
use records::{
    AdminChange, BackendRecord, GrantError, GrantKey, GrantRecord, GrantState, SecretKey,
    SecretKind, WeakGrants,
};

use super::{LONG, Outcome, backend, config::tenant_record, tenant};
use crate::{DurableStore, StoreError};

pub async fn a_grant_is_kept_as_given_for_its_principal_only(store: &dyn DurableStore) -> Outcome {
    let (ann, bob) = (record("ann", 1), record("bob", 2));
    assert_eq!(store.grant(&ann.key).await?, None);
    let version = put(store, &ann).await?;
    assert_eq!(store.grant(&bob.key).await?, None);
    put(store, &bob).await?;
    let found = store.grant(&ann.key).await?.expect("a grant");
    assert_eq!(
        (&found.record, found.version, found.remaining_lease),
        (&ann, version, Duration::ZERO)
    );
    assert!(!found.is_lease_open);
    let all = store.grants_of(&tenant("acme")).await?;
    assert_eq!(all.into_iter().map(|grant| grant.record).collect::<Vec<_>>(), [ann.clone(), bob]);
    assert_eq!(store.grants_of(&tenant("zoo")).await?, []);
    let removed = store.remove_grant(&ann.key).await?.expect("the grant");
    assert_eq!((&removed.record, removed.version), (&ann, version));
    assert_eq!(store.remove_grant(&ann.key).await?, None);
    Ok(())
}

pub async fn a_grant_is_written_over_the_expected_version_only(
    store: &dyn DurableStore,
) -> Outcome {
    let first = record("ann", 1);
    assert_eq!(store.put_grant(&first, Some(1)).await?, None, "nothing is there");
    let version = put(store, &first).await?;
    let second =
        GrantRecord { state: GrantState::Reconnect, expires_at_us: None, ..record("ann", 2) };
    assert_eq!(store.put_grant(&second, Some(version)).await?, Some(version + 1));
    assert_eq!(store.put_grant(&record("ann", 3), Some(version)).await?, None);
    assert_eq!(store.grant(&first.key).await?.map(|grant| grant.record), Some(second));
    store.remove_grant(&first.key).await?;
    assert_eq!(
        store.put_grant(&record("ann", 4), Some(version + 1)).await?,
        None,
        "a removed grant is not made again"
    );
    Ok(())
}

/// A renewal that began before a grant was removed must not end over the next one.
pub async fn a_grant_that_is_made_again_has_no_earlier_version(
    store: &dyn DurableStore,
) -> Outcome {
    let ann = record("ann", 1);
    let before = put(store, &ann).await?;
    store.remove_grant(&ann.key).await?;
    let again = record("ann", 2);
    let version = put(store, &again).await?;
    assert_ne!(version, before);
    assert!(!store.lease_grant(&ann.key, before, LONG).await?);
    store.record_grant_error(&ann.key, before, GrantError::Refused, None).await?;
    assert_eq!(store.put_grant(&record("ann", 3), Some(before)).await?, None);
    let found = store.grant(&ann.key).await?.expect("a grant");
    assert_eq!((found.record, found.version), (again, version));
    Ok(())
}

pub async fn the_error_of_a_grant_stays_until_its_next_write(store: &dyn DurableStore) -> Outcome {
    let ann = record("ann", 1);
    let version = put(store, &ann).await?;
    store.record_grant_error(&ann.key, version + 1, GrantError::Refused, None).await?;
    let key = ann.key.clone();
    let recorded = async || Ok::<_, StoreError>(store.grant(&key).await?.expect("a grant"));
    assert_eq!(recorded().await?.record.last_error, None, "of another version");
    for error in GrantError::ALL {
        store.record_grant_error(&ann.key, version, error, None).await?;
        let found = recorded().await?;
        assert_eq!((found.record.last_error, found.version), (Some(error), version));
    }
    store.put_grant(&ann, Some(version)).await?;
    assert_eq!(recorded().await?.record.last_error, None);
    store.record_grant_error(&ann.key, version + 1, GrantError::Unavailable, None).await?;
    store.put_grant(&ann, None).await?;
    assert_eq!(recorded().await?.record.last_error, None);
    let error = Some(GrantError::InvalidGrant);
    let lost = GrantRecord { state: GrantState::Reconnect, last_error: error, ..ann };
    for expected in [Some(version + 2), None] {
        store.put_grant(&lost, expected).await?;
        assert_eq!(recorded().await?.record, lost, "the state and its reason are one write");
    }
    Ok(())
}

pub async fn only_one_of_many_gets_the_lease_of_a_grant(store: &dyn DurableStore) -> Outcome {
    let grant = record("ann", 1);
    let version = put(store, &grant).await?;
    let tries = join_all((0..8).map(|_| store.lease_grant(&grant.key, version, LONG))).await;
    let got = tries.into_iter().collect::<Result<Vec<_>, _>>()?;
    assert_eq!(got.iter().filter(|got| **got).count(), 1);
    let found = store.grant(&grant.key).await?.expect("a grant");
    assert!(found.remaining_lease > LONG / 2 && found.version == version && found.is_lease_open);
    let next = version + 1;
    assert_eq!(store.put_grant(&record("ann", 2), Some(version)).await?, Some(next));
    assert!(!store.lease_grant(&grant.key, version, LONG).await?, "of an old version");
    assert!(store.lease_grant(&grant.key, next, Duration::ZERO).await?, "a write ends the lease");
    assert!(store.lease_grant(&grant.key, next, LONG).await?, "a lease of no time is over");
    let failed =
        |ends_in| store.record_grant_error(&grant.key, next, GrantError::Unavailable, ends_in);
    failed(None).await?;
    failed(Some(2 * LONG)).await?;
    assert!(!store.lease_grant(&grant.key, next, LONG).await?, "an error does not end a lease");
    failed(Some(Duration::ZERO)).await?;
    assert!(store.lease_grant(&grant.key, next, LONG).await?, "its owner has ended it");
    Ok(())
}

/// The clock may be set back after a lease was taken.
pub async fn a_lease_of_a_grant_that_ends_too_late_is_over(store: &dyn DurableStore) -> Outcome {
    let grant = record("ann", 1);
    let version = put(store, &grant).await?;
    assert!(store.lease_grant(&grant.key, version, 10 * LONG).await?);
    let found = store.grant(&grant.key).await?.expect("a grant");
    assert!(found.is_leased_for(10 * LONG) && !found.is_leased_for(LONG));
    assert!(store.lease_grant(&grant.key, version, LONG).await?);
    assert!(!store.lease_grant(&grant.key, version, LONG).await?);
    assert!(store.grant(&grant.key).await?.expect("a grant").is_leased_for(LONG));
    Ok(())
}

pub async fn connected_grants_are_found_by_age_and_grants_are_counted(
    store: &dyn DurableStore,
) -> Outcome {
    let (acme, one) = (tenant("acme"), backend("one"));
    let found = async |skip, limit| {
        let grants = store.oldest_grants(&acme, &one, skip, limit).await?.into_iter();
        Ok::<_, StoreError>(grants.map(|grant| grant.record).collect::<Vec<_>>())
    };
    assert_eq!(found(0, 9).await?, []);
    let grants = [record("ann", 1), record("max", 2), record("zoe", 3)];
    for grant in &grants {
        store.put_grant(grant, None).await?;
    }
    assert_eq!(found(0, 9).await?, grants);
    assert_eq!(found(0, 2).await?, grants[..2]);
    assert_eq!(found(2, 2).await?, grants[2..]);
    assert_eq!(found(3, 2).await?, []);
    for name in ["ann", "max", "zoe"] {
        let lost = GrantRecord { state: GrantState::Reconnect, ..record(name, 3) };
        store.put_grant(&lost, None).await?;
    }
    assert_eq!(found(0, 9).await?, []);
    assert_eq!(store.grant_counts().await?, [(GrantState::Reconnect, 3)]);
    Ok(())
}

pub async fn weak_grants_are_counted_by_tenant(store: &dyn DurableStore) -> Outcome {
    let of =
        |name: &str, state, expires_at_us| GrantRecord { state, expires_at_us, ..record(name, 1) };
    let zoo = |mut grant: GrantRecord| {
        grant.key.tenant = tenant("zoo");
        grant
    };
    for grant in [
        of("ann", GrantState::Reconnect, Some(1)),
        of("bob", GrantState::Connected, Some(1)),
        of("cat", GrantState::Connected, Some(1)),
        of("dan", GrantState::Connected, Some(i64::MAX)),
        of("eve", GrantState::Connected, None),
        zoo(of("ann", GrantState::Connected, None)),
    ] {
        store.put_grant(&grant, None).await?;
    }
    let weak = WeakGrants { reconnect: 1, ended: 2 };
    assert_eq!(store.weak_grants().await?, [(tenant("acme"), weak)]);
    Ok(())
}

pub async fn grants_end_with_their_backend_and_their_tenant(store: &dyn DurableStore) -> Outcome {
    let (acme, one) = (tenant("acme"), backend("one"));
    let client = |name: &str| SecretKey { kind: SecretKind::Client, ..secret(name) };
    let (own, other) = (client("one https://as.example"), client("one2 https://as.example"));
    let made = || async {
        store.apply(AdminChange::PutTenant(&tenant_record("acme")), None).await?;
        let settings = BackendRecord {
            tenant: acme.clone(),
            backend: one.clone(),
            settings: vec![1],
            created_at_us: 1,
            updated_at_us: 1,
        };
        store.apply(AdminChange::PutBackend(&settings), None).await?;
        store.put_grant(&record("ann", 1), None).await?;
        for secret in [&secret("s"), &own, &other] {
            store.put_secret(secret, b"sealed", LONG).await?;
        }
        Ok::<_, StoreError>(())
    };
    made().await?;
    store.apply(AdminChange::DeleteBackend(&acme, &one), None).await?;
    assert_eq!(store.grants_of(&acme).await?, []);
    assert!(store.secret(&secret("s")).await?.is_some());
    assert_eq!(store.secret(&own).await?, None);
    assert!(store.secret(&other).await?.is_some(), "of another backend");
    made().await?;
    store.apply(AdminChange::DeleteTenant(&acme), None).await?;
    assert_eq!(store.grants_of(&acme).await?, []);
    assert_eq!(store.secret(&secret("s")).await?, None);
    assert_eq!(store.secret(&other).await?, None);
    Ok(())
}

pub async fn a_secret_is_taken_once_and_expires(store: &dyn DurableStore) -> Outcome {
    store.put_secret(&secret("a"), &[0, 255], LONG).await?;
    store.put_secret(&secret("a"), &[1, 255], LONG).await?;
    assert_eq!(store.secret(&secret("a")).await?, Some(vec![1, 255]));
    let other = SecretKey { kind: SecretKind::Link, ..secret("a") };
    assert_eq!(store.take_secret(&other).await?, None);
    let tries = join_all((0..8).map(|_| async { store.take_secret(&secret("a")).await })).await;
    let got = tries.into_iter().collect::<Result<Vec<_>, _>>()?;
    assert_eq!(got.iter().flatten().count(), 1);
    store.put_secret(&secret("b"), b"x", Duration::ZERO).await?;
    assert_eq!(store.secret(&secret("b")).await?, None);
    assert_eq!(store.take_secret(&secret("b")).await?, None);
    Ok(())
}

pub async fn the_first_added_secret_stays_until_it_expires(store: &dyn DurableStore) -> Outcome {
    let texts: Vec<Vec<u8>> = (0..8).map(|number| vec![number, 255]).collect();
    let key = secret("k");
    join_all(texts.iter().map(|text| store.add_secret(&key, text, LONG)))
        .await
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let first = store.secret(&key).await?.expect("a secret");
    assert!(texts.contains(&first));
    store.add_secret(&key, b"later", LONG).await?;
    assert_eq!(store.secret(&key).await?, Some(first));
    store.put_secret(&key, b"over", Duration::ZERO).await?;
    store.add_secret(&key, b"later", LONG).await?;
    assert_eq!(store.secret(&key).await?.as_deref(), Some(&b"later"[..]));
    Ok(())
}

pub async fn a_secret_is_removed_only_with_its_bytes(store: &dyn DurableStore) -> Outcome {
    store.put_secret(&secret("a"), &[1, 255], LONG).await?;
    store.put_secret(&secret("b"), &[1, 255], LONG).await?;
    store.remove_secret(&secret("a"), &[1, 0]).await?;
    let other = SecretKey { kind: SecretKind::Link, ..secret("a") };
    store.remove_secret(&other, &[1, 255]).await?;
    assert_eq!(store.secret(&secret("a")).await?, Some(vec![1, 255]));
    store.remove_secret(&secret("a"), &[1, 255]).await?;
    assert_eq!(store.secret(&secret("a")).await?, None);
    assert_eq!(store.secret(&secret("b")).await?, Some(vec![1, 255]));
    Ok(())
}

/// Writes a grant over any version. Returns the new one.
async fn put(store: &dyn DurableStore, grant: &GrantRecord) -> Result<i64, StoreError> {
    Ok(store.put_grant(grant, None).await?.expect("a write without an expected version"))
}

fn secret(name: &str) -> SecretKey {
    SecretKey { kind: SecretKind::Login, tenant: tenant("acme"), name: name.to_owned() }
}

fn record(principal: &str, number: u8) -> GrantRecord {
    let key = GrantKey {
        tenant: tenant("acme"),
        backend: backend("one"),
        principal: PrincipalId::new(principal),
    };
    GrantRecord {
        key,
        issuer: "https://as.example".to_owned(),
        sealed: vec![number, 0, 255],
        state: GrantState::Connected,
        expires_at_us: Some(1_000),
        last_error: None,
    }
}
