//! Tests of changes and start-up, with a real store in a folder of its own and a real broker
//! without listeners.

mod changes;
mod keys;

use std::path::Path;

use config::{DatabaseConfig, spec::BackendSpec, validation::parse_backend_spec};
use protocol::ids::BackendId;
use records::{AuditKind, AuditRecord, NodeName};
use rules::limits::ADMIN_LIST_MAX;
use serde_json::json;
use storage::{AuditStore as _, SealStore as _, SqliteOptions, SqliteStore};

use super::*;
use crate::{
    auth::{Keys, OpenRoot, RootSecrets},
    broker::BrokerParts,
    persistence::{
        Stores,
        tests::{Meddled, Verdict, task_creation, task_record},
    },
};

/// A control as start-up creates it. The folder holds all its state.
pub(crate) struct Rig {
    pub(crate) control: Arc<Control>,
    pub(crate) keyring: Arc<Keyring>,
}

impl Rig {
    async fn try_start(folder: &Path, yaml: &str) -> Result<Self, LoadError> {
        Self::on(Self::stores(folder).await?, folder, yaml).await
    }

    /// Starts as an earlier release did, whose root key was the root secret.
    async fn of_earlier_release(folder: &Path, secret: &[u8]) -> Self {
        let (stores, config) = (Self::stores(folder).await, Self::config(folder, ""));
        let stores = stores.expect("the folder is writable");
        let keys = Keys::from_root(secret);
        Self::with_keys(stores, config, keys, ADMIN_LIST_MAX).await.expect("starts")
    }

    async fn stores(folder: &Path) -> Result<Stores, LoadError> {
        let options = SqliteOptions { path: folder.join("broker.db"), migrate: true };
        let durable = Arc::new(SqliteStore::open(&options).await?);
        let hot = Arc::new(storage::hot::MemoryHotStore::new());
        Ok(Stores { durable, events: None, hot })
    }

    fn config(folder: &Path, yaml: &str) -> Arc<Config> {
        let mut config = config::load_from(yaml, []).expect("the test's configuration is valid");
        config.storage.database = DatabaseConfig::Sqlite(folder.join("broker.db"));
        Arc::new(config)
    }

    /// Returns one of several controls on the same stores.
    pub(crate) async fn on(stores: Stores, folder: &Path, yaml: &str) -> Result<Self, LoadError> {
        Self::on_with_lists(stores, folder, yaml, ADMIN_LIST_MAX).await
    }

    async fn on_with_lists(
        stores: Stores,
        folder: &Path,
        yaml: &str,
        list_max: usize,
    ) -> Result<Self, LoadError> {
        let config = Self::config(folder, yaml);
        let secrets = RootSecrets::load(&config).expect("the folder is writable");
        let durable = Arc::clone(&stores.durable);
        let root = OpenRoot::open(&secrets, durable.as_ref()).await;
        let root = root.expect("the secret opens the database");
        let rig = Self::with_keys(stores, config, root.keys.clone(), list_max).await?;
        root.record(durable.as_ref()).await?;
        Ok(rig)
    }

    async fn with_keys(
        stores: Stores,
        config: Arc<Config>,
        keys: Keys,
        list_max: usize,
    ) -> Result<Self, LoadError> {
        let keyring = Arc::new(Keyring::new(keys.api_key.clone()));
        let metrics = Arc::new(Metrics::new(false));
        let broker = Broker::new(BrokerParts {
            config: Arc::clone(&config),
            metrics: Arc::clone(&metrics),
            keys: keys.clone(),
            keyring: Arc::clone(&keyring),
            stores,
        })
        .unwrap();
        let control = Control::new(ControlParts {
            broker,
            keyring: Arc::clone(&keyring),
            keys,
            config,
            metrics,
            log: None,
            list_max,
        });
        let rig = Self { control, keyring };
        match rig.control.load().await {
            Ok(_) => Ok(rig),
            Err(error) => {
                rig.stop().await;
                Err(error)
            }
        }
    }

    pub(crate) async fn start(folder: &Path, yaml: &str) -> Self {
        Self::try_start(folder, yaml).await.expect("starts")
    }

    /// Starts with another number of sessions or tasks in one answer.
    pub(crate) async fn start_with_lists(folder: &Path, yaml: &str, list_max: usize) -> Self {
        let stores = Self::stores(folder).await.expect("the folder is writable");
        Self::on_with_lists(stores, folder, yaml, list_max).await.expect("starts")
    }

