//! Behaviours of every [`ConfigStore`]: toolsets and hosted prompts.

use records::{AdminChange, CatalogDocumentKind, CatalogDocumentRecord};

use super::{Outcome, config::tenant_record, tenant};
use crate::{ConfigStore, StoreError};

use CatalogDocumentKind::{Prompt, Toolset};

pub async fn documents_are_kept_replaced_and_listed_in_order(store: &dyn ConfigStore) -> Outcome {
    add_tenants(store).await?;
    let (first, prompt) = (document("acme", Toolset, "b"), document("acme", Prompt, "b"));
    let (other, early) = (document("zoo", Toolset, "b"), document("acme", Toolset, "a"));
    for record in [&other, &first, &prompt, &early] {
        assert!(store.apply(AdminChange::PutCatalogDocument(record), None).await?);
    }
    let second = CatalogDocumentRecord {
        document: "{\"x\":\" \\\" é \"}".into(),
        created_at_us: 900,
        updated_at_us: 900,
        ..first.clone()
    };
    assert!(store.apply(AdminChange::PutCatalogDocument(&second), None).await?);
    let kept = CatalogDocumentRecord { created_at_us: first.created_at_us, ..second };
    assert_eq!(store.catalog_documents().await?, [prompt, early, kept, other]);
    Ok(())
}

pub async fn a_document_is_removed_once_and_with_its_tenant(store: &dyn ConfigStore) -> Outcome {
    add_tenants(store).await?;
    for record in [document("acme", Toolset, "a"), document("zoo", Toolset, "a")] {
        store.apply(AdminChange::PutCatalogDocument(&record), None).await?;
    }
    let acme = tenant("acme");
    let remove = |kind, name| AdminChange::DeleteCatalogDocument(&acme, kind, name);
    assert!(!store.apply(remove(Prompt, "a"), None).await?, "of another kind");
    assert!(!store.apply(remove(Toolset, "b"), None).await?, "of another name");
    assert!(store.apply(remove(Toolset, "a"), None).await?);
    assert!(!store.apply(remove(Toolset, "a"), None).await?);
    assert_eq!(store.catalog_documents().await?, [document("zoo", Toolset, "a")]);
    store.apply(AdminChange::DeleteTenant(&tenant("zoo")), None).await?;
    assert_eq!(store.catalog_documents().await?, []);
    Ok(())
}

pub async fn a_document_of_an_unknown_tenant_is_refused(store: &dyn ConfigStore) -> Outcome {
    let record = document("ghost", Toolset, "a");
    let refused = store.apply(AdminChange::PutCatalogDocument(&record), None).await;
    assert!(matches!(refused, Err(StoreError::UnknownTenant { .. })), "{refused:?}");
    Ok(())
}

pub async fn counts_changes_of_documents(store: &dyn ConfigStore) -> Outcome {
    add_tenants(store).await?;
    let mut before = store.config_version().await?;
    let (first, acme) = (document("acme", Prompt, "a"), tenant("acme"));
    let second = CatalogDocumentRecord { document: "{}".into(), ..first.clone() };
    for change in [
        AdminChange::PutCatalogDocument(&first),
        AdminChange::PutCatalogDocument(&second),
        AdminChange::DeleteCatalogDocument(&acme, Prompt, "a"),
    ] {
        store.apply(change, None).await?;
        let now = store.config_version().await?;
        assert!(now > before, "{} is not counted", change.name());
        before = now;
    }
    Ok(())
}

async fn add_tenants(store: &dyn ConfigStore) -> Outcome {
    for name in ["acme", "zoo"] {
        store.apply(AdminChange::PutTenant(&tenant_record(name)), None).await?;
    }
    Ok(())
}

fn document(owner: &str, kind: CatalogDocumentKind, name: &str) -> CatalogDocumentRecord {
    CatalogDocumentRecord {
        tenant: tenant(owner),
        kind,
        name: name.to_owned(),
        document: format!("{{\"of\":\"{owner}/{name}\"}}"),
        created_at_us: 100,
        updated_at_us: 200,
    }
}
