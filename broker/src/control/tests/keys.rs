//! Tests of API keys.

use super::*;

#[tokio::test]
async fn keys_of_a_disabled_tenant_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(folder.path(), "").await;
    rig.control
        .put_tenant(
            tenant("acme"),
            TenantSpec::default(),
            Preconditions::default(),
            Author::default(),
        )
        .await
        .unwrap();
    let key = rig
        .control
        .create_key(tenant("acme"), NewKey::default(), Author::default())
        .await
        .unwrap()
        .key;
    rig.control
        .put_tenant(
            tenant("acme"),
            TenantSpec { enabled: false, ..TenantSpec::default() },
            Preconditions::default(),
            Author::default(),
        )
        .await
        .unwrap();
    assert_eq!(rig.keyring.verify(&key), None);
    rig.control
        .put_tenant(
            tenant("acme"),
            TenantSpec::default(),
            Preconditions::default(),
            Author::default(),
        )
        .await
        .unwrap();
    assert!(rig.keyring.verify(&key).is_some());
    rig.control
        .delete_tenant(tenant("acme"), Preconditions::default(), Author::default())
        .await
        .unwrap();
    assert_eq!(rig.keyring.verify(&key), None);
    rig.control
        .put_tenant(
            tenant("acme"),
            TenantSpec::default(),
            Preconditions::default(),
            Author::default(),
        )
        .await
        .unwrap();
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
    rig.control
        .put_tenant(
            tenant("acme"),
            TenantSpec::default(),
            Preconditions::default(),
            Author::default(),
        )
        .await
        .unwrap();
    let key =
        rig.control.create_key(tenant("acme"), NewKey::default(), Author::default()).await.unwrap();
    let foreign = rig
        .control
        .delete_key(tenant("default"), KeyId::new(key.info.id.clone()), Author::default())
        .await
        .unwrap_err()
        .to_string();
    let absent = rig
        .control
        .delete_key(tenant("default"), KeyId::new("nokeyatall00"), Author::default())
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(foreign.replace(&key.info.id, "nokeyatall00"), absent);
    assert!(rig.keyring.verify(&key.key).is_some());
    rig.control
        .delete_key(tenant("acme"), KeyId::new(key.info.id), Author::default())
        .await
        .unwrap();
    assert_eq!(rig.keyring.verify(&key.key), None);
}

#[tokio::test]
async fn labels_of_keys_are_one_short_line() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(folder.path(), "").await;
    for text in ["", "two\nlines", &"x".repeat(129)] {
        let wanted = NewKey { name: None, principal: Some(text.into()), ..NewKey::default() };
        let refusal = rig
            .control
            .create_key(tenant("default"), wanted, Author::default())
            .await
            .err()
            .unwrap();
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
                .control
                .create_key(
                    tenant("default"),
                    NewKey { name, principal, ..NewKey::default() },
                    Author::default(),
                )
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
        let refusal = rig
            .control
            .create_key(tenant("default"), wanted, Author::default())
            .await
            .err()
            .unwrap();
        assert!(
            matches!(&refusal, ControlError::Reserved(fault) if fault.path == "principal"),
            "{principal}: {refusal}"
        );
    }
}
