//! Behaviours of every [`ConfigStore`]: tenants, API keys and backends.

use futures_util::future;
use protocol::ids::{BackendId, KeyId, PrincipalId, TenantId};
use records::{AdminChange, BackendRecord, HASH_BYTES, KeyRecord, PolicyRecord, TenantRecord};

use super::{Outcome, backend, tenant};
use crate::{ConfigStore, StoreError};

pub async fn starts_empty(store: &dyn ConfigStore) -> Outcome {
    assert_eq!(store.tenants().await?, []);
    assert_eq!(store.keys().await?, []);
    assert_eq!(store.backends().await?, []);
    Ok(())
}

pub async fn lists_tenants_by_name(store: &dyn ConfigStore) -> Outcome {
    for name in ["mango", "apple", "zebra", "a-b", "a0"] {
        store.apply(AdminChange::PutTenant(&tenant_record(name)), None).await?;
    }
    let names: Vec<String> =
        store.tenants().await?.iter().map(|record| record.tenant.as_str().to_owned()).collect();
    assert_eq!(names, ["a-b", "a0", "apple", "mango", "zebra"]);
    Ok(())
}

pub async fn a_replaced_tenant_keeps_its_creation_time(store: &dyn ConfigStore) -> Outcome {
    let first = tenant_record("acme");
    store.apply(AdminChange::PutTenant(&first), None).await?;
    let second = TenantRecord {
        settings: "{\"weight\":7}".into(),
        created_at_us: 900,
        updated_at_us: 900,
        ..first.clone()
    };
    store.apply(AdminChange::PutTenant(&second), None).await?;
    assert_eq!(
        store.tenants().await?,
        [TenantRecord { created_at_us: first.created_at_us, ..second }]
    );
    Ok(())
}

pub async fn a_tenant_is_added_only_if_it_does_not_exist(store: &dyn ConfigStore) -> Outcome {
    let first = tenant_record("acme");
    assert!(store.apply(AdminChange::AddTenant(&first), None).await?);
    assert!(
        !store
            .apply(
                AdminChange::AddTenant(&TenantRecord {
                    settings: "{\"weight\":7}".into(),
                    ..first.clone()
                }),
                None
            )
            .await?
    );
    assert_eq!(store.tenants().await?, [first]);
    Ok(())
}

pub async fn settings_are_kept_byte_for_byte(store: &dyn ConfigStore) -> Outcome {
    let text = "{\"a\":\"\\u0000 ' \\\" é 漢 😀\",\n\t\"b\":1e400}";
    store
        .apply(
            AdminChange::PutTenant(&TenantRecord {
                settings: text.into(),
                ..tenant_record("acme")
            }),
            None,
        )
        .await?;
    assert_eq!(store.tenants().await?[0].settings, text);
    let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    store
        .apply(
            AdminChange::PutBackend(&BackendRecord {
                settings: bytes.clone(),
                ..backend_record("acme", "one")
            }),
            None,
        )
        .await?;
    assert_eq!(store.backends().await?[0].settings, bytes);
    Ok(())
}

pub async fn a_removal_returns_whether_the_tenant_existed(store: &dyn ConfigStore) -> Outcome {
    store.apply(AdminChange::PutTenant(&tenant_record("acme")), None).await?;
    assert!(store.apply(AdminChange::DeleteTenant(&tenant("acme")), None).await?);
    assert!(!store.apply(AdminChange::DeleteTenant(&tenant("acme")), None).await?);
    assert_eq!(store.tenants().await?, []);
    Ok(())
}

pub async fn keys_and_backends_are_removed_with_their_tenant(store: &dyn ConfigStore) -> Outcome {
    fill(store).await?;
    assert!(store.apply(AdminChange::DeleteTenant(&tenant("acme")), None).await?);
    assert!(store.keys().await?.iter().all(|record| record.tenant == tenant("umbrella")));
    assert!(store.backends().await?.iter().all(|record| record.tenant == tenant("umbrella")));
    store.apply(AdminChange::PutTenant(&tenant_record("acme")), None).await?;
    assert_eq!(
        store.keys_of(&tenant("acme")).await?,
        [],
        "a new tenant of the same name starts with nothing"
    );
    Ok(())
}

