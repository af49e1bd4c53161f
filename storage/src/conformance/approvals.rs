//! Behaviours of every [`ApprovalStore`](crate::ApprovalStore).

use std::time::Duration;

use futures_util::future::join_all;
use protocol::ids::{ApprovalId, BackendId, PrincipalId};
use records::{
    AdminChange, ApprovalBinding, ApprovalDecision, ApprovalFilter, ApprovalLimit, ApprovalLimits,
    ApprovalListPosition, ApprovalOpening, ApprovalRecord, ApprovalState, AuditFilter, AuditKind,
    BackendRecord, StoredApproval,
};

use super::{LONG, Outcome, audit, backend, config::tenant_record, tenant};
use crate::{DurableStore, StoreError};

const MANY: ApprovalLimits = ApprovalLimits { per_principal: 100, per_tenant: 100 };

pub async fn an_approval_is_kept_as_given(store: &dyn DurableStore) -> Outcome {
    let record = record("a", 1);
    assert_eq!(store.approval(&record.id).await?, None);
    let opened = open(store, &record).await?;
    assert_eq!((&opened.record, opened.state), (&record, ApprovalState::Pending));
    assert!(opened.remaining_time > LONG / 2 && opened.expires_at_us > opened.created_at_us);
    assert_eq!((opened.decided_by, opened.window_until_us), (None, None));
    let found = store.approval(&record.id).await?.expect("an approval");
    assert_eq!((found.record, found.expires_at_us), (record, opened.expires_at_us));
    Ok(())
}

