//! Tests of conflicts between rows: leases and claims that disagree, rows and texts that spoil
//! others, secrets in messages.

use std::{str::FromStr, time::Duration};

use protocol::ids::{BackendId, PrincipalId, TaskId, TenantId};
use records::{
    AdminChange, NodeName, RevocationRecord, RevokedSubject, SessionClaimOutcome,
    SubscriptionRecord, TaskAudience, TaskStatus, TaskStep, WriteOp,
};
use sqlx::{ConnectOptions as _, Executor as _, postgres::PgConnectOptions};

use super::{
    AT_MOST, PostgresOptions, PostgresStore, RECOVERS_WITHIN, create, identity, key, on_server,
    open_session, options,
};
use crate::{ConfigStore, DurableStore, NodeStore, SessionStore, TaskStore};

#[tokio::test]
async fn a_concurrent_renewal_and_claim_have_one_winner() {
    let (server, store) = on_server().await;
    let (a, b) = (NodeName::new("a"), NodeName::new("b"));
    store.join(&b, None, AT_MOST).await.unwrap();
    store.join(&a, None, AT_MOST).await.unwrap();
    store.write(&[open_session(1)]).await.unwrap();
    // A renewal is in progress and has not committed.
    let mut renewing = PgConnectOptions::from_str(&server.url()).unwrap().connect().await.unwrap();
    server
        .sql(&server.url(), "UPDATE nodes SET lease_until_us = now_us() - 1 WHERE node = 'a'")
        .await;
    renewing
        .execute("BEGIN; UPDATE nodes SET lease_until_us = now_us() + 10000000 WHERE node = 'a'")
        .await
        .unwrap();
    let (key, identity) = (key(1), identity());
    let claim = store.claim_session(&key, &identity, &b, Duration::from_secs(3_600));
    let (claim, ()) = tokio::join!(claim, async {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        testkit::eventually("the claim to wait", async || {
            match server.sql(&server.url(), waiting).await.as_str() {
                "0" => Err(()),
                _ => Ok(()),
            }
        })
        .await;
        renewing.execute("COMMIT").await.unwrap();
    });
    assert!(
        matches!(claim.unwrap(), SessionClaimOutcome::OwnedElsewhere(owner) if owner.node == a),
        "the renewal came first"
    );
}

#[tokio::test]
async fn f_10_an_unreadable_row_does_not_hide_the_others() {
    let (server, store) = on_server().await;
    store.write(&[open_session(1), open_session(2), create(1), create(2)]).await.unwrap();
    server.sql(&server.url(), "UPDATE sessions SET tenant = 'Not A Name' WHERE key = (SELECT key FROM sessions LIMIT 1)").await;
    server.sql(&server.url(), "UPDATE tasks SET status = 'lost' WHERE task = 't1'").await;
    assert_eq!(store.list_sessions(None, None, 10).await.unwrap().len(), 1);
    assert_eq!(store.list_tasks(None, None, None, 10).await.unwrap().len(), 1);
    assert_eq!(store.task(&TaskId::new("t1")).await.unwrap(), None);
    assert_eq!(store.unreadable_rows(), 3);
}

#[tokio::test]
async fn f_10_an_unreadable_row_does_not_shorten_a_page() {
    let (server, store) = on_server().await;
    store.write(&[open_session(1), create(1), create(2), create(3)]).await.unwrap();
    server.sql(&server.url(), "UPDATE tasks SET status = 'lost' WHERE task = 't1'").await;
    let page = store.list_tasks(None, None, None, 2).await.unwrap();
    let record = &page[0].record;
    let audience = TaskAudience {
        tenant: record.tenant.clone(),
        principal: record.principal.clone(),
        session: record.session,
    };
    let visible = store.tasks_visible_to(&audience, None, 2).await.unwrap();
    for page in [page, visible] {
        let names: Vec<_> = page.iter().map(|task| task.record.task.as_str()).collect();
        assert_eq!(names, ["t2", "t3"]);
    }
}