pub async fn keys_are_listed_for_one_tenant_only(store: &dyn ConfigStore) -> Outcome {
    fill(store).await?;
    let (acme, all) = (store.keys_of(&tenant("acme")).await?, store.keys().await?);
    assert_eq!(acme, [key_record("acme", "k1"), key_record("acme", "k2")]);
    assert_eq!(
        all,
        [key_record("acme", "k1"), key_record("acme", "k2"), key_record("umbrella", "k3")]
    );
    assert_eq!(store.keys_of(&tenant("nobody")).await?, []);
    Ok(())
}

pub async fn a_repeated_key_id_is_refused(store: &dyn ConfigStore) -> Outcome {
    fill(store).await?;
    for owner in ["acme", "umbrella"] {
        let again = store
            .apply(
                AdminChange::PutKey(&KeyRecord {
                    hash: vec![9; HASH_BYTES],
                    ..key_record(owner, "k1")
                }),
                None,
            )
            .await;
        assert!(matches!(again, Err(StoreError::Exists { .. })), "{again:?}");
    }
    assert_eq!(
        store.keys_of(&tenant("acme")).await?[0],
        key_record("acme", "k1"),
        "the first one is untouched"
    );
    Ok(())
}

pub async fn a_key_is_removed_only_for_its_tenant(store: &dyn ConfigStore) -> Outcome {
    fill(store).await?;
    let k1 = KeyId::new("k1");
    assert!(
        !store.apply(AdminChange::DeleteKey(&tenant("umbrella"), &k1), None).await?,
        "another tenant's key looks like an absent one"
    );
    assert!(store.apply(AdminChange::DeleteKey(&tenant("acme"), &k1), None).await?);
    assert!(!store.apply(AdminChange::DeleteKey(&tenant("acme"), &k1), None).await?);
    assert_eq!(store.keys_of(&tenant("acme")).await?, [key_record("acme", "k2")]);
    Ok(())
}

pub async fn a_key_or_backend_without_a_tenant_is_refused(store: &dyn ConfigStore) -> Outcome {
    let missing = StoreError::UnknownTenant { tenant: tenant("acme") };
    assert_eq!(
        store.apply(AdminChange::PutKey(&key_record("acme", "k1")), None).await,
        Err(missing.clone())
    );
    assert_eq!(
        store.apply(AdminChange::PutBackend(&backend_record("acme", "one")), None).await,
        Err(missing)
    );
    starts_empty(store).await
}

pub async fn backends_are_listed_by_tenant_and_name(store: &dyn ConfigStore) -> Outcome {
    fill(store).await?;
    let expected = [
        backend_record("acme", "one"),
        backend_record("acme", "two"),
        backend_record("umbrella", "one"),
    ];
    assert_eq!(store.backends().await?, expected);
    Ok(())
}

pub async fn a_replaced_backend_keeps_its_creation_time(store: &dyn ConfigStore) -> Outcome {
    fill(store).await?;
    let changed = BackendRecord {
        settings: vec![1, 2],
        created_at_us: 900,
        updated_at_us: 900,
        ..backend_record("acme", "one")
    };
    store.apply(AdminChange::PutBackend(&changed), None).await?;
    let stored = store.backends().await?;
    assert_eq!(
        stored[0],
        BackendRecord { created_at_us: backend_record("acme", "one").created_at_us, ..changed }
    );
    assert_eq!(stored[2], backend_record("umbrella", "one"));
    Ok(())
}

pub async fn two_tenants_may_have_a_backend_of_the_same_name(store: &dyn ConfigStore) -> Outcome {
    fill(store).await?;
    let one = BackendId::parse("one").expect("a legal name");
    assert!(store.apply(AdminChange::DeleteBackend(&tenant("acme"), &one), None).await?);
    assert!(!store.apply(AdminChange::DeleteBackend(&tenant("acme"), &one), None).await?);
    assert_eq!(
        store.backends().await?,
        [backend_record("acme", "two"), backend_record("umbrella", "one")]
    );
    Ok(())
}

