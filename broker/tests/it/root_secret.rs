//! A change of the root secret: what was stored and what is running goes on, and the previous secret
//! then opens nothing.

use std::path::Path;

use serde_json::json;
use testkit::{FakeBackend, TestBroker, TestCluster, Topology, eventually};

use crate::{
    accounts::{Browser, World, call},
    builder, initialize_body,
};

const FIRST: &str = "the-first-secret-of-a-node";
const SECOND: &str = "the-second-secret-of-a-node";

fn secrets(current: &str, previous: Option<&str>) -> Vec<(String, String)> {
    let variable =
        |name: &str, value: &str| (format!("MCP_BROKER__NODE__{name}"), value.to_owned());
    let previous = previous.map(|secret| variable("SECRET_PREVIOUS", secret));
    [variable("SECRET", current)].into_iter().chain(previous).collect()
}

/// Reads which seal keys sealed the values of a database, and the number of its root keys.
const SEALED: &str = "import sqlite3
d = sqlite3.connect('file:broker.db?mode=ro', uri=True)
keys = d.execute('''SELECT substr(settings, 1, 1) FROM backends UNION ALL SELECT substr(sealed, 1, 1) FROM upstream_grants
    UNION ALL SELECT substr(sealed, 1, 1) FROM upstream_secrets WHERE kind IN ('client', 'key')''').fetchall()
print(sorted(key[0][0] for key in keys), d.execute('SELECT count(*) FROM root_keys').fetchone()[0])";

