//! Two controls over one store, like two replicas: a change through one is in force on the other.

use std::{path::Path, time::Duration};

use arc_swap::ArcSwapOption;
use config::{
    load_from,
    spec::{BackendSpec, ConfiguredRoot, TenantSpec},
    validation::parse_backend_spec,
};
use protocol::ids::{BackendId, KeyId, ToolsetId};
use records::{AdminChange, PinKey, PinKind, PinSighting};
use rules::{access::Verdict, toolsets::ToolsetDocument};
use serde_json::json;
use storage::{DurableStore, MemoryHotStore, SqliteStore};
use tokio::time::Instant;

use super::{super::registry::tenant_settings, *};
use crate::{
    backends::lists_for_tests::lists_with_tool,
    control::{
        Author, ControlError, FirstAttempt, NewKey, PinBlockItem, PinBlockRequest, Preconditions,
        tests::Rig,
    },
    persistence::{Stores, tests::Meddled},
};

const SECRET: &str = "node: {secret: 0123456789abcdef}";

struct Replicas {
    one: Rig,
    two: Rig,
    store: Arc<dyn DurableStore>,
    _folder: tempfile::TempDir,
}

impl Replicas {
    async fn start(one: &str, two: &str) -> Self {
        Self::on(Arc::new(SqliteStore::in_memory().await.unwrap()), one, two).await
    }

    /// Returns replicas whose store says that others use it too.
    async fn sharing(one: &str, two: &str) -> Self {
        Self::on(Meddled::start("a server").await, one, two).await
    }

    async fn on(store: Arc<dyn DurableStore>, one: &str, two: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) =
            tokio::join!(on(&store, folder.path(), one), on(&store, folder.path(), two));
        Self { one, two, store, _folder: folder }
    }

    async fn second_reads(&self) {
        self.two.control.refresh().await.unwrap();
    }

    async fn first_stores(&self, tenant: TenantId, spec: TenantSpec) {
        let one = &self.one.control;
        one.put_tenant(tenant, spec, Preconditions::default(), Author::default()).await.unwrap();
    }

    async fn second_reloads(&self, yaml: &str) -> Result<(), String> {
        let config = load_from(yaml, []).unwrap();
        self.two.control.reload(&config).await.map(drop).map_err(|error| error.to_string())
    }

    /// Returns the stored settings of a tenant.
    async fn stored(&self, tenant: &TenantId) -> String {
        let stored = self.store.tenants().await.unwrap();
        stored.into_iter().find(|record| record.tenant == *tenant).unwrap().settings
    }
}

async fn on(store: &Arc<dyn DurableStore>, folder: &Path, yaml: &str) -> Rig {
    let stores =
        Stores { durable: store.clone(), events: None, hot: Arc::new(MemoryHotStore::new()) };
    Rig::on(stores, folder, &format!("{SECRET}\n{yaml}")).await.unwrap()
}

fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).unwrap()
}

fn backend(name: &str) -> BackendId {
    BackendId::parse(name).unwrap()
}

fn at(port: u16) -> BackendSpec {
    parse_backend_spec(
        &json!({"transport": {"type": "http", "url": format!("http://127.0.0.1:{port}/")}}),
    )
    .unwrap()
}

fn weight(weight: u32) -> TenantSpec {
    TenantSpec { weight, ..TenantSpec::default() }
}

