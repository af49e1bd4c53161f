//! Tests of changes that their caller abandons, that are refused, or whose outcome is unknown.

use super::*;

#[tokio::test]
async fn a_change_completes_even_if_its_caller_disconnects() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(folder.path(), "").await;
    let mut change = Box::pin(rig.put_tenant("acme", TenantSpec::default()));
    assert!(futures_util::poll!(&mut change).is_pending());
    drop(change);
    // Changes run in order: when the next one is done, the abandoned one is done too.
    rig.put_tenant("umbrella", TenantSpec::default()).await.unwrap();
    assert!(rig.control.tenant(&tenant("acme")).is_ok());
}

#[tokio::test]
async fn a_refused_write_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(folder.path(), "").await;
    rig.control.close().await;
    let refusal = rig.put_tenant("acme", TenantSpec::default()).await.err().unwrap();
    assert!(matches!(refusal, ControlError::Store(StoreError::Unavailable { .. })), "{refusal}");
    assert!(rig.control.tenant(&tenant("acme")).is_err());
    assert!(!rig.keyring.is_enabled(&tenant("acme")));
}

#[tokio::test]
async fn a_declared_entry_is_refused_as_such_whatever_the_conditions_are() {
    let folder = tempfile::tempdir().unwrap();
    let body = "{transport: {type: http, url: 'http://127.0.0.1:9/'}}";
    let yaml = format!("tenants: {{acme: {{policy: {{}}}}}}\nbackends: {{mine: {body}}}");
    let rig = Rig::start(folder.path(), &yaml).await;
    let (control, author) = (&rig.control, Author::default);
    let (acme, default, mine) = (tenant("acme"), tenant("default"), backend("mine"));
    let list = |tag: &str| Some(vec![tag.to_owned()]);
    let new = || Preconditions { matching: None, none_matching: list("*") };
    let stale = || Preconditions { matching: list("\"stale\""), none_matching: None };
    let (spec, policy) = (TenantSpec::default(), rules::access::PolicyDocument::default());
    let refusals = [
        control.put_tenant(acme.clone(), spec, new(), author()).await.err(),
        control
            .put_backend(
                default.clone(),
                mine.clone(),
                nowhere(),
                FirstAttempt::InBackground,
                new(),
                author(),
            )
            .await
            .err(),
        control.put_policy(acme.clone(), policy, new(), author()).await.err(),
        control.delete_tenant(acme.clone(), stale(), author()).await.err(),
        control.delete_backend(default, mine, stale(), author()).await.err(),
        control.delete_policy(acme, stale(), author()).await.err(),
    ];
    for refusal in refusals {
        assert!(matches!(refusal, Some(ControlError::Declared { .. })), "{refusal:?}");
    }
}

#[tokio::test]
async fn a_removal_on_a_condition_finds_no_entry_to_compare() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(folder.path(), "").await;
    let (control, author, acme) = (&rig.control, Author::default, tenant("acme"));
    let read = || Preconditions { matching: Some(vec!["\"read\"".into()]), none_matching: None };
    let refusals = [
        control.delete_tenant(acme, read(), author()).await.unwrap_err(),
        control
            .delete_backend(tenant("default"), backend("a"), read(), author())
            .await
            .unwrap_err(),
        control.delete_policy(tenant("default"), read(), author()).await.unwrap_err(),
    ];
    for refusal in refusals {
        assert!(matches!(refusal, ControlError::NotFound { .. }), "{refusal}");
    }
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
    rig.put_tenant("acme", weight(1)).await.unwrap();
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
