//! Behaviours of every [`DurableStore`] for sessions: fenced writes, and takeovers.

use std::time::Duration;

use protocol::ids::PrincipalId;
use records::{
    AdminChange, SessionClaimOutcome, SessionIdentity, SessionKey, SessionRecord, StoredSession,
    WriteOp, WriteOutcome,
};

use super::{
    LONG, Outcome, backend, config::tenant_record, done, endpoint, identity, node, open, session,
    session_record, subscription, tenant, write,
};
use crate::{DurableStore, StoreError};

pub async fn an_opened_session_is_kept_as_given(store: &dyn DurableStore) -> Outcome {
    store.join(&node("a"), Some("there"), LONG).await?;
    let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    let whole = SessionRecord {
        agreement: bytes.clone(),
        state: bytes.clone(),
        links: bytes,
        ..session_record(1)
    };
    let sparse = SessionRecord {
        identity: SessionIdentity { endpoint: Some(endpoint("one")), ..identity("acme") },
        api_key: None,
        state: Vec::new(),
        ..session_record(2)
    };
    for record in [&whole, &sparse] {
        done(store, open(record.clone(), "a")).await?;
        let stored = one(store, &record.key).await?;
        assert_eq!(&stored.record, record);
        assert_eq!((stored.epoch, stored.subscriptions), (1, 0));
        assert_eq!(stored.created_at_us, stored.seen_at_us);
        let owner = stored.owner.expect("it was opened by one");
        assert_eq!((owner.node, owner.address.as_deref()), (node("a"), Some("there")));
        assert!(owner.remaining_lease > LONG / 2);
    }
    Ok(())
}

pub async fn opening_a_session_may_be_repeated_only_by_its_owner(
    store: &dyn DurableStore,
) -> Outcome {
    done(store, open(session_record(1), "a")).await?;
    assert_eq!(
        write(store, open(session_record(1), "a")).await?,
        WriteOutcome::Done,
        "as after a lost answer"
    );
    assert_eq!(write(store, open(session_record(1), "b")).await?, WriteOutcome::Fenced);
    let stored = one(store, &session(1)).await?;
    assert_eq!((stored.owner.expect("a").node, stored.epoch), (node("a"), 1));
    Ok(())
}

pub async fn many_sessions_open_in_one_batch(store: &dyn DurableStore) -> Outcome {
    let batch: Vec<WriteOp> = (0..200).map(|number| open(session_record(number), "a")).collect();
    assert_eq!(store.write(&batch).await?, vec![WriteOutcome::Done; 200]);
    assert_eq!(store.list_sessions(None, None, 1_000).await?.len(), 200);
    assert_eq!(store.write(&[]).await?, []);
    Ok(())
}

pub async fn an_update_replaces_only_the_given_parts(store: &dyn DurableStore) -> Outcome {
    done(store, open(session_record(1), "a")).await?;
    done(store, open(session_record(2), "a")).await?;
    done(store, update(1, 1, Some(b"new state"), None)).await?;
    done(store, update(1, 1, None, Some(b"new links"))).await?;
    done(store, update(1, 1, None, None)).await?;
    let expected = SessionRecord {
        state: b"new state".to_vec(),
        links: b"new links".to_vec(),
        ..session_record(1)
    };
    assert_eq!(one(store, &session(1)).await?.record, expected);
    assert_eq!(one(store, &session(2)).await?.record, session_record(2));
    Ok(())
}

pub async fn an_update_stores_the_time_of_the_last_client_message(
    store: &dyn DurableStore,
) -> Outcome {
    done(store, open(session_record(1), "a")).await?;
    done(
        store,
        WriteOp::UpdateSession { key: session(1), epoch: 1, idle: LONG, state: None, links: None },
    )
    .await?;
    let stored = one(store, &session(1)).await?;
    let hour_us = 3_600_000_000;
    assert!(
        stored.seen_at_us >= stored.created_at_us - hour_us
            && stored.seen_at_us < stored.created_at_us - hour_us / 2,
        "{stored:?}"
    );
    Ok(())
}

