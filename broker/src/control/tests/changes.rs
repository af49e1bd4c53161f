//! Tests of changes that their caller abandons, that are refused, or whose outcome is unknown.

use super::*;

#[tokio::test]
async fn a_change_completes_even_if_its_caller_disconnects() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(folder.path(), "").await;
    let mut change = Box::pin(rig.control.put_tenant(
        tenant("acme"),
        TenantSpec::default(),
        Preconditions::default(),
        Author::default(),
    ));
    assert!(futures_util::poll!(&mut change).is_pending());
    drop(change);
    // Changes run in order: when the next one is done, the abandoned one is done too.
    rig.control
        .put_tenant(
            tenant("umbrella"),
            TenantSpec::default(),
            Preconditions::default(),
            Author::default(),
        )
        .await
        .unwrap();
    assert!(rig.control.tenant(&tenant("acme")).is_ok());
}

#[tokio::test]
async fn a_refused_write_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(folder.path(), "").await;
    rig.control.close().await;
    let refusal = rig
        .control
        .put_tenant(
            tenant("acme"),
            TenantSpec::default(),
            Preconditions::default(),
            Author::default(),
        )
        .await
        .err()
        .unwrap();
    assert!(matches!(refusal, ControlError::Store(StoreError::Unavailable { .. })), "{refusal}");
    assert!(rig.control.tenant(&tenant("acme")).is_err());
    assert!(!rig.keyring.is_enabled(&tenant("acme")));
}

/// Returns a control on a store whose answers to changes can be lost.
async fn on_meddled(folder: &Path) -> (Arc<Meddled>, Rig) {
    let store = Meddled::start("sqlite").await;
    let hot = Arc::new(storage::hot::MemoryHotStore::new());
    let stores = Stores { durable: store.clone(), events: None, hot };
    (store, Rig::on(stores, folder, "").await.expect("starts"))
}

/// Returns the error of a commit that may have been made.
fn lost_answer() -> StoreError {
    let cause = StoreError::Busy { detail: "the commit takes long".into() };
    StoreError::OutcomeUnknown(Box::new(cause))
}

#[tokio::test]
async fn a_removal_whose_answer_is_lost_is_in_force_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (store, rig) = on_meddled(folder.path()).await;
    let (author, default) = (Author::default, tenant("default"));
    let key = rig.control.create_key(default.clone(), NewKey::default(), author()).await.unwrap();
    let wanted =
        NewOperator { name: "ann".into(), role: "admin".into(), tenants: None, backends: None };
    let operator = rig.control.create_operator(wanted, author()).await.unwrap();
    assert!(rig.control.operator_of_token(&operator.token).await.is_some());
    store.on_apply(|_| Verdict::LoseAnswer(lost_answer()));
    let id = KeyId::new(key.info.id.clone());
    let refusal = rig.control.delete_key(default.clone(), id.clone(), author()).await.unwrap_err();
    assert!(matches!(refusal, ControlError::Store(StoreError::OutcomeUnknown(_))), "{refusal}");
    assert_eq!(rig.keyring.verify(&key.key), None, "the row is gone, so the key is too");
    rig.control.delete_operator(operator.info.id.clone(), author()).await.unwrap_err();
    assert!(rig.control.operator_of_token(&operator.token).await.is_none());
    store.on_apply(|_| Verdict::Pass);
    let repeated = rig.control.delete_key(default, id, author()).await.unwrap_err();
    assert!(matches!(repeated, ControlError::NotFound { .. }), "{repeated}");
}

#[tokio::test]
async fn a_removal_before_an_outage_is_in_force_when_the_store_answers() {
    let folder = tempfile::tempdir().unwrap();
    let (store, rig) = on_meddled(folder.path()).await;
    rig.control.start_store_sync();
    let (author, default) = (Author::default, tenant("default"));
    let key = rig.control.create_key(default.clone(), NewKey::default(), author()).await.unwrap();
    // After this error, the broker does not ask the store for a moment.
    let gone = StoreError::Unavailable { detail: "the connection is lost".into() };
    store
        .on_apply(move |_| Verdict::LoseAnswer(StoreError::OutcomeUnknown(Box::new(gone.clone()))));
    let id = KeyId::new(key.info.id.clone());
    rig.control.delete_key(default, id, author()).await.unwrap_err();
    testkit::eventually("the removal", async || {
        rig.keyring.verify(&key.key).map_or(Ok(()), |_| Err("the key is accepted"))
    })
    .await;
}

#[tokio::test]
async fn a_change_that_was_not_made_leaves_everything_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let (store, rig) = on_meddled(folder.path()).await;
    let (author, default) = (Author::default, tenant("default"));
    let key = rig.control.create_key(default.clone(), NewKey::default(), author()).await.unwrap();
    store.on_apply(|_| Verdict::Fail(lost_answer()));
    let id = KeyId::new(key.info.id);
    rig.control.delete_key(default.clone(), id.clone(), author()).await.unwrap_err();
    assert!(rig.keyring.verify(&key.key).is_some());
    store.on_apply(|_| Verdict::Pass);
    rig.control.delete_key(default, id, author()).await.unwrap();
    assert_eq!(rig.keyring.verify(&key.key), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entity_tag_matches_the_settings_in_the_same_response() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(folder.path(), "").await;
    let weight = |weight| TenantSpec { weight, ..TenantSpec::default() };
    rig.control
        .put_tenant(tenant("acme"), weight(1), Preconditions::default(), Author::default())
        .await
        .unwrap();
    let control = Arc::clone(&rig.control);
    let changing = tokio::spawn(async move {
        for round in 0..60 {
            control
                .put_tenant(
                    tenant("acme"),
                    weight(1 + round % 2),
                    Preconditions::default(),
                    Author::default(),
                )
                .await
                .unwrap();
        }
    });
    let mut tags = std::collections::BTreeMap::new();
    while !changing.is_finished() {
        let shown = rig.control.tenant(&tenant("acme")).unwrap();
        let known = tags.entry(shown.view.weight).or_insert_with(|| shown.tag.clone());
        assert_eq!(*known, shown.tag, "of weight {}", shown.view.weight);
        tokio::task::yield_now().await;
    }
    changing.await.unwrap();
    assert_eq!(tags.len(), 2);
    rig.stop().await;
}