#[tokio::test]
async fn tenants_keys_and_backends_of_one_replica_apply_at_the_other() {
    let replicas = Replicas::start("", "").await;
    let (one, two) = (&replicas.one.control, &replicas.two.control);
    one.put_tenant(tenant("acme"), weight(3), Preconditions::default(), Author::default())
        .await
        .unwrap();
    let key = one.create_key(tenant("acme"), NewKey::default(), Author::default()).await.unwrap();
    one.put_backend(
        tenant("acme"),
        backend("one"),
        at(9),
        FirstAttempt::InBackground,
        Preconditions::default(),
        Author::default(),
    )
    .await
    .unwrap();
    assert!(
        two.tenant(&tenant("acme")).is_err() && replicas.two.keyring.verify(&key.key).is_none()
    );
    replicas.second_reads().await;
    assert_eq!(one.tenant(&tenant("acme")).unwrap(), two.tenant(&tenant("acme")).unwrap());
    assert!(replicas.two.keyring.verify(&key.key).is_some());
    assert!(
        two.broker.backend(&tenant("acme"), &backend("one")).is_some(),
        "the other broker runs it"
    );

    one.put_backend(
        tenant("acme"),
        backend("two"),
        at(8),
        FirstAttempt::InBackground,
        Preconditions::default(),
        Author::default(),
    )
    .await
    .unwrap();
    one.delete_backend(tenant("acme"), backend("one"), Preconditions::default(), Author::default())
        .await
        .unwrap();
    one.delete_key(tenant("acme"), KeyId::new(key.info.id), Author::default()).await.unwrap();
    replicas.second_reads().await;
    assert!(replicas.two.keyring.verify(&key.key).is_none());
    assert!(two.broker.backend(&tenant("acme"), &backend("one")).is_none());
    assert!(two.broker.backend(&tenant("acme"), &backend("two")).is_some());

    let other =
        one.create_key(tenant("acme"), NewKey::default(), Author::default()).await.unwrap().key;
    replicas.second_reads().await;
    assert!(replicas.two.keyring.verify(&other).is_some());
    one.put_tenant(
        tenant("acme"),
        TenantSpec { enabled: false, ..weight(1) },
        Preconditions::default(),
        Author::default(),
    )
    .await
    .unwrap();
    replicas.second_reads().await;
    assert!(
        replicas.two.keyring.verify(&other).is_none(),
        "a tenant switched off is off everywhere"
    );
    one.delete_tenant(tenant("acme"), Preconditions::default(), Author::default()).await.unwrap();
    replicas.second_reads().await;
    assert!(two.tenant(&tenant("acme")).is_err() && two.broker.tenant(&tenant("acme")).is_none());
    assert!(two.backend(&tenant("acme"), &backend("two")).is_err());
}

#[tokio::test]
async fn a_removal_that_a_change_of_another_replica_refuses_removes_nothing() {
    let store = Meddled::start("a server").await;
    let replicas = Replicas::on(store.clone(), "", "").await;
    replicas.first_stores(tenant("acme"), weight(1)).await;
    replicas.second_reads().await;
    let two = &replicas.two.control;
    let tag = two.tenant(&tenant("acme")).unwrap().tag;
    replicas.first_stores(tenant("acme"), weight(2)).await;
    let read = Preconditions { matching: Some(vec![tag]), none_matching: None };
    let refused = two.delete_tenant(tenant("acme"), read, Author::default()).await;
    assert!(matches!(refused, Err(ControlError::Changed { exists: true, .. })), "{refused:?}");
    assert_eq!(store.count("clear_tenant"), 0);
    two.delete_tenant(tenant("acme"), Preconditions::default(), Author::default()).await.unwrap();
    assert_eq!(store.count("clear_tenant"), 1);
}

#[tokio::test]
async fn the_last_write_wins_on_both_replicas() {
    let replicas = Replicas::start("", "").await;
    let (one, two) = (&replicas.one.control, &replicas.two.control);
    for round in 1..=10 {
        let (first, second) = tokio::join!(
            one.put_tenant(
                tenant("acme"),
                weight(round),
                Preconditions::default(),
                Author::default()
            ),
            two.put_tenant(
                tenant("acme"),
                weight(100 + round),
                Preconditions::default(),
                Author::default()
            ),
        );
        first.and(second).unwrap();
        let (first, second) = tokio::join!(
            one.put_backend(
                tenant("default"),
                backend("a"),
                at(1),
                FirstAttempt::InBackground,
                Preconditions::default(),
                Author::default()
            ),
            two.delete_backend(
                tenant("default"),
                backend("a"),
                Preconditions::default(),
                Author::default()
            ),
        );
        first.unwrap();
        drop(second); // there may have been none
        one.refresh().await.unwrap();
        two.refresh().await.unwrap();
        assert_eq!(one.tenant(&tenant("acme")).unwrap(), two.tenant(&tenant("acme")).unwrap());
        let stored = replicas.store.backends().await.unwrap();
        for control in [one, two] {
            assert_eq!(control.backends(&tenant("default")).unwrap().len(), stored.len());
            assert_eq!(
                control.broker.backend(&tenant("default"), &backend("a")).is_some(),
                !stored.is_empty()
            );
        }
    }
}