pub async fn concurrent_writes_are_all_stored(store: &dyn ConfigStore) -> Outcome {
    let [acme, umbrella, initech] = ["acme", "umbrella", "initech"].map(tenant_record);
    let (first, second, third, read) = tokio::join!(
        store.apply(AdminChange::PutTenant(&acme), None),
        store.apply(AdminChange::PutTenant(&umbrella), None),
        store.apply(AdminChange::PutTenant(&initech), None),
        store.tenants()
    );
    first.and(second).and(third).and(read)?;
    assert_eq!(store.tenants().await?.len(), 3);
    Ok(())
}

pub async fn every_change_increases_the_version(store: &dyn ConfigStore) -> Outcome {
    let mut versions = vec![store.config_version().await?];
    store.apply(AdminChange::PutTenant(&tenant_record("acme")), None).await?;
    versions.push(store.config_version().await?);
    store.apply(AdminChange::PutTenant(&tenant_record("acme")), None).await?;
    versions.push(store.config_version().await?);
    store.apply(AdminChange::PutKey(&key_record("acme", "k1")), None).await?;
    versions.push(store.config_version().await?);
    store.apply(AdminChange::PutBackend(&backend_record("acme", "one")), None).await?;
    versions.push(store.config_version().await?);
    store.apply(AdminChange::PutBackend(&backend_record("acme", "one")), None).await?;
    versions.push(store.config_version().await?);
    assert!(store.apply(AdminChange::DeleteKey(&tenant("acme"), &KeyId::new("k1")), None).await?);
    versions.push(store.config_version().await?);
    assert!(
        store
            .apply(
                AdminChange::DeleteBackend(
                    &tenant("acme"),
                    &BackendId::parse("one").expect("a legal name")
                ),
                None
            )
            .await?
    );
    versions.push(store.config_version().await?);
    assert!(store.apply(AdminChange::DeleteTenant(&tenant("acme")), None).await?);
    versions.push(store.config_version().await?);
    assert!(versions.is_sorted_by(|before, after| before < after), "{versions:?}");
    Ok(())
}

pub async fn the_version_stays_while_nothing_changes(store: &dyn ConfigStore) -> Outcome {
    fill(store).await?;
    let version = store.config_version().await?;
    let refused = store.apply(AdminChange::PutKey(&key_record("nobody", "k9")), None).await;
    assert!(matches!(refused, Err(StoreError::UnknownTenant { .. })), "{refused:?}");
    store.tenants().await?;
    assert_eq!(store.config_version().await?, version);
    Ok(())
}

pub async fn a_change_that_was_checked_at_an_earlier_version_is_refused(
    store: &dyn ConfigStore,
) -> Outcome {
    fill(store).await?;
    let (acme, one) = (tenant("acme"), backend("one"));
    let breaker = AdminChange::HoldBreaker(&acme, &one);
    assert!(store.apply(breaker, None).await?);
    let version = store.config_version().await?;
    let (initech, changed) = (tenant_record("initech"), tenant_record("umbrella"));
    assert!(store.apply_at(Some(version), AdminChange::PutTenant(&changed), None).await?);
    let version_now = store.config_version().await?;
    assert!(version_now > version);
    let (key, known_key) = (key_record("acme", "k9"), KeyId::new("k1"));
    let (new_backend, policy) = (backend_record("acme", "three"), policy_record("acme"));
    for change in [
        AdminChange::PutTenant(&initech),
        AdminChange::AddTenant(&initech),
        AdminChange::DeleteTenant(&acme),
        AdminChange::PutKey(&key),
        AdminChange::DeleteKey(&acme, &known_key),
        AdminChange::PutBackend(&new_backend),
        AdminChange::DeleteBackend(&acme, &one),
        AdminChange::PutPolicy(&policy),
        AdminChange::ReleaseBreaker(&acme, &one),
    ] {
        let refused = store.apply_at(Some(version), change, None).await;
        assert_eq!(refused, Err(StoreError::Outdated), "{change:?}");
    }
    assert_eq!(store.config_version().await?, version_now, "nothing was changed");
    assert_eq!(store.tenants().await?.len(), 2);
    assert!(store.apply_at(Some(version_now), AdminChange::PutTenant(&initech), None).await?);
    Ok(())
}