pub async fn writes_without_the_right_epoch_change_nothing(store: &dyn DurableStore) -> Outcome {
    done(store, open(session_record(1), "a")).await?;
    done(
        store,
        WriteOp::Subscribe {
            key: session(1),
            epoch: 1,
            subscription: subscription("file:///kept"),
        },
    )
    .await?;
    let before = one(store, &session(1)).await?;
    for (number, epoch) in [(1, 0), (1, 2), (9, 1)] {
        for attempt in owners_writes(number, epoch) {
            let shown = format!("{attempt:?}");
            assert_eq!(write(store, attempt).await?, WriteOutcome::Fenced, "{shown}");
        }
    }
    assert_eq!(store.list_sessions(None, None, 10).await?, [before]);
    assert_eq!(store.subscription_counts(None).await?[0].uri, "file:///kept");
    Ok(())
}

pub async fn a_fenced_write_does_not_fail_its_batch(store: &dyn DurableStore) -> Outcome {
    done(store, open(session_record(1), "a")).await?;
    done(store, open(session_record(2), "a")).await?;
    let batch = [
        update(2, 7, Some(b"never"), None),
        update(1, 1, Some(b"new"), None),
        WriteOp::EndSession { key: session(9), epoch: 1 },
        open(session_record(3), "a"),
    ];
    assert_eq!(
        store.write(&batch).await?,
        [WriteOutcome::Fenced, WriteOutcome::Done, WriteOutcome::Fenced, WriteOutcome::Done]
    );
    assert_eq!(one(store, &session(1)).await?.record.state, b"new");
    assert_eq!(one(store, &session(2)).await?.record, session_record(2));
    assert_eq!(one(store, &session(3)).await?.record, session_record(3));
    Ok(())
}

pub async fn an_ended_session_is_removed(store: &dyn DurableStore) -> Outcome {
    store.join(&node("b"), None, LONG).await?;
    done(store, open(session_record(1), "a")).await?;
    done(
        store,
        WriteOp::Subscribe { key: session(1), epoch: 1, subscription: subscription("file:///x") },
    )
    .await?;
    let end = WriteOp::EndSession { key: session(1), epoch: 1 };
    done(store, end.clone()).await?;
    assert_eq!(store.list_sessions(None, None, 10).await?, []);
    assert_eq!(store.subscription_counts(None).await?, []);
    assert_eq!(
        store.claim_session(&session(1), &identity("acme"), &node("b"), LONG).await?,
        SessionClaimOutcome::NotFound
    );
    assert_eq!(write(store, end).await?, WriteOutcome::Fenced);
    assert!(!store.apply(AdminChange::EndSession(&session(1)), None).await?);
    Ok(())
}

pub async fn a_live_owner_keeps_its_session(store: &dyn DurableStore) -> Outcome {
    store.join(&node("a"), Some("there"), LONG).await?;
    store.join(&node("b"), None, LONG).await?;
    done(store, open(session_record(1), "a")).await?;
    let claim = store.claim_session(&session(1), &identity("acme"), &node("b"), LONG).await?;
    let SessionClaimOutcome::OwnedElsewhere(owner) = claim else { panic!("{claim:?}") };
    assert_eq!((owner.node, owner.address.as_deref()), (node("a"), Some("there")));
    assert!(owner.remaining_lease > LONG / 2);
    done(store, update(1, 1, Some(b"still mine"), None)).await
}

pub async fn a_session_of_a_dead_owner_can_be_claimed(store: &dyn DurableStore) -> Outcome {
    store.join(&node("lapsed"), None, LONG).await?;
    store.join(&node("left"), None, LONG).await?;
    store.join(&node("b"), None, LONG).await?;
    for (number, owner) in [(1, "lapsed"), (2, "left"), (3, "never-joined")] {
        done(store, open(session_record(number), owner)).await?;
    }
    store.renew_lease(&node("lapsed"), Duration::ZERO, false).await?;
    store.leave(&node("left")).await?;
    for number in 1..=3 {
        let created_at_us = one(store, &session(number)).await?.created_at_us;
        let claim =
            store.claim_session(&session(number), &identity("acme"), &node("b"), LONG).await?;
        let expected = SessionClaimOutcome::Acquired {
            record: session_record(number),
            epoch: 2,
            created_at_us,
            subscriptions: Vec::new(),
        };
        assert_eq!(claim, expected);
        assert_eq!(
            write(store, update(number, 1, Some(b"late"), None)).await?,
            WriteOutcome::Fenced,
            "the owner before is fenced off"
        );
        done(store, update(number, 2, Some(b"mine"), None)).await?;
        assert_eq!(one(store, &session(number)).await?.owner.expect("b").node, node("b"));
    }
    Ok(())
}