#[tokio::test]
async fn replicas_that_start_at_once_on_an_empty_store_agree() {
    let replicas = Replicas::start("", "tenants: {default: {weight: 4}}").await;
    assert_eq!(replicas.store.tenants().await.unwrap().len(), 1);
    assert_eq!(replicas.two.control.tenant(&tenant("default")).unwrap().view.weight, 4);
    let replicas = Replicas::start("", "").await;
    let [one, two] = [&replicas.one, &replicas.two]
        .map(|rig| rig.control.tenant(&tenant("default")).unwrap().view);
    assert_eq!((one.weight, one.enabled), (two.weight, two.enabled));
}

#[tokio::test]
async fn declared_entries_stay_in_force_when_another_replica_changes_them() {
    let declared = format!(
        "tenants: {{acme: {{weight: 7}}}}\nbackends: {{mine: {}}}",
        "{transport: {type: http, url: 'http://127.0.0.1:9/'}}"
    );
    let replicas = Replicas::start("", &declared).await;
    let (one, two) = (&replicas.one.control, &replicas.two.control);
    one.refresh().await.unwrap();
    assert!(!one.tenant(&tenant("acme")).unwrap().view.enabled, "here it is not declared");
    one.delete_tenant(tenant("acme"), Preconditions::default(), Author::default()).await.unwrap();
    one.put_backend(
        tenant("default"),
        backend("mine"),
        at(8),
        FirstAttempt::InBackground,
        Preconditions::default(),
        Author::default(),
    )
    .await
    .unwrap();
    replicas.second_reads().await;
    assert_eq!(two.tenant(&tenant("acme")).unwrap().view.weight, 7);
    assert_eq!(two.backend(&tenant("default"), &backend("mine")).unwrap().view.source, "config");
    assert!(
        two.create_key(tenant("acme"), NewKey::default(), Author::default()).await.is_ok(),
        "the row its keys belong to is back"
    );
}

#[tokio::test]
async fn an_unreadable_row_does_not_affect_other_entries() {
    let replicas = Replicas::start("", "").await;
    let (one, two) = (&replicas.one.control, &replicas.two.control);
    one.put_backend(
        tenant("default"),
        backend("a"),
        at(1),
        FirstAttempt::InBackground,
        Preconditions::default(),
        Author::default(),
    )
    .await
    .unwrap();
    replicas.second_reads().await;
    let mut record = replicas.store.backends().await.unwrap().remove(0);
    record.settings = b"from a newer build".to_vec();
    replicas.store.apply(AdminChange::PutBackend(&record), None).await.unwrap();
    one.put_backend(
        tenant("default"),
        backend("b"),
        at(2),
        FirstAttempt::InBackground,
        Preconditions::default(),
        Author::default(),
    )
    .await
    .unwrap();
    replicas.second_reads().await;
    assert!(
        two.backend(&tenant("default"), &backend("a")).is_ok(),
        "the broker cannot use an entry that another replica stored: the previous state stays in force"
    );
    assert!(two.backend(&tenant("default"), &backend("b")).is_ok());
}

/// The tool of the backend.
const TOOL: &str = r#"{"name":"t","inputSchema":{"type":"object"}}"#;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Again {
    WithTheSameSettings,
    WithOtherSettings,
    /// A replica that does not know of the removal stores its row.
    AsTheSameRow,
}

/// One read shows the removal and the new backend together.
#[tokio::test]
async fn a_backend_that_is_registered_again_begins_without_pins_on_every_replica() {
    for again in [Again::WithTheSameSettings, Again::WithOtherSettings, Again::AsTheSameRow] {
        let replicas = Replicas::start("", "").await;
        let (one, two) = (&replicas.one.control, &replicas.two.control);
        let (owner, name) = (tenant("default"), backend("a"));
        let put = async |spec| {
            let (any, author) = (Preconditions::default(), Author::default());
            one.put_backend(
                owner.clone(),
                name.clone(),
                spec,
                FirstAttempt::InBackground,
                any,
                author,
            )
            .await
            .unwrap();
        };
        put(at(1)).await;
        let seen = PinSighting {
            key: PinKey { kind: PinKind::Tool, name: "t".to_owned() },
            hash: format!("v1:{:064}", 1),
            definition: "{}".to_owned(),
            findings: "[]".to_owned(),
        };
        replicas.store.record_sightings(&owner, &name, &[seen], &[], 10).await.unwrap();
        let item = PinBlockItem { kind: "tool".to_owned(), name: "t".to_owned() };
        let block = PinBlockRequest { items: vec![item] };
        one.block_pins(owner.clone(), name.clone(), block, Author::default()).await.unwrap();
        replicas.second_reads().await;
        let is_held = || {
            let backend = two.broker.tenant(&owner).unwrap().backend(&name).unwrap();
            let published = ArcSwapOption::empty();
            backend.pins.publish(&published, lists_with_tool(&name, TOOL));
            (published.load_full().unwrap().tools[0].pin.is_held, backend.pins.decisions())
        };
        assert_eq!(is_held(), (true, 1), "{again:?}");

        let record = replicas.store.backends().await.unwrap().remove(0);
        let (any, author) = (Preconditions::default(), Author::default());
        one.delete_backend(owner.clone(), name.clone(), any, author).await.unwrap();
        match again {
            Again::WithTheSameSettings => put(at(1)).await,
            Again::WithOtherSettings => put(at(2)).await,
            Again::AsTheSameRow => {
                let row = AdminChange::PutBackend(&record);
                assert!(replicas.store.apply(row, None).await.unwrap());
            }
        }
        replicas.second_reads().await;
        assert_eq!(is_held(), (false, 0), "{again:?}");
    }
}