async fn sealed(folder: &Path) -> String {
    let mut python = tokio::process::Command::new("python3");
    let output = python.args(["-c", SEALED]).current_dir(folder).output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

async fn restart(broker: &mut TestBroker, env: &[(String, String)]) -> Result<(), String> {
    broker.terminate().await;
    broker.try_restart(env).await
}

#[tokio::test]
async fn a_new_root_secret_keeps_keys_and_accounts_and_invalidates_the_old_one() {
    let world = World::start(3_600).await;
    let plain = FakeBackend::echo().await;
    let mut broker = builder()
        .on(Topology::Sqlite)
        .single_process()
        .config(json!({"node": {"secret": FIRST}}))
        .start()
        .await;
    let admin = broker.admin();
    assert_eq!(admin.put_backend("default", "b", &world.spec()).await.0, 201);
    let mut spec = plain.spec();
    spec["credentials"] = json!({"bearer": "a-bearer-of-the-broker"});
    admin.put_ready_backend("default", "plain", &spec).await;
    admin.put_tenant("acme", json!({})).await;
    let key = admin.create_key("acme").await;
    assert_eq!(Browser::new(&broker).connect().await, 200);
    works(&broker, &plain, &key).await;
    assert_eq!(sealed(broker.folder()).await, "[1, 1, 1, 1] 1");

    restart(&mut broker, &secrets(SECOND, Some(FIRST))).await.unwrap();
    works(&broker, &plain, &key).await;
    eventually("all credentials to be sealed with the new key", || async {
        let found = sealed(broker.folder()).await;
        if found == "[2, 2, 2, 2] 1" { Ok(()) } else { Err(found) }
    })
    .await;

    let refused = restart(&mut broker, &secrets(FIRST, None)).await.unwrap_err();
    assert!(refused.contains("no root secret opens the root key"), "{refused}");
    broker.try_restart(&secrets(SECOND, None)).await.unwrap();
    works(&broker, &plain, &key).await;
}

/// Checks the key of a client, the account of a user and the credentials of the broker.
async fn works(broker: &TestBroker, plain: &FakeBackend, key: &str) {
    let client = broker.client("/mcp").bearer(key);
    assert_eq!(client.post(initialize_body("2025-11-25")).await.status, 200);
    let client = broker.connected(json!({})).await;
    client.wait_tools(&["b__echo", "plain__echo"]).await;
    for tool in ["b__echo", "plain__echo"] {
        let result = call(&client, tool).await;
        assert_ne!(result["isError"], true, "{result}");
    }
    let last = plain.recorded().pop().expect("a call");
    assert_eq!(last.header("authorization"), Some("Bearer a-bearer-of-the-broker"));
}

async fn lists(broker: &TestBroker) {
    let client = broker.connected(json!({})).await;
    client.wait_tools(&["b__echo"]).await;
}

#[tokio::test]
async fn the_secret_file_is_replaced_by_a_new_one_and_by_a_configured_one() {
    let backend = FakeBackend::echo().await;
    let mut broker = builder()
        .on(Topology::Sqlite)
        .single_process()
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let file = broker.folder().join("secret.key");
    lists(&broker).await;
    broker.terminate().await;
    let first = std::fs::read(&file).unwrap();
    std::fs::rename(&file, file.with_extension("key.previous")).unwrap();
    broker.try_restart(&[]).await.unwrap();
    lists(&broker).await;
    let second = std::fs::read(&file).unwrap();
    assert_ne!(first, second);
    broker.terminate().await;
    std::fs::rename(&file, file.with_extension("key.previous")).unwrap();
    broker.try_restart(&secrets(SECOND, None)).await.unwrap();
    lists(&broker).await;
    assert!(sealed(broker.folder()).await.ends_with(" 1"), "one root key is left");
    // Neither file opens the database any more.
    let refused = restart(&mut broker, &[]).await.unwrap_err();
    assert!(refused.contains("the secret.key that opens it is missing"), "{refused}");
    assert!(!file.exists(), "a new one would hide that the old one is missing");
    for of_before in [first, second] {
        std::fs::write(&file, of_before).unwrap();
        let refused = broker.try_restart(&[]).await.unwrap_err();
        assert!(refused.contains("no root secret opens the root key"), "{refused}");
    }
}

async fn status(cluster: &TestCluster, replica: usize, key: &str) -> u16 {
    let body = initialize_body("2025-11-25");
    cluster.client_of(replica, "/mcp").bearer(key).post(body).await.status
}

/// Checks that each replica opens what the other stored, and forwards to it.
async fn share(cluster: &TestCluster, backend: &FakeBackend, round: usize) {
    for (here, there) in [(0, 1), (1, 0)] {
        let name = format!("b{round}{here}");
        let (status_of_put, view) =
            cluster.admin(here).put_backend("default", &name, &backend.spec()).await;
        assert_eq!(status_of_put, 201, "{view}");
        let key = cluster.admin(here).create_key("default").await;
        eventually("the key and the backend at the other replica", || async {
            let backend = cluster.admin(there).backend("default", &name).await;
            let found = (status(cluster, there, &key).await, backend["state"].clone());
            if found == (200, json!("ready")) { Ok(()) } else { Err(found) }
        })
        .await;
        // The session lives at one replica, and the other forwards to it.
        let client = cluster.client_of(here, &format!("/mcp/{name}")).connected(json!({})).await;
        for client in [&client, &cluster.at(there, &client)] {
            let result = call(client, "echo").await;
            assert_ne!(result["isError"], true, "{result}");
        }
    }
}

#[tokio::test]
async fn o_12_replicas_change_the_root_secret_one_after_the_other() {
    let backend = FakeBackend::echo().await;
    let secret = json!({"node": {"secret": FIRST}});
    let mut cluster = builder().config(secret).cluster(2).start().await;
    share(&cluster, &backend, 0).await;
    for (round, env) in [secrets(SECOND, Some(FIRST)), secrets(SECOND, None)].iter().enumerate() {
        for replica in [0, 1] {
            cluster.terminate(replica).await;
            cluster.try_restart(replica, env).await.unwrap();
            share(&cluster, &backend, 10 * round + replica + 1).await;
        }
    }
    eventually("one root key, and the newest seal key everywhere", || async {
        let numbers = "SELECT count(*) FROM backends WHERE substr(settings, 1, 1) <> '\\x02'";
        let counts = format!("SELECT ({numbers}), (SELECT count(*) FROM root_keys)");
        let found = cluster.sql(&counts).await;
        if found.contains("0|1") { Ok(()) } else { Err(found) }
    })
    .await;
    cluster.terminate(1).await;
    let refused = cluster.try_restart(1, &secrets(FIRST, None)).await.unwrap_err();
    assert!(refused.contains("no root secret opens the root key"), "{refused}");
}