pub async fn an_owner_with_a_lapsed_lease_keeps_an_unclaimed_session(
    store: &dyn DurableStore,
) -> Outcome {
    store.join(&node("a"), None, LONG).await?;
    done(store, open(session_record(1), "a")).await?;
    store.renew_lease(&node("a"), Duration::ZERO, false).await?;
    done(store, update(1, 1, Some(b"after the lapse"), None)).await?;
    let owner = one(store, &session(1)).await?.owner.expect("nobody took it");
    assert_eq!((owner.node, owner.remaining_lease), (node("a"), Duration::ZERO));
    Ok(())
}

pub async fn an_owner_may_claim_again(store: &dyn DurableStore) -> Outcome {
    store.join(&node("a"), None, LONG).await?;
    done(store, open(session_record(1), "a")).await?;
    let claim = store.claim_session(&session(1), &identity("acme"), &node("a"), LONG).await?;
    assert!(matches!(&claim, SessionClaimOutcome::Acquired { epoch: 2, .. }), "{claim:?}");
    Ok(())
}

pub async fn a_released_session_can_be_claimed_by_any_node(store: &dyn DurableStore) -> Outcome {
    store.join(&node("a"), None, LONG).await?;
    store.join(&node("b"), None, LONG).await?;
    done(store, open(session_record(1), "a")).await?;
    done(
        store,
        WriteOp::Subscribe { key: session(1), epoch: 1, subscription: subscription("file:///x") },
    )
    .await?;
    done(store, release(1, 1)).await?;
    let stored = one(store, &session(1)).await?;
    assert_eq!((stored.owner, stored.subscriptions), (None, 1));
    for attempt in owners_writes(1, 1) {
        assert_eq!(
            write(store, attempt).await?,
            WriteOutcome::Fenced,
            "who gave it away has no say any more"
        );
    }
    let claim = store.claim_session(&session(1), &identity("acme"), &node("b"), LONG).await?;
    let SessionClaimOutcome::Acquired { record, epoch, subscriptions, .. } = claim else {
        panic!("{claim:?}")
    };
    assert!(epoch > 1);
    assert_eq!(
        (record.state, record.links),
        (b"released state".to_vec(), b"released links".to_vec())
    );
    assert_eq!(subscriptions, [subscription("file:///x")]);
    done(store, update(1, epoch, None, None)).await
}

pub async fn a_claim_needs_the_same_session_scope(store: &dyn DurableStore) -> Outcome {
    store.join(&node("b"), None, LONG).await?;
    done(store, open(session_record(1), "gone")).await?;
    let narrow = SessionIdentity { endpoint: Some(endpoint("one")), ..identity("acme") };
    done(store, open(SessionRecord { identity: narrow.clone(), ..session_record(2) }, "gone"))
        .await?;
    let stranger = SessionIdentity { principal: PrincipalId::new("bob"), ..identity("acme") };
    let its_toolset = SessionIdentity { endpoint: Some(endpoint("t/one")), ..identity("acme") };
    for (number, wrong) in [
        (1, identity("umbrella")),
        (1, stranger.clone()),
        (1, narrow.clone()),
        (2, identity("acme")),
        (2, its_toolset),
        (9, identity("acme")),
    ] {
        assert_eq!(
            store.claim_session(&session(number), &wrong, &node("b"), LONG).await?,
            SessionClaimOutcome::NotFound,
            "{number} {wrong:?}"
        );
    }
    assert_eq!(one(store, &session(1)).await?.epoch, 1, "an attempt changes nothing");
    assert!(matches!(
        store.claim_session(&session(2), &narrow, &node("b"), LONG).await?,
        SessionClaimOutcome::Acquired { .. }
    ));
    assert_eq!(
        store.claim_session(&session(2), &stranger, &node("b"), LONG).await?,
        SessionClaimOutcome::NotFound,
        "owned or not"
    );
    Ok(())
}