/// One read shows the removal and the new tenant together.
#[tokio::test]
async fn a_tenant_that_is_created_again_inherits_nothing_on_any_replica() {
    let replicas = Replicas::start("", "").await;
    let (one, two) = (&replicas.one.control, &replicas.two.control);
    let (acme, files) = (tenant("acme"), backend("files"));
    let create = async || {
        replicas.first_stores(acme.clone(), weight(1)).await;
        let (any, author) = (Preconditions::default(), Author::default());
        one.put_backend(
            acme.clone(),
            files.clone(),
            at(9),
            FirstAttempt::InBackground,
            any,
            author,
        )
        .await
        .unwrap();
        one.create_key(acme.clone(), NewKey::default(), Author::default()).await.unwrap().key
    };
    let earlier_key = create().await;
    let policy = serde_json::from_value(json!({"default": "deny"})).unwrap();
    one.put_policy(acme.clone(), policy, Preconditions::default(), Author::default())
        .await
        .unwrap();
    replicas.second_reads().await;
    let earlier = two.broker.tenant(&acme).unwrap();
    assert!(two.broker.policy(&acme).is_some());

    one.delete_tenant(acme.clone(), Preconditions::default(), Author::default()).await.unwrap();
    let later_key = create().await;
    replicas.second_reads().await;
    let later = two.broker.tenant(&acme).unwrap();
    assert!(earlier.is_removed() && !later.is_removed());
    assert!(later.backend(&files).is_some() && two.broker.policy(&acme).is_none());
    assert!(replicas.two.keyring.verify(&earlier_key).is_none());
    assert!(replicas.two.keyring.verify(&later_key).is_some());
    assert_eq!(two.tenant(&acme).unwrap(), one.tenant(&acme).unwrap());

    replicas.first_stores(acme.clone(), weight(2)).await;
    replicas.second_reads().await;
    assert!(Arc::ptr_eq(&later, &two.broker.tenant(&acme).unwrap()), "a changed one stays");
}

#[tokio::test]
async fn a_tenant_whose_declaration_ended_is_not_taken_for_another_one() {
    let replicas = Replicas::sharing("", "").await;
    let (two, default) = (&replicas.two.control, tenant("default"));
    replicas.second_reloads("tenants: {default: {weight: 4}}").await.unwrap();
    replicas.second_reloads("").await.unwrap();
    let before = two.broker.tenant(&default).unwrap();
    replicas.first_stores(tenant("acme"), weight(1)).await;
    replicas.second_reads().await;
    assert!(two.broker.tenant(&tenant("acme")).is_some());
    assert!(Arc::ptr_eq(&before, &two.broker.tenant(&default).unwrap()));
}