#[tokio::test]
async fn f_10_a_revocation_of_an_unknown_kind_does_not_hide_the_others() {
    let (server, store) = on_server().await;
    crate::conformance::credentials::revocations_are_kept_and_replaced(&store).await.unwrap();
    let insert = "INSERT INTO revocations (tenant, kind, subject, issued_before_us, created_at_us) VALUES ('acme', 'later', 'x', 1, 1)";
    server.sql(&server.url(), insert).await;
    assert_eq!(store.revocations().await.unwrap().len(), 1);
    assert_eq!(store.unreadable_rows(), 1);
}

#[tokio::test]
async fn long_and_strange_texts_are_kept() {
    let (_server, store) = on_server().await;
    let long = format!("one+file:///{}\0\u{1f600}", "x".repeat(100_000));
    store.write(&[open_session(1), create(1)]).await.unwrap();
    let subscription = SubscriptionRecord {
        exposed_uri: long.clone(),
        backend: BackendId::parse("one").unwrap(),
        uri: long.clone(),
    };
    let step = TaskStep::Delegated { backend_task: "\0".into(), link: vec![0] };
    let task = TaskId::new("t1");
    let batch = [
        WriteOp::Subscribe { key: key(1), epoch: 1, subscription: subscription.clone() },
        WriteOp::AdvanceTask { task: task.clone(), epoch: 1, step: step.clone() },
    ];
    store.write(&batch).await.unwrap();
    let message = Some("a\0b".to_owned());
    let (status, outcome) = (TaskStatus::Failed, None);
    store
        .write(&[WriteOp::EndTask {
            task: task.clone(),
            epoch: Some(1),
            status,
            message: message.clone(),
            outcome,
        }])
        .await
        .unwrap();
    assert_eq!(store.subscription_counts(None).await.unwrap()[0].uri, long);
    let stored = store.full_task(&task).await.unwrap().unwrap().stored;
    assert_eq!((stored.message, stored.step), (message, step));
}

#[tokio::test]
async fn no_secret_is_in_debug_output_or_errors() {
    let (server, store) = on_server().await;
    let url = server.url().replace("postgres@", "postgres:hunter2@");
    let options = PostgresOptions { url: url.clone(), ..options(&server) };
    let secretive = PostgresStore::open(&options).await.unwrap();
    for shown in [format!("{options:?}"), format!("{secretive:?}")] {
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    drop(store);
    for url in [
        url.replace("127.0.0.1", "127.0.0.1:port"),
        format!("{url}?sslmode=hunter2"),
        format!("{url}?sslrootcert=/hunter2&sslmode=verify-full"),
        url.replace(&server.port().to_string(), "1"),
        url.replace("postgres:", "stranger:").replacen("stranger:", "postgres:", 1),
        url.replace("/postgres", "/absent"),
    ] {
        let refusal = PostgresStore::open(&PostgresOptions {
            url: url.clone(),
            connect_timeout: RECOVERS_WITHIN,
            ..options.clone()
        })
        .await;
        if let Err(refusal) = refusal {
            assert!(!refusal.to_string().contains("hunter2"), "{refusal}");
        }
    }
}

#[tokio::test]
async fn f_28_the_servers_clock_stamps_a_revocation() {
    let (server, store) = on_server().await;
    let acme = TenantId::parse("acme").unwrap();
    server
        .sql(
            &server.url(),
            "INSERT INTO tenants (tenant, settings, created_at_us, updated_at_us) VALUES ('acme', '', 1, 1);
             INSERT INTO revocations (tenant, kind, subject, issued_before_us, created_at_us) VALUES ('acme', 'jti', 'old build', 1, 1)",
        )
        .await;
    let subject = RevokedSubject::Principal(PrincipalId::new("ann"));
    let ahead = i64::MAX / 2;
    let record = RevocationRecord {
        tenant: acme,
        subject,
        issued_before_us: ahead,
        created_at_us: ahead,
        stored_at_us: 0,
    };
    store.apply(AdminChange::PutRevocation(&record), None).await.unwrap();
    let now: i64 = server.sql(&server.url(), "SELECT now_us()").await.parse().unwrap();
    for record in store.revocations().await.unwrap() {
        assert!((now - 600_000_000..=now).contains(&record.stored_at_us), "{record:?}");
    }
}