pub async fn only_one_of_many_claims_succeeds(store: &dyn DurableStore) -> Outcome {
    let claimants = ["b", "c", "d", "e"].map(node);
    for claimant in &claimants {
        store.join(claimant, None, LONG).await?;
    }
    done(store, open(session_record(1), "gone")).await?;
    let (key, from) = (session(1), identity("acme"));
    let [b, c, d, e] = &claimants;
    let (b, c, d, e) = tokio::join!(
        store.claim_session(&key, &from, b, LONG),
        store.claim_session(&key, &from, c, LONG),
        store.claim_session(&key, &from, d, LONG),
        store.claim_session(&key, &from, e, LONG)
    );
    let claims = [b?, c?, d?, e?];
    let winner = one(store, &key).await?;
    assert_eq!(winner.epoch, 2);
    let winner = winner.owner.expect("somebody won").node;
    for (claimant, claim) in claimants.iter().zip(claims) {
        match claim {
            SessionClaimOutcome::Acquired { .. } => assert_eq!(claimant, &winner),
            SessionClaimOutcome::OwnedElsewhere(owner) => assert_eq!(owner.node, winner),
            SessionClaimOutcome::NotFound => panic!("it is there"),
        }
    }
    Ok(())
}

pub async fn a_claim_updates_the_last_activity_of_a_session(store: &dyn DurableStore) -> Outcome {
    store.join(&node("b"), None, LONG).await?;
    done(store, open(session_record(1), "gone")).await?;
    done(
        store,
        WriteOp::UpdateSession {
            key: session(1),
            epoch: 1,
            idle: LONG * 2,
            state: None,
            links: None,
        },
    )
    .await?;
    let claim = store.claim_session(&session(1), &identity("acme"), &node("b"), LONG).await?;
    assert_eq!(claim, SessionClaimOutcome::NotFound, "it expired, swept or not");
    assert!(matches!(
        store.claim_session(&session(1), &identity("acme"), &node("b"), LONG * 3).await?,
        SessionClaimOutcome::Acquired { .. }
    ));
    store.leave(&node("b")).await?;
    assert_eq!(store.sweep_sessions(LONG, 10).await?, []);
    Ok(())
}

pub async fn rows_of_an_earlier_node_name_can_be_reclaimed(store: &dyn DurableStore) -> Outcome {
    for name in ["old", "new", "other"] {
        store.join(&node(name), None, LONG).await?;
    }
    for (number, owner) in [(1, "old"), (2, "old"), (3, "other"), (4, "old"), (5, "old")] {
        done(store, open(session_record(number), owner)).await?;
    }
    store.renew_lease(&node("old"), Duration::ZERO, false).await?;
    assert!(matches!(
        store.claim_session(&session(4), &identity("acme"), &node("other"), LONG).await?,
        SessionClaimOutcome::Acquired { .. }
    ));
    let named = [1, 2, 3, 4].map(session);
    let mut reclaimed = store.reclaim_sessions(&node("old"), &node("new"), &named).await?;
    reclaimed.sort_unstable();
    assert_eq!(
        reclaimed,
        [(session(1), 2), (session(2), 2)],
        "but not what another took meanwhile"
    );
    assert_eq!(write(store, update(1, 1, None, None)).await?, WriteOutcome::Fenced);
    done(store, update(1, 2, None, None)).await?;
    assert_eq!(one(store, &session(1)).await?.owner.expect("new").node, node("new"));
    assert_eq!(one(store, &session(3)).await?.epoch, 1);
    assert_eq!(
        one(store, &session(5)).await?.owner.expect("old").node,
        node("old"),
        "what is not named stays"
    );
    let mut again = store.reclaim_sessions(&node("old"), &node("new"), &named).await?;
    again.sort_unstable();
    assert_eq!(again, reclaimed, "told again, as the answer may have been lost");
    Ok(())
}