/// The policies are read after the tenants and their keys.
#[tokio::test]
async fn a_tenant_that_is_removed_during_a_read_permits_nothing_without_its_policy() {
    let store = Meddled::start("a server").await;
    let replicas = Replicas::on(store.clone(), "", "").await;
    let (one, two) = (&replicas.one.control, &replicas.two.control);
    let acme = tenant("acme");
    replicas.first_stores(acme.clone(), weight(1)).await;
    let key = one.create_key(acme.clone(), NewKey::default(), Author::default()).await.unwrap().key;
    let policy = serde_json::from_value(json!({"default": "deny"})).unwrap();
    one.put_policy(acme.clone(), policy, Preconditions::default(), Author::default())
        .await
        .unwrap();
    replicas.second_reads().await;
    assert!(replicas.two.keyring.verify(&key).is_some() && two.broker.policy(&acme).is_some());

    let other = tenant_record(&tenant("other"), tenant_settings(&weight(1)), now_us());
    replicas.store.apply(AdminChange::PutTenant(&other), None).await.unwrap();
    store.remove_late(acme.clone());
    replicas.second_reads().await;
    assert!(two.broker.tenant(&tenant("other")).is_some(), "it was read");
    assert!(two.broker.tenant(&acme).is_none(), "it would have no policy");
    assert!(replicas.two.keyring.verify(&key).is_none());
}

#[tokio::test]
async fn an_unreadable_row_does_not_keep_an_entry_of_a_removed_row() {
    let replicas = Replicas::start("", "").await;
    let two = &replicas.two.control;
    let (owner, name) = (tenant("default"), backend("a"));
    let (any, author) = (Preconditions::default(), Author::default());
    let one = &replicas.one.control;
    one.put_backend(owner.clone(), name.clone(), at(1), FirstAttempt::InBackground, any, author)
        .await
        .unwrap();
    replicas.second_reads().await;
    assert!(two.broker.backend(&owner, &name).is_some());

    let of_newer_build = BackendRecord {
        tenant: owner.clone(),
        backend: name.clone(),
        settings: b"from a newer build".to_vec(),
        created_at_us: 900,
        updated_at_us: 900,
    };
    for change in
        [AdminChange::DeleteBackend(&owner, &name), AdminChange::PutBackend(&of_newer_build)]
    {
        assert!(replicas.store.apply(change, None).await.unwrap());
    }
    replicas.second_reads().await;
    assert!(two.broker.backend(&owner, &name).is_none(), "the earlier one was removed");
    assert!(two.backend(&owner, &name).is_err());
}

#[tokio::test]
async fn an_unreadable_policy_closes_its_tenant_until_it_is_readable() {
    let replicas = Replicas::start("", "").await;
    let (one, two) = (&replicas.one.control, &replicas.two.control);
    let put = async |document: &str| {
        let stored = PolicyRecord {
            tenant: tenant("default"),
            document: document.to_owned(),
            created_at_us: 1,
            updated_at_us: 1,
        };
        replicas.store.apply(AdminChange::PutPolicy(&stored), None).await.unwrap();
        replicas.second_reads().await;
    };
    let is_allowed = || {
        let body = json!({"method": "tools/call", "object": "a/tool"});
        let check = serde_json::from_value(body).unwrap();
        two.check_policy(&tenant("default"), &check).unwrap().verdict
            == rules::access::Verdict::Allow
    };
    assert!(is_allowed(), "no policy allows everything");
    put("from a newer build").await;
    assert!(!is_allowed(), "the first policy of the tenant");
    put("{}").await;
    assert!(is_allowed());
    put("from a newer build").await;
    assert!(!is_allowed(), "a later version may deny what the earlier one allows");
    assert!(two.backends(&tenant("default")).is_ok());
    one.delete_policy(tenant("default"), Preconditions::default(), Author::default())
        .await
        .unwrap();
    replicas.second_reads().await;
    assert!(is_allowed());
}

#[tokio::test]
async fn a_reload_keeps_what_another_replica_stored_of_the_default_tenant() {
    let replicas = Replicas::sharing("", "").await;
    let two = &replicas.two.control;
    replicas.first_stores(tenant("default"), weight(5)).await;
    replicas.second_reloads("").await.unwrap();
    assert_eq!(replicas.stored(&tenant("default")).await, tenant_settings(&weight(5)));
    assert_eq!(two.tenant(&tenant("default")).unwrap().view.weight, 5);

    let newer = "{\"weight\": 6, \"of_a_newer_build\": true}";
    let record = tenant_record(&tenant("default"), newer.to_owned(), now_us());
    replicas.store.apply(AdminChange::PutTenant(&record), None).await.unwrap();
    replicas.second_reloads("").await.unwrap();
    assert_eq!(replicas.stored(&tenant("default")).await, newer);
    assert_eq!(
        two.tenant(&tenant("default")).unwrap().view.weight,
        5,
        "the broker cannot use an entry that another replica stored: the previous state stays in force"
    );
    let refused = replicas.second_reloads("tenants: {default: {}}").await.unwrap_err();
    assert!(refused.contains("both stored and declared"), "{refused}");
}

