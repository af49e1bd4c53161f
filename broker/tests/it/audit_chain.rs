//! The audit log as hash chains: an edit of the database is found. The number of replicas that
//! extend a chain makes no difference.

use std::path::Path;

use records::{AuditKind, AuditRecord};
use serde_json::{Value, json};
use storage::{AuditStore as _, ConfigStore as _, SqliteOptions, SqliteStore};
use testkit::{BrokerBuilder, FakeBackend, TestBroker, eventually};

use crate::builder;

/// First statements of an attacker who owns the file.
pub(crate) const UNGUARDED: &str = "DROP TRIGGER audit_is_not_changed; DROP TRIGGER audit_is_kept; DROP TRIGGER audit_is_chained; \
    DROP TRIGGER audit_chains_are_kept; DROP TRIGGER audit_chains_grow;";

/// Returns a broker alone on a file of this folder.
pub(crate) fn on(folder: &Path, audit: Value) -> BrokerBuilder {
    let url = format!("sqlite:{}", folder.join("broker.db").display());
    builder().single_process().config(json!({"storage": {"url": url}, "audit": audit}))
}

/// Edits the file of a running broker by hand.
pub(crate) fn edit(folder: &Path, sql: &str) {
    let script = "import sqlite3, sys; d = sqlite3.connect(sys.argv[1], timeout=30); d.executescript(sys.argv[2]); d.commit()";
    let file = folder.join("broker.db");
    let edited = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(file)
        .arg(sql)
        .output()
        .unwrap();
    assert!(edited.status.success(), "{sql}: {}", String::from_utf8_lossy(&edited.stderr));
}

/// Returns the numbers of the records of tenant `acme`, after so many changes of it.
pub(crate) async fn changed(broker: &TestBroker, times: usize) -> Vec<i64> {
    for weight in 1..=times {
        broker.admin().put_tenant("acme", json!({"weight": weight})).await;
    }
    let (_, answer) = broker.admin().get("/admin/v1/audit?tenant=acme&limit=1000").await;
    let numbers: Vec<i64> = answer["records"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| record["number"].as_i64().unwrap())
        .collect();
    assert_eq!(numbers.len(), times, "{answer}");
    numbers
}

/// Waits until the checkpoint file has this count of tenant `acme`.
async fn checkpointed(file: &Path, count: i64) {
    eventually("the checkpoint", || async {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let is_there = text.lines().any(|line| {
            let checkpoint: Value = serde_json::from_str(line).unwrap();
            checkpoint["tenant"] == "acme" && checkpoint["count"] == count
        });
        if is_there { Ok(()) } else { Err(text) }
    })
    .await;
}

/// An edit of the file, and the result of `audit verify` for the records `numbers` afterwards.
struct Attack {
    name: &'static str,
    sql: fn(&[i64]) -> String,
    /// Index of the record that is named; `None`: the chain as a whole.
    named: Option<usize>,
    message: &'static str,
    /// Set when only a checkpoint from outside reveals the edit.
    needs_file: bool,
}

const ATTACKS: [Attack; 7] = [
    Attack {
        name: "an edited record",
        sql: |numbers| {
            format!(
                "UPDATE audit SET body = replace(body, '\"ok\"', '\"no\"') WHERE number = {}",
                numbers[2]
            )
        },
        named: Some(2),
        message: "does not follow from its contents",
        needs_file: false,
    },
    Attack {
        name: "a removed record",
        sql: |numbers| format!("DELETE FROM audit WHERE number = {}", numbers[2]),
        named: Some(3),
        message: "earlier records are missing",
        needs_file: false,
    },
    Attack {
        name: "swapped records",
        sql: |numbers| {
            let (one, other) = (numbers[2], numbers[3]);
            format!(
                "CREATE TEMP TABLE kept AS SELECT number, body FROM audit;
                 UPDATE audit SET body = (SELECT body FROM kept WHERE kept.number = {one} + {other} - audit.number)
                 WHERE number IN ({one}, {other})"
            )
        },
        named: Some(2),
        message: "does not follow from its contents",
        needs_file: false,
    },
    Attack {
        name: "a log that was cut off",
        sql: |numbers| {
            format!("DELETE FROM audit WHERE tenant = 'acme' AND number > {}", numbers[3])
        },
        named: Some(3),
        message: "the chain ends after 4 records",
        needs_file: false,
    },
    Attack {
        name: "a log that was cut off, and its head with it",
        sql: |numbers| {
            format!(
                "DELETE FROM audit WHERE tenant = 'acme' AND number > {0};
                 UPDATE audit_chains SET length = 4, head = (SELECT chain_hash FROM audit WHERE number = {0}) WHERE chain = 'acme'",
                numbers[3]
            )
        },
        named: Some(3),
        message: "counts 6",
        needs_file: false,
    },
    Attack {
        name: "a log that was cut off, and its head and its checkpoint with it",
        sql: |numbers| {
            format!(
                "DELETE FROM audit WHERE tenant = 'acme' AND number > {0};
                 UPDATE audit_chains SET length = 4, head = (SELECT chain_hash FROM audit WHERE number = {0}),
                     checkpoint_count = 0, checkpoint_head = NULL, checkpoint_signature = NULL WHERE chain = 'acme'",
                numbers[3]
            )
        },
        named: Some(3),
        message: "counts 6",
        needs_file: true,
    },
    Attack {
        name: "a beginning that was removed as the retention would",
        sql: |numbers| {
            format!(
                "UPDATE audit_chains SET start_position = 2, start_hash = (SELECT chain_hash FROM audit WHERE number = {0})
                     WHERE chain = 'acme';
                 DELETE FROM audit WHERE tenant = 'acme' AND number <= {0}",
                numbers[1]
            )
        },
        named: None,
        message: "the beginning of the chain was not signed",
        needs_file: false,
    },
];