pub async fn a_live_owner_is_requested_to_end_a_session(store: &dyn DurableStore) -> Outcome {
    store.join(&node("a"), None, LONG).await?;
    done(store, open(session_record(1), "a")).await?;
    assert!(store.apply(AdminChange::EndSession(&session(1)), None).await?);
    assert!(store.apply(AdminChange::EndSession(&session(1)), None).await?, "asked again");
    assert_eq!(one(store, &session(1)).await?.epoch, 1, "it is there until its owner ends it");
    done(store, update(1, 1, Some(b"last words"), None)).await?;
    store.renew_lease(&node("a"), Duration::ZERO, false).await?;
    store.join(&node("b"), None, LONG).await?;
    assert_eq!(
        store.claim_session(&session(1), &identity("acme"), &node("b"), LONG).await?,
        SessionClaimOutcome::NotFound,
        "nobody takes it over"
    );
    assert_eq!(
        store.sweep_sessions(LONG, 10).await?,
        [session(1)],
        "without its owner it goes, however lately it was heard of"
    );
    Ok(())
}

pub async fn a_session_without_a_live_owner_is_ended_at_once(store: &dyn DurableStore) -> Outcome {
    store.join(&node("lapsed"), None, Duration::ZERO).await?;
    done(store, open(session_record(1), "lapsed")).await?;
    done(store, open(session_record(2), "a")).await?;
    done(store, release(2, 1)).await?;
    assert!(store.apply(AdminChange::EndSession(&session(1)), None).await?);
    assert!(store.apply(AdminChange::EndSession(&session(2)), None).await?);
    assert_eq!(store.list_sessions(None, None, 10).await?, []);
    assert!(!store.apply(AdminChange::EndSession(&session(1)), None).await?);
    assert!(!store.apply(AdminChange::EndSession(&session(9)), None).await?);
    Ok(())
}

pub async fn a_sweep_removes_unowned_and_unused_sessions(store: &dyn DurableStore) -> Outcome {
    store.join(&node("a"), None, LONG).await?;
    for (number, owner) in [(1, "a"), (2, "gone"), (3, "gone"), (4, "a"), (5, "gone")] {
        done(store, open(session_record(number), owner)).await?;
    }
    for number in [1, 2, 5] {
        done(
            store,
            WriteOp::UpdateSession {
                key: session(number),
                epoch: 1,
                idle: LONG * 2,
                state: None,
                links: None,
            },
        )
        .await?;
    }
    let key = session(4);
    done(
        store,
        WriteOp::ReleaseSession {
            key,
            epoch: 1,
            idle: LONG * 2,
            state: Vec::new(),
            links: Vec::new(),
        },
    )
    .await?;
    let mut swept = store.sweep_sessions(LONG, 2).await?;
    assert_eq!(swept.len(), 2, "no more than the limit");
    swept.extend(store.sweep_sessions(LONG, 2).await?);
    swept.sort_unstable();
    assert_eq!(
        swept,
        [session(2), session(4), session(5)],
        "not those of a live owner, not those lately heard of"
    );
    assert_eq!(store.sweep_sessions(LONG, 2).await?, []);
    assert_eq!(store.list_sessions(None, None, 10).await?.len(), 2);
    Ok(())
}

