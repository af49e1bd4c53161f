//! Behaviours of every [`HotStore`] while its server works. Tests of single engines cover the loss
//! of data.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use protocol::ids::{BackendId, TaskId, TenantId};
use tokio::{sync::broadcast, time::timeout};

use super::{LONG, Outcome, session};
use crate::{
    HotStore, OwnerHint, Wakeup,
    hot::{
        BackendVerdict, BudgetGrant, BudgetRequest, PermitsGrant, PermitsLifetime, PermitsRequest,
        TASK_NOTIFICATION_BYTES_MAX, VerdictState, WAKEUPS_BUFFERED_MAX,
    },
};

/// Two replicas that receive each other's wakeups.
pub type Replicas = [Arc<dyn HotStore>; 2];

/// Time a wakeup may take between two replicas.
const DEADLINE: Duration = Duration::from_secs(10);

pub async fn the_owner_hint_of_a_session_is_shared_by_all_replicas(replicas: &Replicas) -> Outcome {
    let [one, two] = replicas;
    assert_eq!(one.owner_hint(&session(1)).await, None);
    one.put_owner_hint(&session(1), &hint("a"), LONG).await;
    one.put_owner_hint(&session(2), &hint("b"), LONG).await;
    assert_eq!(
        (two.owner_hint(&session(1)).await, two.owner_hint(&session(2)).await),
        (Some(hint("a")), Some(hint("b")))
    );
    two.put_owner_hint(&session(1), &hint("c"), LONG).await;
    assert_eq!(
        (one.owner_hint(&session(1)).await, two.owner_hint(&session(1)).await),
        (Some(hint("c")), Some(hint("c")))
    );
    two.remove_owner_hint(&session(1)).await;
    two.remove_owner_hint(&session(9)).await;
    assert_eq!(
        (one.owner_hint(&session(1)).await, one.owner_hint(&session(2)).await),
        (None, Some(hint("b")))
    );
    Ok(())
}

pub async fn a_hint_expires(replicas: &Replicas) -> Outcome {
    let [one, _] = replicas;
    one.put_owner_hint(&session(1), &hint("a"), LONG).await;
    one.put_owner_hint(&session(1), &hint("b"), Duration::ZERO).await;
    assert_eq!(one.owner_hint(&session(1)).await, None);
    Ok(())
}

pub async fn a_wakeup_reaches_every_listener_once_and_in_order(replicas: &Replicas) -> Outcome {
    let [one, two] = replicas;
    assert!(one.is_connected() && two.is_connected());
    let mut listeners = [one.subscribe(), one.subscribe(), two.subscribe(), two.subscribe()];
    let wakeups = [
        Wakeup::Config,
        Wakeup::Task { task: TaskId::new("task-ü/1"), session: session(1) },
        Wakeup::TaskNotification {
            session: session(2),
            frame: Bytes::from_static(b"{\"jsonrpc\":\"2.0\"}\0\xff"),
        },
        Wakeup::TaskNotification {
            session: session(2),
            frame: Bytes::from(vec![b'x'; TASK_NOTIFICATION_BYTES_MAX]),
        },
        Wakeup::SessionEnd(session(3)),
        Wakeup::Verdict(BackendVerdict {
            tenant: TenantId::parse("acme").expect("a name"),
            backend: BackendId::parse("files").expect("a name"),
            node: "a/1".into(),
            state: VerdictState::HalfOpen,
        }),
    ];
    for wakeup in &wakeups {
        one.publish(wakeup.clone());
    }
    for listener in &mut listeners {
        for wakeup in &wakeups {
            assert_eq!(heard(listener).await, *wakeup);
        }
    }
    two.publish(Wakeup::SessionEnd(session(4)));
    for listener in &mut listeners {
        assert_eq!(heard(listener).await, Wakeup::SessionEnd(session(4)), "nothing was told twice");
    }
    Ok(())
}

pub async fn a_wakeup_does_not_reach_later_listeners(replicas: &Replicas) -> Outcome {
    let [one, two] = replicas;
    one.publish(Wakeup::Config);
    let mut late = one.subscribe();
    two.publish(Wakeup::SessionEnd(session(1)));
    assert_eq!(heard(&mut late).await, Wakeup::SessionEnd(session(1)));
    Ok(())
}

pub async fn a_notification_over_the_limit_is_not_published(replicas: &Replicas) -> Outcome {
    let [one, two] = replicas;
    let mut listeners = [one.subscribe(), two.subscribe()];
    one.publish(Wakeup::TaskNotification {
        session: session(1),
        frame: Bytes::from(vec![b'x'; TASK_NOTIFICATION_BYTES_MAX + 1]),
    });
    one.publish(Wakeup::Config);
    for listener in &mut listeners {
        assert_eq!(heard(listener).await, Wakeup::Config);
    }
    Ok(())
}

pub async fn many_wakeups_at_once_are_delivered(replicas: &Replicas) -> Outcome {
    let [one, two] = replicas;
    let mut listener = two.subscribe();
    let count = WAKEUPS_BUFFERED_MAX / 2;
    let wakeup =
        |number: usize| Wakeup::Task { task: TaskId::new(number.to_string()), session: session(1) };
    for number in 0..count {
        one.publish(wakeup(number));
    }
    for number in 0..count {
        assert_eq!(heard(&mut listener).await, wakeup(number));
    }
    Ok(())
}