#[tokio::test]
async fn a_reload_refuses_to_declare_what_another_replica_has_just_stored() {
    let replicas = Replicas::sharing("", "").await;
    replicas.first_stores(tenant("acme"), weight(3)).await;
    let refused = replicas.second_reloads("tenants: {acme: {}}").await.unwrap_err();
    assert!(refused.contains("tenant acme is both stored and declared"), "{refused}");
    assert_eq!(replicas.stored(&tenant("acme")).await, tenant_settings(&weight(3)));
}

#[tokio::test]
async fn a_reload_keeps_rows_of_tenants_that_only_one_replica_declares() {
    let replicas = Replicas::sharing("", "").await;
    let two = &replicas.two.control;
    let declared = "tenants: {default: {weight: 4}, acme: {}}";
    replicas.second_reloads(declared).await.unwrap();
    let next = load_from("tenants: {other: {}}", []).unwrap();
    replicas.one.control.reload(&next).await.unwrap();
    assert_eq!(replicas.stored(&tenant("default")).await, DECLARED, "the other declares it");

    replicas.first_stores(tenant("acme"), weight(3)).await;
    replicas.second_reloads(declared).await.unwrap();
    assert_eq!(replicas.stored(&tenant("acme")).await, tenant_settings(&weight(3)));
    assert_eq!(two.tenant(&tenant("acme")).unwrap().view.weight, 1, "the file decides here");
    replicas.second_reloads("").await.unwrap();
    assert_eq!(two.tenant(&tenant("acme")).unwrap().view.weight, 3);
    assert_eq!(
        replicas.stored(&tenant("default")).await,
        tenant_settings(&TenantSpec::default()),
        "no longer declared here"
    );
}

#[tokio::test]
async fn what_another_replica_stored_is_in_force_when_its_declaration_ends() {
    let declared =
        "{policy: {}, toolsets: {all: {}}, prompts: {hi: {messages: [{role: user, text: file}]}}}";
    let body = "{transport: {type: http, url: 'http://127.0.0.1:9/'}}";
    let yaml = format!("tenants: {{acme: {declared}}}\nbackends: {{acme/mine: {body}}}");
    let replicas = Replicas::sharing("", &yaml).await;
    let (one, two) = (&replicas.one.control, &replicas.two.control);
    let (acme, mine) = (tenant("acme"), backend("mine"));
    let any = Preconditions::default;
    one.refresh().await.unwrap();
    one.put_backend(
        acme.clone(),
        mine.clone(),
        at(8),
        FirstAttempt::InBackground,
        any(),
        Author::default(),
    )
    .await
    .unwrap();
    let policy = serde_json::from_value(json!({"default": "deny"})).unwrap();
    one.put_policy(acme.clone(), policy, any(), Author::default()).await.unwrap();
    let (toolset, all) = (ToolsetDocument::default(), ToolsetId::parse("all").unwrap());
    one.put_toolset(acme.clone(), all.clone(), toolset, any(), Author::default()).await.unwrap();
    let prompt = json!({"messages": [{"role": "user", "text": "stored"}]});
    let (prompt, hi) = (serde_json::from_value(prompt).unwrap(), "hi".to_owned());
    one.put_hosted_prompt(acme.clone(), hi, prompt, any(), Author::default()).await.unwrap();
    replicas.second_reads().await;

    let in_force = || {
        let body = json!({"method": "tools/call", "object": "mine/tool"});
        let check = serde_json::from_value(body).unwrap();
        let shown = two.backend(&acme, &mine).map(|shown| shown.view.source);
        (
            two.check_policy(&acme, &check).unwrap().verdict,
            shown.ok(),
            two.toolset(&acme, &all).map(|shown| shown.view.source).ok(),
            two.hosted_prompt(&acme, "hi").map(|shown| shown.view.source).ok(),
        )
    };
    let of = |source: &str| Some(source.to_owned());
    assert_eq!(in_force(), (Verdict::Allow, of("config"), of("config"), of("config")));
    replicas.second_reloads("tenants: {acme: {}}").await.unwrap();
    assert_eq!(in_force(), (Verdict::Deny, of("api"), of("api"), of("api")));
    assert!(two.broker.backend(&acme, &mine).is_some(), "it runs");
    replicas.second_reloads("").await.unwrap();
    assert_eq!(in_force(), (Verdict::Deny, of("api"), of("api"), of("api")));
}