pub async fn of_changes_that_were_checked_at_one_version_one_is_made(
    store: &dyn ConfigStore,
) -> Outcome {
    fill(store).await?;
    for round in 0..10 {
        let version = store.config_version().await?;
        let records: [TenantRecord; 4] =
            std::array::from_fn(|number| tenant_record(&format!("t{round}-{number}")));
        let made = future::join_all(
            records
                .iter()
                .map(|record| store.apply_at(Some(version), AdminChange::PutTenant(record), None)),
        );
        let made = made.await;
        let is_refused = |made: &&Result<bool, StoreError>| **made == Err(StoreError::Outdated);
        assert_eq!(made.iter().filter(|made| **made == Ok(true)).count(), 1, "{made:?}");
        assert_eq!(made.iter().filter(is_refused).count(), 3, "{made:?}");
    }
    assert_eq!(store.tenants().await?.len(), 2 + 10);
    Ok(())
}

pub async fn a_breaker_is_held_open_until_its_release_or_the_removal_of_its_backend(
    store: &dyn ConfigStore,
) -> Outcome {
    fill(store).await?;
    let [one, two, declared] =
        ["one", "two", "declared"].map(|name| BackendId::parse(name).expect("a legal name"));
    let (acme, umbrella) = (tenant("acme"), tenant("umbrella"));
    let mut versions = vec![store.config_version().await?];
    for (owner, backend) in [(&umbrella, &one), (&acme, &two), (&acme, &one), (&acme, &declared)] {
        assert!(store.apply(AdminChange::HoldBreaker(owner, backend), None).await?);
        assert!(!store.apply(AdminChange::HoldBreaker(owner, backend), None).await?, "it is held");
        versions.push(store.config_version().await?);
    }
    let of = |owner: &TenantId, backend: &BackendId| (owner.clone(), backend.clone());
    let all = [of(&acme, &declared), of(&acme, &one), of(&acme, &two), of(&umbrella, &one)];
    assert_eq!(store.held_breakers().await?, all);
    store.apply(AdminChange::PutBackend(&backend_record("acme", "one")), None).await?;
    assert_eq!(store.held_breakers().await?, all, "a new body changes nothing");
    assert!(store.apply(AdminChange::ReleaseBreaker(&acme, &one), None).await?);
    assert!(!store.apply(AdminChange::ReleaseBreaker(&acme, &one), None).await?);
    versions.push(store.config_version().await?);
    assert!(store.apply(AdminChange::DeleteBackend(&acme, &two), None).await?);
    assert_eq!(store.held_breakers().await?, [of(&acme, &declared), of(&umbrella, &one)]);
    store.apply(AdminChange::PutBackend(&backend_record("acme", "declared")), None).await?;
    assert_eq!(
        store.held_breakers().await?,
        [of(&umbrella, &one)],
        "a backend that begins is not held"
    );
    assert!(store.apply(AdminChange::HoldBreaker(&acme, &one), None).await?);
    assert!(store.apply(AdminChange::DeleteTenant(&acme), None).await?);
    assert_eq!(store.held_breakers().await?, [of(&umbrella, &one)]);
    assert!(versions.is_sorted_by(|before, after| before < after), "{versions:?}");
    Ok(())
}

pub async fn refuses_after_close(store: &dyn ConfigStore) -> Outcome {
    fill(store).await?;
    store.close().await;
    assert!(matches!(store.tenants().await, Err(StoreError::Unavailable { .. })));
    assert!(matches!(
        store.apply(AdminChange::PutTenant(&tenant_record("late")), None).await,
        Err(StoreError::Unavailable { .. })
    ));
    store.close().await;
    Ok(())
}

/// Stores two tenants: acme with two keys and two backends, umbrella with one of each.
pub async fn fill(store: &dyn ConfigStore) -> Outcome {
    store.apply(AdminChange::PutTenant(&tenant_record("umbrella")), None).await?;
    store.apply(AdminChange::PutTenant(&tenant_record("acme")), None).await?;
    for (owner, key) in [("acme", "k2"), ("umbrella", "k3"), ("acme", "k1")] {
        store.apply(AdminChange::PutKey(&key_record(owner, key)), None).await?;
    }
    for (owner, backend) in [("umbrella", "one"), ("acme", "two"), ("acme", "one")] {
        store.apply(AdminChange::PutBackend(&backend_record(owner, backend)), None).await?;
    }
    Ok(())
}