    async fn refusal(folder: &Path, yaml: &str) -> String {
        Self::try_start(folder, yaml).await.err().expect("start-up is refused").to_string()
    }

    async fn stop(self) {
        self.control.close().await;
    }

    async fn put_tenant(
        &self,
        name: &str,
        spec: TenantSpec,
    ) -> Result<PutOutcome<TenantView>, ControlError> {
        let (condition, author) = (Preconditions::default(), Author::default());
        self.control.put_tenant(tenant(name), spec, condition, author).await
    }

    async fn delete_tenant(&self, name: &str) -> Result<(), ControlError> {
        let (condition, author) = (Preconditions::default(), Author::default());
        self.control.delete_tenant(tenant(name), condition, author).await
    }

    async fn put_backend(
        &self,
        of: &str,
        name: &str,
        spec: BackendSpec,
    ) -> Result<PutOutcome<BackendView>, ControlError> {
        let (condition, author) = (Preconditions::default(), Author::default());
        self.control
            .put_backend(
                tenant(of),
                backend(name),
                spec,
                FirstAttempt::InBackground,
                condition,
                author,
            )
            .await
    }

    async fn create_key(&self, of: &str, wanted: NewKey) -> Result<KeyShown, ControlError> {
        self.control.create_key(tenant(of), wanted, Author::default()).await
    }

    async fn delete_key(&self, of: &str, key: KeyId) -> Result<(), ControlError> {
        self.control.delete_key(tenant(of), key, Author::default()).await
    }
}

fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).unwrap()
}

fn backend(name: &str) -> BackendId {
    BackendId::parse(name).unwrap()
}

/// Returns a backend with an address that has no listener.
fn nowhere() -> BackendSpec {
    let body = json!({"transport": {"type": "http", "url": "http://127.0.0.1:9/mcp?k=canary"}, "credentials": {"bearer": "canary"}});
    parse_backend_spec(&body).unwrap()
}

#[tokio::test]
async fn the_default_tenant_exists_from_the_first_start() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(folder.path(), "").await;
    assert_eq!(rig.control.tenants().len(), 1);
    assert!(rig.control.tenant(&tenant("default")).unwrap().view.enabled);
    assert!(rig.keyring.is_enabled(&tenant("default")));
    assert_eq!(rig.control.readiness(), Readiness::Ready);
    assert!(matches!(rig.delete_tenant("default").await, Err(ControlError::DefaultTenant)));
}

#[tokio::test]
async fn tenants_keys_and_backends_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(folder.path(), "").await;
    let spec = TenantSpec { weight: 7, ..TenantSpec::default() };
    assert!(rig.put_tenant("acme", spec.clone()).await.unwrap().created);
    assert!(!rig.put_tenant("acme", spec).await.unwrap().created);
    let wanted =
        NewKey { name: Some("laptop".into()), principal: Some("ann".into()), ..NewKey::default() };
    let shown = rig.create_key("acme", wanted).await.unwrap();
    assert_eq!(rig.keyring.verify(&shown.key).unwrap().caller.principal.as_str(), "ann");
    assert!(rig.put_backend("acme", "one", nowhere()).await.unwrap().created);
    let before = (
        rig.control.tenant(&tenant("acme")).unwrap(),
        rig.control.keys_of(&tenant("acme")).await.unwrap(),
    );
    rig.stop().await;

    let rig = Rig::start(folder.path(), "").await;
    assert_eq!(
        before,
        (
            rig.control.tenant(&tenant("acme")).unwrap(),
            rig.control.keys_of(&tenant("acme")).await.unwrap()
        )
    );
    assert_eq!(rig.keyring.verify(&shown.key).unwrap().caller.tenant, tenant("acme"));
    assert_eq!(rig.control.backends(&tenant("acme")).unwrap().len(), 1);
    assert!(
        rig.control.broker.backend(&tenant("acme"), &backend("one")).is_some(),
        "the broker runs it again"
    );
}

