//! Tests of API keys.

use storage::GrantStore as _;

use super::*;

#[tokio::test]
async fn the_life_of_a_key_begins_by_the_clock_of_the_store() {
    let (folder, durable) = (tempfile::tempdir().unwrap(), Meddled::start("sqlite").await);
    let hot = Arc::new(storage::hot::MemoryHotStore::new());
    let stores = Stores { durable: durable.clone(), events: None, hot };
    let rig = Rig::on(stores, folder.path(), "").await.unwrap();
    let (life, late) = (Duration::from_secs(1_800), Duration::from_secs(3_600));
    durable.set_clock_ahead(late); // the clock of this replica is late
    let before = durable.clock_us().await.unwrap();
    let wanted = NewKey { expires_in: Some(life), ..NewKey::default() };
    let shown = rig.create_key("default", wanted).await.unwrap();
    let expires_at: jiff::Timestamp = shown.info.expires_at.unwrap().parse().unwrap();
    assert!(expires_at.as_microsecond() >= before + i64::try_from(life.as_micros()).unwrap());
}

#[tokio::test]
async fn keys_of_a_disabled_tenant_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(folder.path(), "").await;
    rig.put_tenant("acme", TenantSpec::default()).await.unwrap();
    let key = rig.create_key("acme", NewKey::default()).await.unwrap().key;
    rig.put_tenant("acme", TenantSpec { enabled: false, ..TenantSpec::default() }).await.unwrap();
    assert_eq!(rig.keyring.verify(&key), None);
    rig.put_tenant("acme", TenantSpec::default()).await.unwrap();
    assert!(rig.keyring.verify(&key).is_some());
    rig.delete_tenant("acme").await.unwrap();
    assert_eq!(rig.keyring.verify(&key), None);
    rig.put_tenant("acme", TenantSpec::default()).await.unwrap();
    assert_eq!(
        rig.control.keys_of(&tenant("acme")).await.unwrap(),
        [],
        "a new tenant of that name starts with nothing"
    );
}

#[tokio::test]
async fn a_key_of_another_tenant_is_reported_as_absent() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(folder.path(), "").await;
    rig.put_tenant("acme", TenantSpec::default()).await.unwrap();
    let key = rig.create_key("acme", NewKey::default()).await.unwrap();
    let foreign =
        rig.delete_key("default", KeyId::new(key.info.id.clone())).await.unwrap_err().to_string();
    let absent =
        rig.delete_key("default", KeyId::new("nokeyatall00")).await.unwrap_err().to_string();
    assert_eq!(foreign.replace(&key.info.id, "nokeyatall00"), absent);
    assert!(rig.keyring.verify(&key.key).is_some());
    rig.delete_key("acme", KeyId::new(key.info.id)).await.unwrap();
    assert_eq!(rig.keyring.verify(&key.key), None);
}

#[tokio::test]
async fn labels_of_keys_are_one_short_line() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(folder.path(), "").await;
    for text in ["", "two\nlines", &"x".repeat(129)] {
        let wanted = NewKey { name: None, principal: Some(text.into()), ..NewKey::default() };
        let refusal = rig.create_key("default", wanted).await.err().unwrap();
        assert!(
            matches!(&refusal, ControlError::Invalid(fault) if fault.path == "principal"),
            "{refusal}"
        );
    }
}

#[tokio::test]
async fn s11_key_labels_with_hidden_characters_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(folder.path(), "").await;
    for text in ["a\u{202e}b", "a\u{200b}", "a\u{7f}", " a", "a ", "a\u{a0}"] {
        for (field, name, principal) in
            [("name", Some(text.into()), None), ("principal", None, Some(text.into()))]
        {
            let refusal = rig
                .create_key("default", NewKey { name, principal, ..NewKey::default() })
                .await
                .err()
                .unwrap();
            assert!(
                matches!(&refusal, ControlError::Invalid(fault) if fault.path == field),
                "{text:?}: {refusal}"
            );
        }
    }
    for principal in ["Anonymous", "ANONYMOUS", "HTTPS://login.example.com ann"] {
        let wanted = NewKey { name: None, principal: Some(principal.into()), ..NewKey::default() };
        let refusal = rig.create_key("default", wanted).await.err().unwrap();
        assert!(
            matches!(&refusal, ControlError::Reserved(fault) if fault.path == "principal"),
            "{principal}: {refusal}"
        );
    }
}