#[tokio::test]
async fn s15_manual_changes_of_the_database_file_are_detected_and_named() {
    for attack in ATTACKS {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("checkpoints.jsonl");
        let broker =
            on(folder.path(), json!({"checkpoint_interval": "1s", "checkpoint_file": file}))
                .start()
                .await;
        let numbers = changed(&broker, 6).await;
        checkpointed(&file, 6).await;
        let kept = ["audit", "verify", "--checkpoint", file.to_str().unwrap()];
        for command in [&kept[..2], &kept[..]] {
            let sound = broker.cli(command).await;
            assert!(
                sound.code == Some(0) && sound.stdout.contains("ok: "),
                "{}: {sound:?}",
                attack.name
            );
        }
        edit(folder.path(), &format!("{UNGUARDED} {}", (attack.sql)(&numbers)));
        let which = match attack.named {
            Some(index) => {
                format!(
                    "record {} of the chain of tenant acme does not pass the verification",
                    numbers[index]
                )
            }
            None => "the chain of tenant acme does not pass the verification".to_owned(),
        };
        for command in [&kept[..2], &kept[..]].into_iter().skip(usize::from(attack.needs_file)) {
            let found = broker.cli(command).await;
            assert_eq!(found.code, Some(1), "{}: {found:?}", attack.name);
            assert!(
                found.stderr.contains(&which) && found.stderr.contains(attack.message),
                "{}: {found:?}",
                attack.name
            );
        }
    }
}

#[tokio::test]
async fn s15_a_record_outside_the_chains_and_a_missing_chain_are_detected() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("checkpoints.jsonl");
    let broker = on(folder.path(), json!({"checkpoint_interval": "1s", "checkpoint_file": file}))
        .start()
        .await;
    changed(&broker, 2).await;
    checkpointed(&file, 2).await;
    edit(
        folder.path(),
        &format!(
            "{UNGUARDED} INSERT INTO audit (number, id, at_us, kind, tenant, body) VALUES (4711, randomblob(16), 1, 'admin', 'acme', '{{}}')"
        ),
    );
    let found = broker.cli(&["audit", "verify"]).await;
    assert!(
        found.code == Some(1)
            && found.stderr.contains("record 4711")
            && found.stderr.contains("belongs to no chain"),
        "{found:?}"
    );
    edit(
        folder.path(),
        "DELETE FROM audit WHERE number = 4711; DELETE FROM audit WHERE tenant = 'acme'; DELETE FROM audit_chains WHERE chain = 'acme'",
    );
    let inside = broker.cli(&["audit", "verify", "--json"]).await;
    let answer: Value =
        serde_json::from_str(&inside.stdout).unwrap_or_else(|_| panic!("{inside:?}"));
    assert_eq!(
        (inside.code, &answer["verdict"]),
        (Some(0), &json!("ok")),
        "nothing in the database says that there was a chain"
    );
    let outside = broker.cli(&["audit", "verify", "--checkpoint", file.to_str().unwrap()]).await;
    assert!(outside.code == Some(1) && outside.stderr.contains("tenant acme"), "{outside:?}");
    let wrong = broker.cli(&["audit", "verify", "--checkpoint", "/dev/null"]).await;
    assert!(wrong.code == Some(64) && wrong.stderr.contains("no checkpoint"), "{wrong:?}");
}