pub async fn a_replaced_policy_keeps_its_creation_time(store: &dyn ConfigStore) -> Outcome {
    for tenant in ["zoo", "acme"] {
        store.apply(AdminChange::PutTenant(&tenant_record(tenant)), None).await?;
    }
    let (first, other) = (policy_record("acme"), policy_record("zoo"));
    assert!(store.apply(AdminChange::PutPolicy(&other), None).await?);
    assert!(store.apply(AdminChange::PutPolicy(&first), None).await?);
    let second = PolicyRecord {
        document: "{\"default\":\"deny\"}".into(),
        created_at_us: 900,
        updated_at_us: 900,
        ..first.clone()
    };
    assert!(store.apply(AdminChange::PutPolicy(&second), None).await?);
    let kept = PolicyRecord { created_at_us: first.created_at_us, ..second };
    assert_eq!(store.policies().await?, [kept, other]);
    Ok(())
}

pub async fn a_policy_is_removed_once_and_with_its_tenant(store: &dyn ConfigStore) -> Outcome {
    for tenant in ["acme", "zoo"] {
        store.apply(AdminChange::PutTenant(&tenant_record(tenant)), None).await?;
        store.apply(AdminChange::PutPolicy(&policy_record(tenant)), None).await?;
    }
    let acme = tenant("acme");
    assert!(store.apply(AdminChange::DeletePolicy(&acme), None).await?);
    assert!(!store.apply(AdminChange::DeletePolicy(&acme), None).await?);
    assert_eq!(store.policies().await?, [policy_record("zoo")]);
    store.apply(AdminChange::DeleteTenant(&tenant("zoo")), None).await?;
    assert_eq!(store.policies().await?, []);
    Ok(())
}

pub async fn a_policy_of_an_unknown_tenant_is_refused(store: &dyn ConfigStore) -> Outcome {
    let refused = store.apply(AdminChange::PutPolicy(&policy_record("ghost")), None).await;
    assert!(matches!(refused, Err(StoreError::UnknownTenant { .. })), "{refused:?}");
    Ok(())
}

pub async fn counts_changes_of_policies(store: &dyn ConfigStore) -> Outcome {
    store.apply(AdminChange::PutTenant(&tenant_record("acme")), None).await?;
    let mut before = store.config_version().await?;
    let (first, acme) = (policy_record("acme"), tenant("acme"));
    let second = PolicyRecord { document: "{\"default\":\"deny\"}".into(), ..first.clone() };
    for change in [
        AdminChange::PutPolicy(&first),
        AdminChange::PutPolicy(&second),
        AdminChange::DeletePolicy(&acme),
    ] {
        store.apply(change, None).await?;
        let now = store.config_version().await?;
        assert!(now > before, "{} is not counted", change.name());
        before = now;
    }
    Ok(())
}

fn policy_record(name: &str) -> PolicyRecord {
    PolicyRecord {
        tenant: tenant(name),
        document: format!("{{\"rules\":[],\"name\":\"{name}\"}}"),
        created_at_us: 100,
        updated_at_us: 200,
    }
}

pub(super) fn tenant_record(name: &str) -> TenantRecord {
    TenantRecord {
        tenant: tenant(name),
        settings: "{}".into(),
        created_at_us: 100,
        updated_at_us: 200,
    }
}

pub(super) fn key_record(owner: &str, key: &str) -> KeyRecord {
    KeyRecord {
        key: KeyId::new(key),
        tenant: tenant(owner),
        principal: PrincipalId::new(format!("{owner}-person")),
        name: format!("key {key}"),
        hash: vec![7; HASH_BYTES],
        attributes: r#"{"groups":["dev"]}"#.into(),
        created_at_us: 300,
    }
}

pub(super) fn backend_record(owner: &str, backend: &str) -> BackendRecord {
    BackendRecord {
        tenant: tenant(owner),
        backend: BackendId::parse(backend).expect("a legal name"),
        settings: format!("sealed for {owner}/{backend}").into_bytes(),
        created_at_us: 400,
        updated_at_us: 500,
    }
}