#[tokio::test]
async fn a_new_version_is_read_automatically() {
    let replicas = Replicas::start("", "").await;
    replicas.two.control.start_store_sync();
    replicas
        .one
        .control
        .put_tenant(tenant("acme"), weight(3), Preconditions::default(), Author::default())
        .await
        .unwrap();
    replicas.two.control.config_version(replicas.store.config_version().await.unwrap());
    let deadline = Instant::now() + Duration::from_secs(10);
    while replicas.two.control.tenant(&tenant("acme")).is_err() {
        assert!(Instant::now() < deadline, "the change was not read");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_backend_that_replaces_an_unreadable_row_is_not_replaced_by_the_next_read() {
    let replicas = Replicas::start("", "").await;
    let two = &replicas.two.control;
    let (owner, name) = (tenant("default"), backend("damaged"));
    let damaged = BackendRecord {
        tenant: owner.clone(),
        backend: name.clone(),
        settings: b"no settings".to_vec(),
        created_at_us: 900,
        updated_at_us: 900,
    };
    replicas.store.apply(AdminChange::PutBackend(&damaged), None).await.unwrap();
    replicas.second_reads().await;
    assert!(two.backend(&owner, &name).is_err(), "it cannot be read");

    let any = Preconditions::default();
    two.put_backend(
        owner.clone(),
        name.clone(),
        at(9),
        FirstAttempt::InBackground,
        any,
        Author::default(),
    )
    .await
    .unwrap();
    let running = two.broker.tenant(&owner).unwrap().backend(&name).unwrap();
    replicas.first_stores(tenant("acme"), weight(2)).await;
    replicas.second_reads().await;
    let after = two.broker.tenant(&owner).unwrap().backend(&name).unwrap();
    assert!(Arc::ptr_eq(&running, &after), "the read found the backend that was stored here");
}

#[tokio::test]
async fn of_two_changes_with_one_precondition_at_two_replicas_one_is_refused() {
    let replicas = Replicas::sharing("", "").await;
    let (one, two) = (&replicas.one.control, &replicas.two.control);
    replicas.first_stores(tenant("acme"), weight(1)).await;
    for round in 1..=20 {
        replicas.second_reads().await;
        let tag = one.tenant(&tenant("acme")).unwrap().tag;
        let unchanged = || Preconditions { matching: Some(vec![tag.clone()]), none_matching: None };
        let put = |control: &Arc<Control>, spec| {
            let control = control.clone();
            let condition = unchanged();
            async move { control.put_tenant(tenant("acme"), spec, condition, Author::default()).await }
        };
        let (first, second) =
            tokio::join!(put(one, weight(2 * round)), put(two, weight(2 * round + 1)));
        let refused = match (first, second) {
            (Ok(_), Err(refused)) | (Err(refused), Ok(_)) => refused,
            (first, second) => panic!("{:?} and {:?}", first.err(), second.err()),
        };
        assert!(matches!(refused, ControlError::Changed { .. }), "{refused}");
        one.refresh().await.unwrap();
    }
}

#[tokio::test]
async fn roots_that_are_added_at_two_replicas_at_once_are_all_kept() {
    let replicas = Replicas::sharing("", "").await;
    let (one, two) = (&replicas.one.control, &replicas.two.control);
    let (acme, files) = (tenant("acme"), backend("files"));
    replicas.first_stores(acme.clone(), weight(1)).await;
    let any = Preconditions::default;
    one.put_backend(
        acme.clone(),
        files.clone(),
        at(9),
        FirstAttempt::InBackground,
        any(),
        Author::default(),
    )
    .await
    .unwrap();
    let adding = (0..20).map(|number| {
        let control = if number % 2 == 0 { one } else { two };
        let root = ConfiguredRoot { uri: format!("file:///{number}"), name: None };
        control.add_root(acme.clone(), files.clone(), root, Author::default())
    });
    for added in futures_util::future::join_all(adding).await {
        added.unwrap();
    }
    replicas.second_reads().await;
    let settings = two.backend(&acme, &files).unwrap().view.settings;
    assert_eq!(settings.roots.list.len(), 20, "{:?}", settings.roots);
}