#[tokio::test]
async fn s15_an_edited_chain_gets_no_further_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = on(folder.path(), json!({"checkpoint_interval": "24h"})).start().await;
    let numbers = changed(&broker, 4).await;
    edit(
        folder.path(),
        &format!("{UNGUARDED} UPDATE audit SET at_us = at_us - 1 WHERE number = {}", numbers[1]),
    );
    broker.terminate().await;
    let log = broker.log();
    assert!(
        log.contains("the audit log was changed in the database")
            && log.contains(&format!("number={}", numbers[1])),
        "{log}"
    );
    broker.restart().await;
    let (_, chains) = broker.admin().get("/admin/v1/audit/chains").await;
    let acme = chains["chains"]
        .as_array()
        .unwrap()
        .iter()
        .find(|chain| chain["tenant"] == "acme")
        .unwrap();
    assert_eq!((&acme["count"], &acme["covered"]), (&json!(4), &json!(0)), "{chains}");
    assert_eq!(broker.cli(&["audit", "verify"]).await.code, Some(1));
}

#[tokio::test]
async fn s15_a_drain_signs_the_newest_records_and_the_log_carries_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = on(folder.path(), json!({"checkpoint_interval": "24h"})).start().await;
    changed(&broker, 3).await;
    broker.terminate().await;
    let log = folder.path().join("broker.log");
    std::fs::write(&log, broker.log()).unwrap();
    broker.restart().await;
    let found = broker.cli(&["audit", "verify", "--checkpoint", log.to_str().unwrap()]).await;
    assert_eq!(found.code, Some(0), "{found:?}");
    let (_, chains) = broker.admin().get("/admin/v1/audit/chains").await;
    let acme = chains["chains"]
        .as_array()
        .unwrap()
        .iter()
        .find(|chain| chain["tenant"] == "acme")
        .unwrap();
    assert_eq!((&acme["count"], &acme["covered"]), (&json!(3), &json!(3)), "{chains}");
    for (query, field) in [
        ("checkpoint=x", "checkpoint"),
        ("after=x", "after"),
        ("limit=0", "limit"),
        ("what=1", "what"),
    ] {
        let (status, problem) =
            broker.admin().get(&format!("/admin/v1/audit/verify?{query}")).await;
        assert_eq!((status, problem["field"].as_str()), (400, Some(field)), "{problem}");
    }
}

#[tokio::test]
async fn s15_a_shorter_retention_is_recorded_and_removes_nothing_yet() {
    let folder = tempfile::tempdir().unwrap();
    let mut before = on(folder.path(), json!({"retain": "720h"})).start().await;
    before
        .admin()
        .wait_metric(
            "mcp_store_seconds_count",
            &[("operation", "list_older_audit_chains")],
            |count| count >= 1.0,
        )
        .await;
    before.terminate().await;
    drop(before);
    let ten_hours_ago = now_us() - 10 * 3_600_000_000;
    let old = AuditRecord {
        id: [7; 16],
        at_us: ten_hours_ago,
        kind: AuditKind::Call,
        tenant: Some("acme".into()),
        body: r#"{"at":"","kind":"call","principal":"ada","action":"tools/call","outcome":"ok","request_id":"0","node":"n"}"#.into(),
    };
    let store =
        SqliteStore::open(&SqliteOptions { path: folder.path().join("broker.db"), migrate: false })
            .await
            .unwrap();
    store.append_audit(&[old]).await.unwrap();
    store.close().await;
    let after = on(folder.path(), json!({"retain": "1h"})).start().await;
    let (recorded, kept) = eventually("the record of the change", || async {
        let (_, answer) = after.admin().get("/admin/v1/audit?limit=1000").await;
        let records = answer["records"].as_array().unwrap().clone();
        let of = |action: &str| records.iter().find(|record| record["action"] == action).cloned();
        of("audit.retain").map(|recorded| (recorded, of("tools/call"))).ok_or(answer)
    })
    .await;
    assert_eq!(recorded["principal"], "configuration");
    assert!(recorded["target"].as_str().unwrap().starts_with("720h to 1h, from "), "{recorded}");
    assert!(kept.is_some(), "it is older than an hour, and kept for now");
    after
        .admin()
        .wait_metric(
            "mcp_store_seconds_count",
            &[("operation", "list_older_audit_chains")],
            |count| count >= 2.0,
        )
        .await;
    let (_, answer) = after.admin().get("/admin/v1/audit?limit=1000&kind=call").await;
    assert_eq!(answer["records"].as_array().unwrap().len(), 1, "{answer}");
    assert_eq!(after.cli(&["audit", "verify"]).await.code, Some(0));
}