#[tokio::test]
async fn no_secret_is_shown_and_none_is_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(folder.path(), "").await;
    let put = rig.put_backend("default", "one", nowhere()).await.unwrap();
    let shown = serde_json::to_string(&put.entry.view).unwrap();
    assert!(
        shown.contains("http://127.0.0.1:9/mcp?k=***") && shown.contains("\"bearer\":true"),
        "{shown}"
    );
    assert!(!shown.contains("canary"), "{shown}");
    let key = rig.create_key("default", NewKey::default()).await.unwrap();
    let listed =
        serde_json::to_string(&rig.control.keys_of(&tenant("default")).await.unwrap()).unwrap();
    assert!(listed.contains(&key.info.id) && !listed.contains(&key.key), "{listed}");
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        for secret in [b"canary".as_slice(), &key.key.as_bytes()[18..]] {
            assert!(!bytes.windows(secret.len()).any(|window| window == secret));
        }
    }
}

#[tokio::test]
async fn a_missing_entry_is_named_in_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(folder.path(), "").await;
    let (ghost, one) = (tenant("ghost"), backend("one"));
    let refusals = [
        rig.control.tenant(&ghost).unwrap_err(),
        rig.control.keys_of(&ghost).await.unwrap_err(),
        rig.control
            .create_key(ghost.clone(), NewKey::default(), Author::default())
            .await
            .err()
            .unwrap(),
        rig.control
            .put_backend(
                ghost.clone(),
                one.clone(),
                nowhere(),
                FirstAttempt::InBackground,
                Preconditions::default(),
                Author::default(),
            )
            .await
            .err()
            .unwrap(),
        rig.control
            .delete_tenant(ghost.clone(), Preconditions::default(), Author::default())
            .await
            .unwrap_err(),
    ];
    for refusal in refusals {
        assert_eq!(refusal.to_string(), "tenant ghost does not exist");
    }
    assert_eq!(
        rig.control
            .delete_backend(
                tenant("default"),
                one.clone(),
                Preconditions::default(),
                Author::default()
            )
            .await
            .unwrap_err()
            .to_string(),
        "backend one does not exist"
    );
    assert_eq!(
        rig.control.probe_backend(&tenant("default"), &one).await.unwrap_err().to_string(),
        "backend one does not exist"
    );
}

#[tokio::test]
async fn a_refused_address_is_refused_at_registration() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(folder.path(), "").await;
    for url in
        ["http://169.254.169.254/latest", "http://10.0.0.1/mcp", "http://[::ffff:10.0.0.1]/mcp"]
    {
        let spec = parse_backend_spec(&json!({"transport": {"type": "http", "url": url}})).unwrap();
        let refusal = rig
            .control
            .put_backend(
                tenant("default"),
                backend("one"),
                spec,
                FirstAttempt::Awaited,
                Preconditions::default(),
                Author::default(),
            )
            .await
            .err()
            .unwrap();
        assert!(
            matches!(&refusal, ControlError::Invalid(fault) if fault.path == "transport.url"),
            "{refusal}"
        );
    }
    assert_eq!(rig.control.backends(&tenant("default")).unwrap(), []);
}

const DECLARES_ACME: &str = r#"{"tenants": {"acme": {"weight": 3}}}"#;

#[tokio::test]
async fn a_declared_tenant_is_read_only_but_takes_keys_and_backends() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(folder.path(), DECLARES_ACME).await;
    let view = rig.control.tenant(&tenant("acme")).unwrap().view;
    assert_eq!((view.source.as_str(), view.weight), ("config", 3));
    let refusal = rig.put_tenant("acme", TenantSpec::default()).await.err().unwrap();
    assert!(matches!(refusal, ControlError::Declared { .. }), "{refusal}");
    assert!(matches!(rig.delete_tenant("acme").await, Err(ControlError::Declared { .. })));
    let key = rig.create_key("acme", NewKey::default()).await.unwrap().key;
    rig.put_backend("acme", "one", nowhere()).await.unwrap();
    rig.stop().await;

    let rig = Rig::start(folder.path(), "").await;
    assert!(
        !rig.control.tenant(&tenant("acme")).unwrap().view.enabled,
        "kept, but served no longer"
    );
    assert_eq!(rig.keyring.verify(&key), None);
    rig.stop().await;

    let rig = Rig::start(folder.path(), DECLARES_ACME).await;
    assert!(rig.keyring.verify(&key).is_some(), "declared again, it works again");
    assert_eq!(rig.control.backends(&tenant("acme")).unwrap().len(), 1);
}