pub async fn subscriptions_are_counted_by_resource(store: &dyn DurableStore) -> Outcome {
    for number in 1..=3 {
        done(store, open(session_record(number), "a")).await?;
    }
    done(store, open(SessionRecord { identity: identity("umbrella"), ..session_record(4) }, "a"))
        .await?;
    for (number, uri) in [
        (1, "file:///x"),
        (2, "file:///x"),
        (3, "file:///x"),
        (2, "file:///a"),
        (4, "file:///x"),
        (3, "file:///x"),
    ] {
        done(
            store,
            WriteOp::Subscribe { key: session(number), epoch: 1, subscription: subscription(uri) },
        )
        .await?;
    }
    let counts = async |of: Option<&str>| -> Result<Vec<(String, String, u64)>, StoreError> {
        let found = store.subscription_counts(of.map(tenant).as_ref()).await?;
        assert!(found.iter().all(|count| count.backend == backend("one")));
        Ok(found
            .into_iter()
            .map(|count| (count.tenant.as_str().to_owned(), count.uri, count.sessions))
            .collect())
    };
    let acme = [
        ("acme".to_owned(), "file:///a".to_owned(), 1),
        ("acme".to_owned(), "file:///x".to_owned(), 3),
    ];
    let umbrella = ("umbrella".to_owned(), "file:///x".to_owned(), 1);
    assert_eq!(counts(Some("acme")).await?, acme);
    assert_eq!(counts(None).await?, [acme.as_slice(), &[umbrella]].concat());
    assert_eq!(counts(Some("nobody")).await?, []);
    assert_eq!(one(store, &session(2)).await?.subscriptions, 2);
    assert_eq!(one(store, &session(3)).await?.subscriptions, 1, "twice the same is one");
    Ok(())
}

pub async fn a_subscription_is_removed_on_request(store: &dyn DurableStore) -> Outcome {
    done(store, open(session_record(1), "gone")).await?;
    for uri in ["file:///x", "file:///y"] {
        done(
            store,
            WriteOp::Subscribe { key: session(1), epoch: 1, subscription: subscription(uri) },
        )
        .await?;
    }
    let moved = records::SubscriptionRecord {
        uri: "file:///elsewhere".into(),
        ..subscription("file:///y")
    };
    done(store, WriteOp::Subscribe { key: session(1), epoch: 1, subscription: moved.clone() })
        .await?;
    let unsubscribe = WriteOp::Unsubscribe {
        key: session(1),
        epoch: 1,
        exposed_uri: subscription("file:///x").exposed_uri,
    };
    done(store, unsubscribe.clone()).await?;
    done(store, unsubscribe).await?;
    let claim = store.claim_session(&session(1), &identity("acme"), &node("b"), LONG).await?;
    let SessionClaimOutcome::Acquired { subscriptions, .. } = claim else { panic!("{claim:?}") };
    assert_eq!(subscriptions, [moved], "told again, the later one counts");
    Ok(())
}

pub async fn sessions_are_listed_in_pages(store: &dyn DurableStore) -> Outcome {
    for number in [5, 3, 9, 1, 7] {
        done(store, open(session_record(number), "a")).await?;
    }
    done(store, open(SessionRecord { identity: identity("umbrella"), ..session_record(4) }, "a"))
        .await?;
    let whole = keys(store.list_sessions(None, None, 100).await?);
    assert_eq!(whole.len(), 6);
    let (mut paged, mut after) = (Vec::new(), None);
    loop {
        let page = store.list_sessions(None, after.as_ref(), 4).await?;
        assert!(page.len() <= 4);
        let Some(last) = page.last() else { break };
        after = Some(last.position());
        paged.extend(keys(page));
    }
    assert_eq!(paged, whole);
    let created: Vec<i64> = store
        .list_sessions(None, None, 100)
        .await?
        .iter()
        .map(|stored| stored.created_at_us)
        .collect();
    assert!(created.is_sorted(), "{created:?}");
    assert_eq!(
        keys(store.list_sessions(Some(&tenant("umbrella")), None, 100).await?),
        [session(4)]
    );
    let acme: Vec<SessionKey> = whole.iter().copied().filter(|key| *key != session(4)).collect();
    let second = store.list_sessions(Some(&tenant("acme")), None, 2).await?[1].position();
    assert_eq!(
        keys(store.list_sessions(Some(&tenant("acme")), Some(&second), 2).await?),
        acme[2..4]
    );
    Ok(())
}