fn now_us() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(now.as_micros()).unwrap()
}

#[tokio::test]
async fn s15_two_replicas_extend_one_chain_at_the_same_time() {
    const CHANGES: usize = 12;
    let backend = FakeBackend::echo().await;
    let cluster = builder()
        .config(json!({"audit": {"calls": "metadata", "checkpoint_interval": "1s"}}))
        .auth_required()
        .backend("default", "b", backend.spec())
        .cluster(2)
        .start()
        .await;
    let key = cluster.operator().create_key("default").await;
    let work = (0..2).map(|replica| {
        let (admin, client) =
            (cluster.admin(replica), cluster.client_of(replica, "/mcp").bearer(&key));
        async move {
            let client = client.connected(json!({})).await;
            for weight in 0..CHANGES {
                admin.put_tenant("acme", json!({"weight": weight + 1})).await;
                client.call("b__echo", json!({"n": weight})).await;
            }
        }
    });
    futures_util::future::join_all(work).await;
    let verified = async |replica: usize, tenant: &str| {
        let (status, verdict) = cluster
            .admin(replica)
            .get(&format!("/admin/v1/audit/verify?limit=1000&tenant={tenant}"))
            .await;
        assert_eq!(status, 200, "{verdict}");
        verdict
    };
    for (tenant, least) in [("acme", 2 * CHANGES), ("default", 2 * CHANGES)] {
        eventually("all records", || async {
            let verdict = verified(0, tenant).await;
            assert!(verdict["misfit"].is_null(), "{verdict}");
            if verdict["records"].as_u64().unwrap() >= least as u64 { Ok(()) } else { Err(verdict) }
        })
        .await;
    }
    // Either replica signed the newest record, and they agree.
    eventually("a checkpoint of all", || async {
        let (_, chains) = cluster.admin(1).get("/admin/v1/audit/chains").await;
        let all = chains["chains"]
            .as_array()
            .unwrap()
            .iter()
            .all(|chain| chain["covered"] == chain["count"]);
        if all { Ok(()) } else { Err(chains) }
    })
    .await;
    let number = cluster
        .sql("SELECT number FROM audit WHERE tenant = 'acme' ORDER BY number LIMIT 1 OFFSET 5")
        .await;
    let number: i64 = number.trim().parse().unwrap();
    let guarded = format!(
        "DO $$ BEGIN UPDATE audit SET at_us = 1 WHERE number = {number}; RAISE 'it was done'; EXCEPTION WHEN OTHERS THEN IF SQLERRM = 'it was done' THEN RAISE; END IF; END $$"
    );
    cluster.sql(&guarded).await;
    assert!(verified(1, "acme").await["misfit"].is_null());
    cluster.sql(&format!("ALTER TABLE audit DISABLE TRIGGER is_kept; UPDATE audit SET at_us = at_us - 1 WHERE number = {number}")).await;
    for replica in 0..2 {
        assert_eq!(verified(replica, "acme").await["misfit"]["number"], number);
    }
}

#[tokio::test]
async fn s15_the_database_chains_a_record_of_a_replica_without_chain_support() {
    let backend = FakeBackend::echo().await;
    let cluster = builder().backend("default", "b", backend.spec()).cluster(1).start().await;
    let insert = |byte: &str| {
        format!(
            "INSERT INTO audit (id, at_us, kind, tenant, body) SELECT * FROM unnest(ARRAY[decode(repeat('{byte}', 16), 'hex')], \
             ARRAY[5::bigint], ARRAY['call'], ARRAY['acme'], ARRAY['{{}}'::bytea]) ON CONFLICT (id) DO NOTHING"
        )
    };
    for byte in ["01", "02", "01", "03"] {
        cluster.sql(&insert(byte)).await;
    }
    cluster.operator().put_tenant("acme", json!({})).await;
    let (_, verdict) = cluster.operator().get("/admin/v1/audit/verify?tenant=acme").await;
    assert_eq!((&verdict["records"], verdict.get("misfit")), (&json!(4), None), "{verdict}");
}