pub async fn all_replicas_share_one_budget(replicas: &Replicas) -> Outcome {
    let [one, two] = replicas;
    let first = taken(one, budget_request("acme", 0, 3)).await;
    assert_eq!(first, BudgetGrant { granted: 3, remaining: 2, wait: Duration::ZERO });
    let rest = taken(two, budget_request("acme", 0, 10)).await;
    assert_eq!((rest.granted, rest.remaining), (2, 0));
    assert!(rest.wait > Duration::ZERO && rest.wait <= SECOND_EACH, "{rest:?}");
    assert_eq!(taken(one, budget_request("acme", 0, 1)).await.granted, 0);
    assert_eq!(taken(one, budget_request("bcme", 0, 9)).await.granted, 5, "another budget");
    Ok(())
}

pub async fn used_budget_is_counted_even_if_it_exceeds_the_remaining(
    replicas: &Replicas,
) -> Outcome {
    let [one, two] = replicas;
    assert_eq!(
        taken(one, budget_request("acme", 4, 0)).await,
        BudgetGrant { granted: 0, remaining: 1, wait: Duration::ZERO }
    );
    let overdrawn = taken(two, budget_request("acme", 3, 1)).await;
    assert_eq!((overdrawn.granted, overdrawn.remaining), (0, 0));
    let further = taken(one, budget_request("acme", 2, 0)).await;
    assert!(further.wait > overdrawn.wait, "{further:?} after {overdrawn:?}");
    Ok(())
}

pub async fn an_overdrawn_budget_is_closed_for_seconds_at_most(replicas: &Replicas) -> Outcome {
    let [one, _] = replicas;
    let fast = BudgetRequest { per_second: 1_000, burst: 1, ..budget_request("acme", u32::MAX, 0) };
    let wait = taken(one, fast).await.wait;
    assert!(wait > Duration::from_secs(1) && wait < Duration::from_secs(11), "{wait:?}");
    Ok(())
}

pub async fn a_budget_is_refilled_at_its_rate(replicas: &Replicas) -> Outcome {
    let [one, two] = replicas;
    let all = |wanted| BudgetRequest {
        per_second: 10_000,
        burst: 100,
        ..budget_request("acme", 0, wanted)
    };
    let begun = std::time::Instant::now();
    let mut granted = 0;
    for round in 0..400 {
        granted += taken(&replicas[round % 2], all(50)).await.granted;
    }
    // The slack allows 500 of these, once.
    let most = 100.0 + 500.0 + begun.elapsed().as_secs_f64() * 10_000.0 + 1.0;
    assert!(f64::from(granted) <= most, "{granted} in {:?}", begun.elapsed());
    assert!(
        taken(one, budget_request("bcme", 0, 1)).await.granted
            + taken(two, budget_request("bcme", 0, 1)).await.granted
            == 2
    );
    Ok(())
}

pub async fn many_budgets_are_requested_at_once(replicas: &Replicas) -> Outcome {
    let [one, _] = replicas;
    let requests: Vec<_> = (0..300)
        .map(|number| budget_request(&format!("scope {number} ü"), 0, number % 7))
        .collect();
    let shares = one.take_from_budgets(&requests).await.expect("an answer");
    let granted: Vec<u32> = shares.iter().map(|share| share.granted).collect();
    assert_eq!(granted, (0..300).map(|number| (number % 7).min(5)).collect::<Vec<_>>());
    assert_eq!(one.take_from_budgets(&[]).await, Some(Vec::new()));
    Ok(())
}

pub async fn a_replica_gets_permits_up_to_the_limit_and_keeps_permits_in_use(
    replicas: &Replicas,
) -> Outcome {
    let [one, _] = replicas;
    let request = |in_use, wanted| PermitsRequest { name: "acme".into(), max: 5, in_use, wanted };
    for (sent, held) in
        [(request(0, 3), 3), (request(3, 9), 5), (request(7, 7), 7), (request(0, 0), 0)]
    {
        let answer = one.settle_permits(LIFETIME, &[sent]).await.expect("an answer");
        assert_eq!(answer.grants, [PermitsGrant { held, others: 0 }]);
    }
    let alone = one.settle_permits(LIFETIME, &[]).await.expect("an answer");
    assert!(alone.renewed && alone.grants.is_empty());
    Ok(())
}

pub async fn nothing_fails_after_close(replicas: &Replicas) -> Outcome {
    let [one, _] = replicas;
    one.put_owner_hint(&session(1), &hint("a"), LONG).await;
    one.close().await;
    one.close().await;
    assert!(!one.is_connected());
    one.put_owner_hint(&session(2), &hint("b"), LONG).await;
    one.remove_owner_hint(&session(1)).await;
    one.publish(Wakeup::Config);
    assert_eq!(
        (one.owner_hint(&session(1)).await, one.owner_hint(&session(2)).await),
        (None, None)
    );
    assert_eq!(one.take_from_budgets(&[budget_request("acme", 0, 1)]).await, None);
    assert_eq!(one.settle_permits(LIFETIME, &[]).await, None);
    Ok(())
}

const LIFETIME: PermitsLifetime = PermitsLifetime { lease: LONG, kept: LONG };

/// Rates are whole numbers per second, so one unit comes back within a second. No test waits for
/// it.
const SECOND_EACH: Duration = Duration::from_secs(1);

/// Requests part of a budget of five that refills one per second.
fn budget_request(name: &str, used: u32, wanted: u32) -> BudgetRequest {
    BudgetRequest { name: name.into(), per_second: 1, burst: 5, used, wanted }
}

async fn taken(store: &Arc<dyn HotStore>, request: BudgetRequest) -> BudgetGrant {
    store.take_from_budgets(&[request]).await.expect("an answer")[0]
}

fn hint(node: &str) -> OwnerHint {
    OwnerHint { node: format!("{node}/1f2e3d4c"), address: format!("{node}.example:7400") }
}

async fn heard(listener: &mut broadcast::Receiver<Wakeup>) -> Wakeup {
    timeout(DEADLINE, listener.recv()).await.expect("a word in time").expect("no word was missed")
}
