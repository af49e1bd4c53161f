//! Behaviours of every [`ConfigStore`]: operators, revocations and issuers of tenants.

use protocol::ids::PrincipalId;
use records::{
    AdminChange, HASH_BYTES, OperatorRecord, RevocationRecord, RevokedSubject, TokenIssuerRecord,
};

use super::{Outcome, config::tenant_record, tenant};
use crate::{ConfigStore, StoreError};

pub async fn operators_are_kept_as_given_and_listed_by_name(store: &dyn ConfigStore) -> Outcome {
    let (zoe, ann) = (operator("1", "zoe"), operator("2", "ann"));
    assert!(store.apply(AdminChange::PutOperator(&zoe), None).await?);
    assert!(store.apply(AdminChange::PutOperator(&ann), None).await?);
    assert_eq!(store.operators().await?, [ann.clone(), zoe]);
    assert!(store.apply(AdminChange::DeleteOperator("1"), None).await?);
    assert!(!store.apply(AdminChange::DeleteOperator("1"), None).await?);
    assert_eq!(store.operators().await?, [ann]);
    Ok(())
}

pub async fn an_operators_name_and_id_are_unique(store: &dyn ConfigStore) -> Outcome {
    let first = operator("1", "ann");
    store.apply(AdminChange::PutOperator(&first), None).await?;
    for other in [operator("2", "ann"), operator("1", "zoe")] {
        let refused = store.apply(AdminChange::PutOperator(&other), None).await;
        assert!(matches!(refused, Err(StoreError::Exists { .. })), "{refused:?}");
    }
    assert_eq!(store.operators().await?, [first]);
    Ok(())
}

pub async fn revocations_are_kept_and_replaced(store: &dyn ConfigStore) -> Outcome {
    store.apply(AdminChange::PutTenant(&tenant_record("acme")), None).await?;
    let (token, first) = (revocation("acme", token_id()), revocation("acme", principal()));
    assert!(store.apply(AdminChange::PutRevocation(&first), None).await?);
    assert!(store.apply(AdminChange::PutRevocation(&token), None).await?);
    let stored_at = store.revocations().await?.pop().map(|record| record.stored_at_us);
    let later = RevocationRecord { issued_before_us: 900, created_at_us: 901, ..first.clone() };
    assert!(store.apply(AdminChange::PutRevocation(&later), None).await?);
    let kept = RevocationRecord { created_at_us: first.created_at_us, ..later };
    // Another replica may revoke without knowledge of the wider one.
    assert!(store.apply(AdminChange::PutRevocation(&first), None).await?);
    let stored = store.revocations().await?;
    assert!(stored.last().map(|record| record.stored_at_us) > stored_at, "the wider one is later");
    assert_eq!(unstamped(stored), [token, kept.clone()]);
    let acme = tenant("acme");
    assert!(store.apply(AdminChange::DeleteRevocation(&acme, &token_id()), None).await?);
    assert!(!store.apply(AdminChange::DeleteRevocation(&acme, &token_id()), None).await?);
    assert_eq!(unstamped(store.revocations().await?), [kept]);
    Ok(())
}

pub async fn issuers_of_tenants_are_kept_and_replaced(store: &dyn ConfigStore) -> Outcome {
    for name in ["zoo", "acme"] {
        store.apply(AdminChange::PutTenant(&tenant_record(name)), None).await?;
    }
    let (first, other) = (issuer("acme"), issuer("zoo"));
    assert!(store.apply(AdminChange::PutTokenIssuer(&other), None).await?);
    assert!(store.apply(AdminChange::PutTokenIssuer(&first), None).await?);
    let second = TokenIssuerRecord {
        settings: vec![0, 255],
        created_at_us: 900,
        updated_at_us: 900,
        ..first.clone()
    };
    assert!(store.apply(AdminChange::PutTokenIssuer(&second), None).await?);
    let kept = TokenIssuerRecord { created_at_us: first.created_at_us, ..second };
    assert_eq!(store.token_issuers().await?, [kept, other.clone()]);
    let acme = tenant("acme");
    assert!(store.apply(AdminChange::DeleteTokenIssuer(&acme, "login"), None).await?);
    assert!(!store.apply(AdminChange::DeleteTokenIssuer(&acme, "login"), None).await?);
    assert_eq!(store.token_issuers().await?, [other]);
    Ok(())
}

pub async fn credentials_end_with_their_tenant(store: &dyn ConfigStore) -> Outcome {
    store.apply(AdminChange::PutTenant(&tenant_record("acme")), None).await?;
    store.apply(AdminChange::PutRevocation(&revocation("acme", principal())), None).await?;
    store.apply(AdminChange::PutTokenIssuer(&issuer("acme")), None).await?;
    store.apply(AdminChange::DeleteTenant(&tenant("acme")), None).await?;
    assert_eq!((store.revocations().await?, store.token_issuers().await?), (vec![], vec![]));
    Ok(())
}

pub async fn credentials_of_an_unknown_tenant_are_refused(store: &dyn ConfigStore) -> Outcome {
    for change in [
        AdminChange::PutRevocation(&revocation("ghost", principal())),
        AdminChange::PutTokenIssuer(&issuer("ghost")),
    ] {
        let refused = store.apply(change, None).await;
        assert!(matches!(refused, Err(StoreError::UnknownTenant { .. })), "{refused:?}");
    }
    Ok(())
}

pub async fn counts_changes_of_credentials(store: &dyn ConfigStore) -> Outcome {
    store.apply(AdminChange::PutTenant(&tenant_record("acme")), None).await?;
    let (acme, operator, issuer) = (tenant("acme"), operator("1", "ann"), issuer("acme"));
    let (revocation, principal) = (revocation("acme", principal()), principal());
    let mut before = store.config_version().await?;
    for change in [
        AdminChange::PutOperator(&operator),
        AdminChange::DeleteOperator("1"),
        AdminChange::PutRevocation(&revocation),
        AdminChange::DeleteRevocation(&acme, &principal),
        AdminChange::PutTokenIssuer(&issuer),
        AdminChange::PutTokenIssuer(&issuer),
        AdminChange::DeleteTokenIssuer(&acme, "login"),
    ] {
        store.apply(change, None).await?;
        let now = store.config_version().await?;
        assert!(now > before, "{} is not counted", change.name());
        before = now;
    }
    Ok(())
}

fn operator(id: &str, name: &str) -> OperatorRecord {
    OperatorRecord {
        operator: id.to_owned(),
        name: name.to_owned(),
        hash: vec![7; HASH_BYTES],
        settings: "{\"role\":\"viewer\"}".to_owned(),
        created_at_us: 100,
    }
}

fn principal() -> RevokedSubject {
    RevokedSubject::Principal(PrincipalId::new("https://login.example ann"))
}

fn token_id() -> RevokedSubject {
    RevokedSubject::TokenId("8f1".to_owned())
}

fn revocation(name: &str, subject: RevokedSubject) -> RevocationRecord {
    RevocationRecord {
        tenant: tenant(name),
        subject,
        issued_before_us: 100,
        created_at_us: 101,
        stored_at_us: 0,
    }
}

/// Removes the times that the store set.
fn unstamped(records: Vec<RevocationRecord>) -> Vec<RevocationRecord> {
    records.into_iter().map(|record| RevocationRecord { stored_at_us: 0, ..record }).collect()
}

fn issuer(name: &str) -> TokenIssuerRecord {
    TokenIssuerRecord {
        tenant: tenant(name),
        issuer: "login".to_owned(),
        settings: b"sealed".to_vec(),
        created_at_us: 100,
        updated_at_us: 200,
    }
}