pub async fn an_equal_call_joins_an_approval_and_another_call_does_not(
    store: &dyn DurableStore,
) -> Outcome {
    let tries =
        join_all((0..8).map(|at| async move {
            store.open_approval(&record(&format!("a{at}"), 1), MANY).await
        }))
        .await;
    let opened: Vec<ApprovalOpening> = tries.into_iter().collect::<Result<_, _>>()?;
    let ids: Vec<&ApprovalId> = opened
        .iter()
        .map(|opened| match opened {
            ApprovalOpening::Open(stored) => &stored.record.id,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let other = open(store, &record("b", 2)).await?;
    assert_eq!(other.record.id.as_str(), "b");
    let binding = ApprovalBinding { principal: PrincipalId::new("bob"), ..record("c", 1).binding };
    let other = open(store, &ApprovalRecord { binding, ..record("c", 1) }).await?;
    assert_eq!(other.record.id.as_str(), "c");
    Ok(())
}

pub async fn only_one_of_many_decisions_is_stored(store: &dyn DurableStore) -> Outcome {
    open(store, &record("a", 1)).await?;
    let foreign = ApprovalDecision { tenant: tenant("zoo"), ..decision("a", true) };
    assert!(!store.apply(AdminChange::DecideApproval(&foreign), None).await?);
    let decisions: Vec<_> = (0..8).map(|at| decision("a", at % 2 == 0)).collect();
    let tries = join_all(
        decisions.iter().map(|decision| store.apply(AdminChange::DecideApproval(decision), None)),
    )
    .await;
    let made: Vec<bool> = tries.into_iter().collect::<Result<_, _>>()?;
    assert_eq!(made.iter().filter(|made| **made).count(), 1);
    let first = made.iter().position(|made| *made).expect("one");
    let found = store.approval(&id("a")).await?.expect("an approval");
    assert_eq!(found.state, decisions[first].state());
    assert_eq!(found.decided_by.as_deref(), Some("olga"));
    assert_eq!(found.decision_reason.as_deref(), Some("looks fine"));
    assert!(found.decided_at_us.is_some());
    assert!(!store.apply(AdminChange::DecideApproval(&decision("none", true)), None).await?);
    Ok(())
}

pub async fn a_decision_and_its_audit_record_are_stored_together(
    store: &dyn DurableStore,
) -> Outcome {
    let audit = |number| audit::record(number, AuditKind::Admin, Some("acme"));
    open(store, &record("a", 1)).await?;
    let first = audit(1);
    assert!(store.apply(AdminChange::DecideApproval(&decision("a", true)), Some(&first)).await?);
    let second = audit(2);
    assert!(!store.apply(AdminChange::DecideApproval(&decision("a", false)), Some(&second)).await?);
    let records = store.audit_records(&AuditFilter::default(), None, 10).await?;
    let ids: Vec<_> = records.iter().map(|stored| stored.record.id).collect();
    assert_eq!(ids, [first.id]);
    Ok(())
}

pub async fn an_approval_is_used_by_one_call_which_may_repeat_the_use(
    store: &dyn DurableStore,
) -> Outcome {
    open(store, &record("a", 1)).await?;
    assert!(!store.use_approval(&id("a"), "x").await?, "not approved yet");
    store.apply(AdminChange::DecideApproval(&decision("a", true)), None).await?;
    let users: Vec<String> = (0..8).map(|at| format!("user {at}")).collect();
    let tries =
        join_all(users.iter().map(|user| async move { store.use_approval(&id("a"), user).await }))
            .await;
    let got: Vec<bool> = tries.into_iter().collect::<Result<_, _>>()?;
    assert_eq!(got.iter().filter(|got| **got).count(), 1);
    for (user, got) in users.iter().zip(got) {
        assert_eq!(store.use_approval(&id("a"), user).await?, got, "{user}");
    }
    assert_eq!(state(store, "a").await?, Some(ApprovalState::Used));
    let again = open(store, &record("b", 1)).await?;
    assert_eq!(again.record.id.as_str(), "b", "the next call needs another approval");
    Ok(())
}

pub async fn an_approval_whose_tool_changed_is_not_used(store: &dyn DurableStore) -> Outcome {
    open(store, &record("a", 1)).await?;
    assert!(!store.void_approval(&id("a")).await?, "not approved yet");
    store.apply(AdminChange::DecideApproval(&decision("a", true)), None).await?;
    assert!(store.void_approval(&id("a")).await?);
    assert!(!store.use_approval(&id("a"), "x").await?);
    let found = store.approval(&id("a")).await?.expect("an approval");
    assert_eq!((found.state, found.is_void), (ApprovalState::Expired, true));
    assert_eq!(found.record.arguments, record("a", 1).arguments, "the approver sees them");
    open(store, &ApprovalRecord { ttl: Duration::ZERO, ..record("b", 2) }).await?;
    assert!(!store.approval(&id("b")).await?.expect("an approval").is_void);
    Ok(())
}

pub async fn pending_approvals_are_counted_by_tenant(store: &dyn DurableStore) -> Outcome {
    let of = |name: &str, of: &str, arguments| {
        let binding = ApprovalBinding { tenant: tenant(of), ..record(name, arguments).binding };
        ApprovalRecord { binding, ..record(name, arguments) }
    };
    for approval in [of("a", "acme", 1), of("b", "acme", 2), of("c", "acme", 3), of("d", "zoo", 1)]
    {
        open(store, &approval).await?;
    }
    open(store, &ApprovalRecord { ttl: Duration::ZERO, ..of("e", "zoo", 2) }).await?;
    store.apply(AdminChange::DecideApproval(&decision("a", true)), None).await?;
    let mut counts = store.pending_approvals().await?;
    counts.sort_unstable();
    assert_eq!(counts, [(tenant("acme"), 2), (tenant("zoo"), 1)]);
    Ok(())
}

pub async fn a_denied_approval_is_not_used_and_the_next_call_opens_a_new_one(
    store: &dyn DurableStore,
) -> Outcome {
    open(store, &record("a", 1)).await?;
    store.apply(AdminChange::DecideApproval(&decision("a", false)), None).await?;
    assert!(!store.use_approval(&id("a"), "x").await?);
    assert_eq!(open(store, &record("b", 1)).await?.record.id.as_str(), "b");
    Ok(())
}

pub async fn an_approval_expires_pending_and_approved(store: &dyn DurableStore) -> Outcome {
    let brief = |name| ApprovalRecord { ttl: Duration::ZERO, ..record(name, 1) };
    open(store, &brief("a")).await?;
    assert_eq!(state(store, "a").await?, Some(ApprovalState::Expired));
    assert!(!store.apply(AdminChange::DecideApproval(&decision("a", true)), None).await?);
    assert_eq!(store.settled_approvals(&[id("a")]).await?, [id("a")]);
    assert_eq!(open(store, &brief("b")).await?.record.id.as_str(), "b");
    let expired = in_state(ApprovalState::Expired);
    let listed = store.approvals_of(&tenant("acme"), &expired, None, 9).await?;
    assert_eq!(listed.len(), 2);
    assert_eq!(store.expire_approvals(9).await?, 1, "the other one gave way to the second call");
    assert_eq!(store.expire_approvals(9).await?, 0);
    let found = store.approval(&id("b")).await?.expect("an approval");
    assert_eq!(found.record.arguments, b"", "what no person decided about is not kept");
    Ok(())
}

pub async fn a_window_permits_other_arguments_until_it_ends(store: &dyn DurableStore) -> Outcome {
    open(store, &record("a", 1)).await?;
    let decision = ApprovalDecision { window: Some(LONG), ..decision("a", true) };
    store.apply(AdminChange::DecideApproval(&decision), None).await?;
    for (name, arguments) in [("b", 1), ("c", 2)] {
        let opened = store.open_approval(&record(name, arguments), MANY).await?;
        assert_eq!(opened, ApprovalOpening::Window(id("a")));
    }
    for binding in [
        ApprovalBinding { tool: "other".to_owned(), ..record("d", 1).binding },
        ApprovalBinding { pin: None, ..record("d", 1).binding },
        ApprovalBinding { pin: None, definition: [9; 32], ..record("d", 1).binding },
        ApprovalBinding { principal: PrincipalId::new("bob"), ..record("d", 1).binding },
        ApprovalBinding { tenant: tenant("zoo"), ..record("d", 1).binding },
    ] {
        let name = format!("{}{:?}", binding.tenant, binding.key());
        let other = ApprovalRecord { id: id(&name), binding, ..record("d", 1) };
        open(store, &other).await?;
    }
    open(store, &record("e", 3)).await.expect_err("a window is open");
    let terms = "{\"rule\":\"stricter\"}".to_owned();
    let stricter = ApprovalRecord { terms: terms.clone(), ..record("f", 4) };
    open(store, &stricter).await.expect("the window is not for another rule");
    let same_call = ApprovalRecord { terms, ..record("g", 1) };
    let opened = open(store, &same_call).await?;
    assert_eq!(opened.record.id, id("g"), "the approval of another rule is not used");
    Ok(())
}

pub async fn a_window_of_zero_duration_is_closed(store: &dyn DurableStore) -> Outcome {
    open(store, &record("a", 1)).await?;
    let decision = ApprovalDecision { window: Some(Duration::ZERO), ..decision("a", true) };
    store.apply(AdminChange::DecideApproval(&decision), None).await?;
    assert_eq!(open(store, &record("b", 2)).await?.record.id.as_str(), "b");
    Ok(())
}

pub async fn limits_of_pending_approvals_are_exact(store: &dyn DurableStore) -> Outcome {
    let limits = ApprovalLimits { per_principal: 2, per_tenant: 3 };
    let tries = join_all((0..8).map(|at| async move {
        store.open_approval(&record(&format!("a{at}"), at), limits).await
    }))
    .await;
    let opened: Vec<ApprovalOpening> = tries.into_iter().collect::<Result<_, _>>()?;
    let is_full = |opened: &&ApprovalOpening| {
        **opened == ApprovalOpening::LimitReached(ApprovalLimit::Principal)
    };
    assert_eq!(opened.iter().filter(is_full).count(), 6);
    let of = |name: &str, principal: &str| {
        let binding =
            ApprovalBinding { principal: PrincipalId::new(principal), ..record(name, 1).binding };
        ApprovalRecord { binding, ..record(name, 1) }
    };
    let third = store.open_approval(&of("b", "bob"), limits).await?;
    assert!(matches!(third, ApprovalOpening::Open(_)));
    let fourth = store.open_approval(&of("c", "cat"), limits).await?;
    assert_eq!(fourth, ApprovalOpening::LimitReached(ApprovalLimit::Tenant));
    let joined = store.open_approval(&of("d", "bob"), limits).await?;
    assert!(matches!(joined, ApprovalOpening::Open(_)), "an equal call needs no room");
    store.apply(AdminChange::DecideApproval(&decision("b", false)), None).await?;
    assert!(matches!(
        store.open_approval(&of("c", "cat"), limits).await?,
        ApprovalOpening::Open(_)
    ));
    Ok(())
}

fn in_state(state: ApprovalState) -> ApprovalFilter {
    ApprovalFilter { state: Some(state), backends: None }
}

pub async fn approvals_are_listed_by_state_and_backend_in_pages(
    store: &dyn DurableStore,
) -> Outcome {
    for at in 0..5 {
        open(store, &record(&format!("a{at}"), at)).await?;
    }
    store.apply(AdminChange::DecideApproval(&decision("a1", true)), None).await?;
    store.apply(AdminChange::DecideApproval(&decision("a3", false)), None).await?;
    let (acme, mut seen, mut after) = (tenant("acme"), Vec::new(), None);
    loop {
        let page = store.approvals_of(&acme, &ApprovalFilter::default(), after.as_ref(), 2).await?;
        let Some(last) = page.last() else { break };
        after = Some(ApprovalListPosition {
            created_at_us: last.created_at_us,
            id: last.record.id.clone(),
        });
        seen.extend(page);
    }
    let times: Vec<i64> = seen.iter().map(|stored| stored.created_at_us).collect();
    assert!(times.is_sorted_by(|a, b| a >= b), "newest first: {times:?}");
    assert_eq!(seen.len(), 5);
    let pending = in_state(ApprovalState::Pending);
    assert_eq!(store.approvals_of(&acme, &pending, None, 9).await?.len(), 3);
    let backend = seen[0].record.binding.backend.clone();
    let other = BackendId::parse("another").expect("a name");
    for (backends, count) in
        [(vec![backend.clone(), other.clone()], 3), (vec![other], 0), (Vec::new(), 0)]
    {
        let of_backends = ApprovalFilter { backends: Some(backends), ..pending.clone() };
        assert_eq!(store.approvals_of(&acme, &of_backends, None, 9).await?.len(), count);
    }
    let all = ApprovalFilter::default();
    assert_eq!(store.approvals_of(&tenant("zoo"), &all, None, 9).await?, []);
    let mut counts = store.approval_counts().await?;
    counts.sort_unstable();
    assert_eq!(
        counts,
        [(ApprovalState::Pending, 3), (ApprovalState::Approved, 1), (ApprovalState::Denied, 1)]
    );
    let mut settled = store.settled_approvals(&[id("a0"), id("a1"), id("none")]).await?;
    settled.sort_unstable();
    assert_eq!(settled, [id("a1"), id("none")]);
    Ok(())
}

pub async fn final_approvals_are_removed_by_age(store: &dyn DurableStore) -> Outcome {
    for (name, at) in [("a", 1), ("b", 2), ("c", 3)] {
        open(store, &record(name, at)).await?;
    }
    store.apply(AdminChange::DecideApproval(&decision("a", false)), None).await?;
    let window = ApprovalDecision { window: Some(LONG), ..decision("b", true) };
    store.apply(AdminChange::DecideApproval(&window), None).await?;
    store.use_approval(&id("b"), "x").await?;
    assert_eq!(store.remove_approvals(LONG, LONG, 9).await?, 0);
    assert_eq!(store.remove_approvals(Duration::ZERO, LONG, 9).await?, 1);
    let states = [state(store, "a").await?, state(store, "b").await?, state(store, "c").await?];
    assert_eq!(states, [None, Some(ApprovalState::Used), Some(ApprovalState::Pending)]);
    Ok(())
}

pub async fn expired_approvals_are_removed_by_an_age_of_their_own(
    store: &dyn DurableStore,
) -> Outcome {
    open(store, &record("a", 1)).await?;
    store.apply(AdminChange::DecideApproval(&decision("a", false)), None).await?;
    for (name, at) in [("b", 2), ("c", 3)] {
        open(store, &ApprovalRecord { ttl: Duration::ZERO, ..record(name, at) }).await?;
    }
    assert_eq!(store.expire_approvals(9).await?, 2);
    assert_eq!(store.remove_approvals(LONG, LONG, 9).await?, 0);
    assert_eq!(store.remove_approvals(LONG, Duration::ZERO, 1).await?, 1, "one at a time");
    assert_eq!(store.remove_approvals(LONG, Duration::ZERO, 9).await?, 1);
    assert_eq!(state(store, "a").await?, Some(ApprovalState::Denied));
    assert_eq!(store.remove_approvals(Duration::ZERO, LONG, 9).await?, 1);
    Ok(())
}

pub async fn approvals_end_with_their_backend_and_their_tenant(
    store: &dyn DurableStore,
) -> Outcome {
    let (acme, one) = (tenant("acme"), backend("one"));
    let made = || async {
        store.apply(AdminChange::PutTenant(&tenant_record("acme")), None).await?;
        let settings = BackendRecord {
            tenant: acme.clone(),
            backend: one.clone(),
            settings: vec![1],
            created_at_us: 1,
            updated_at_us: 1,
        };
        store.apply(AdminChange::PutBackend(&settings), None).await?;
        open(store, &record("a", 1)).await
    };
    made().await?;
    store.apply(AdminChange::DeleteBackend(&acme, &one), None).await?;
    assert_eq!(state(store, "a").await?, None);
    made().await?;
    store.apply(AdminChange::DeleteTenant(&acme), None).await?;
    assert_eq!(state(store, "a").await?, None);
    Ok(())
}

pub(super) async fn open(
    store: &dyn DurableStore,
    record: &ApprovalRecord,
) -> Result<StoredApproval, StoreError> {
    match store.open_approval(record, MANY).await? {
        ApprovalOpening::Open(stored) => Ok(*stored),
        other => Err(StoreError::Corrupt { detail: format!("{other:?}") }),
    }
}

pub(super) async fn state(
    store: &dyn DurableStore,
    name: &str,
) -> Result<Option<ApprovalState>, StoreError> {
    Ok(store.approval(&id(name)).await?.map(|found| found.state))
}

pub(super) fn id(name: &str) -> ApprovalId {
    ApprovalId::new(name)
}

pub(super) fn decision(name: &str, approves: bool) -> ApprovalDecision {
    ApprovalDecision {
        tenant: tenant("acme"),
        id: id(name),
        approves,
        by: "olga".to_owned(),
        reason: Some("looks fine".to_owned()),
        window: None,
    }
}

pub(super) fn record(name: &str, arguments: u8) -> ApprovalRecord {
    ApprovalRecord {
        id: id(name),
        binding: ApprovalBinding {
            tenant: tenant("acme"),
            principal: PrincipalId::new("ann"),
            backend: backend("one"),
            tool: "send\0money".to_owned(),
            definition: [7; 32],
            pin: Some("v1:ab".to_owned()),
            arguments_hash: [arguments; 32],
        },
        arguments: vec![arguments, 0, 255],
        terms: "{\"rule\":\"r\"}".to_owned(),
        ttl: LONG,
    }
}