pub async fn a_page_of_sessions_can_start_after_a_removed_session(
    store: &dyn DurableStore,
) -> Outcome {
    for number in [5, 3, 9, 1, 7] {
        done(store, open(session_record(number), "a")).await?;
    }
    let whole = keys(store.list_sessions(None, None, 10).await?);
    for tenant in [None, Some(&tenant("acme"))] {
        let page = store.list_sessions(tenant, None, 2).await?;
        let last = page.last().expect("a full page");
        done(store, WriteOp::EndSession { key: last.record.key, epoch: last.epoch }).await?;
        let rest = keys(store.list_sessions(tenant, Some(&last.position()), 10).await?);
        assert!(!rest.is_empty() && whole.ends_with(&rest), "{rest:?} of {whole:?}");
        let left = store.list_sessions(tenant, None, 10).await?.len();
        assert_eq!(rest.len(), left - 1, "all but the first");
    }
    Ok(())
}

pub async fn sessions_are_found_by_digest(store: &dyn DurableStore) -> Outcome {
    let mut twin = *session(1).as_bytes();
    twin[8] ^= 0xff;
    let twin = SessionRecord { key: SessionKey::new(twin), ..session_record(1) };
    for record in [
        session_record(0),
        session_record(1),
        twin.clone(),
        session_record(2),
        session_record(0xff),
    ] {
        done(store, open(record, "a")).await?;
    }
    for number in [0, 2, 0xff] {
        assert_eq!(
            keys(store.sessions_by_digest(&session(number).digest()).await?),
            [session(number)]
        );
    }
    assert_eq!(session(1).digest(), twin.key.digest());
    assert_eq!(store.sessions_by_digest(&twin.key.digest()).await?.len(), 2);
    for strange in [
        "",
        "01",
        "0101010101010103",
        "zzzzzzzzzzzzzzzz",
        "0101010101010101fe",
        "é1010101010101",
        "%",
    ] {
        assert_eq!(store.sessions_by_digest(strange).await?, [], "{strange:?}");
    }
    Ok(())
}

pub async fn sessions_end_with_their_tenant(store: &dyn DurableStore) -> Outcome {
    store.apply(AdminChange::PutTenant(&tenant_record("acme")), None).await?;
    store.apply(AdminChange::PutTenant(&tenant_record("umbrella")), None).await?;
    done(store, open(session_record(1), "a")).await?;
    done(store, open(SessionRecord { identity: identity("umbrella"), ..session_record(2) }, "a"))
        .await?;
    assert!(store.apply(AdminChange::DeleteTenant(&tenant("acme")), None).await?);
    assert_eq!(keys(store.list_sessions(None, None, 10).await?), [session(2)]);
    assert_eq!(write(store, update(1, 1, None, None)).await?, WriteOutcome::Fenced);
    Ok(())
}

/// Returns the one session with this key.
async fn one(store: &dyn DurableStore, key: &SessionKey) -> Result<StoredSession, StoreError> {
    let found = store.sessions_by_digest(&key.digest()).await?;
    Ok(found.into_iter().find(|stored| stored.record.key == *key).expect("the session is there"))
}

fn keys(sessions: Vec<StoredSession>) -> Vec<SessionKey> {
    sessions.into_iter().map(|stored| stored.record.key).collect()
}

fn update(number: u8, epoch: i64, state: Option<&[u8]>, links: Option<&[u8]>) -> WriteOp {
    let (state, links) = (state.map(<[u8]>::to_vec), links.map(<[u8]>::to_vec));
    WriteOp::UpdateSession { key: session(number), epoch, idle: Duration::ZERO, state, links }
}

fn release(number: u8, epoch: i64) -> WriteOp {
    let (state, links) = (b"released state".to_vec(), b"released links".to_vec());
    WriteOp::ReleaseSession { key: session(number), epoch, idle: Duration::ZERO, state, links }
}

/// Returns one of each write that only an owner may make.
fn owners_writes(number: u8, epoch: i64) -> [WriteOp; 5] {
    let key = session(number);
    [
        update(number, epoch, Some(b"never"), Some(b"never")),
        release(number, epoch),
        WriteOp::Subscribe { key, epoch, subscription: subscription("file:///never") },
        WriteOp::Unsubscribe { key, epoch, exposed_uri: subscription("file:///kept").exposed_uri },
        WriteOp::EndSession { key, epoch },
    ]
}