#[tokio::test]
async fn a_name_that_is_stored_and_declared_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(folder.path(), "").await;
    rig.put_tenant("acme", TenantSpec::default()).await.unwrap();
    rig.stop().await;
    let refusal = Rig::refusal(folder.path(), DECLARES_ACME).await;
    assert!(refusal.contains("tenant acme is both stored and declared"), "{refusal}");
}

#[tokio::test]
async fn a_declaration_replaces_the_default_tenant_unless_it_was_changed() {
    let folder = tempfile::tempdir().unwrap();
    let declared = r#"{"tenants": {"default": {"weight": 9}}}"#;
    Rig::start(folder.path(), "").await.stop().await;
    let rig = Rig::start(folder.path(), declared).await;
    assert_eq!(rig.control.tenant(&tenant("default")).unwrap().view.weight, 9);
    rig.stop().await;
    let rig = Rig::start(folder.path(), "").await;
    assert_eq!(rig.control.tenant(&tenant("default")).unwrap().view.weight, 1);
    assert!(rig.keyring.is_enabled(&tenant("default")));
    rig.put_tenant("default", TenantSpec { weight: 5, ..TenantSpec::default() }).await.unwrap();
    rig.stop().await;
    let refusal = Rig::refusal(folder.path(), declared).await;
    assert!(refusal.contains("tenant default is both"), "{refusal}");
}

#[tokio::test]
async fn another_secret_stops_the_start_on_a_database_of_an_earlier_release() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret.key");
    std::fs::write(&secret, [7; 32]).unwrap();
    let rig = Rig::of_earlier_release(folder.path(), &[7; 32]).await;
    rig.put_backend("default", "one", nowhere()).await.unwrap();
    rig.stop().await;
    let kept = std::fs::read(&secret).unwrap();
    std::fs::remove_file(&secret).unwrap();
    for attempt in 1..=2 {
        let refusal = Rig::refusal(folder.path(), "").await;
        assert!(
            refusal.contains("secret.key they were stored with is missing"),
            "attempt {attempt}: {refusal}"
        );
    }
    let refusal =
        Rig::refusal(folder.path(), r#"{"node": {"secret": "some-other-secret-long-enough"}}"#)
            .await;
    assert!(refusal.contains("default/one"), "{refusal}");
    std::fs::write(&secret, kept).unwrap();
    let rig = Rig::start(folder.path(), "").await;
    assert_eq!(rig.control.store().roots().await.unwrap().len(), 1, "the root key is stored");
    rig.stop().await;
    Rig::start(folder.path(), "").await.stop().await;
}

/// Its sessions are sealed with the root key, and its replicas trust each other by it.
#[tokio::test]
async fn a_database_with_tasks_alone_keeps_the_root_key_of_an_earlier_release() {
    let (folder, store) = (tempfile::tempdir().unwrap(), Meddled::start("a server").await);
    std::fs::write(folder.path().join("secret.key"), [7; 32]).unwrap();
    let secrets = RootSecrets::load(&Rig::config(folder.path(), "")).unwrap();
    let task = task_creation(task_record("t"), NodeName::new("a"));
    store.inner.write(&[task]).await.unwrap();
    let root = OpenRoot::open(&secrets, &*store).await.unwrap();
    assert_eq!(root.keys.peer, Keys::from_root(&[7; 32]).peer);
    root.record(&*store).await.unwrap();
    let again = OpenRoot::open(&secrets, &*store).await.unwrap();
    assert_eq!(again.keys.peer, root.keys.peer);
}

/// Two processes start on a new database. The first one is so fast that the second one finds its
/// records.
#[tokio::test]
async fn a_root_key_that_another_process_stores_meanwhile_is_used() {
    let (folder, store) = (tempfile::tempdir().unwrap(), Meddled::start("a server").await);
    let secrets = RootSecrets::load(&Rig::config(folder.path(), "")).unwrap();
    let elsewhere = Meddled::start("a server").await;
    let first = OpenRoot::open(&secrets, &*elsewhere).await.unwrap();
    store.add_root_late(elsewhere.inner.roots().await.unwrap().remove(0));
    let record = AuditRecord {
        id: [1; 16],
        at_us: 5,
        kind: AuditKind::Admin,
        tenant: None,
        body: "{}".to_owned(),
    };
    store.inner.append_audit(&[record]).await.unwrap();
    let second = OpenRoot::open(&secrets, &*store).await.unwrap();
    assert_eq!(second.keys.peer, first.keys.peer);
}
