//! Behaviours of every [`DurableStore`] for leases.

use std::time::Duration;

use records::{AdminChange, LeaseRenewal, NodeRecord};

use super::{LONG, Outcome, config::tenant_record, done, node, open, session, session_record};
use crate::DurableStore;

pub async fn a_lease_starts_when_a_node_joins(store: &dyn DurableStore) -> Outcome {
    assert_eq!(store.live_nodes().await?, []);
    store.join(&node("a"), Some("https://10.0.0.1:9000"), LONG).await?;
    let nodes = store.live_nodes().await?;
    let [only] = nodes.as_slice() else { panic!("{nodes:?}") };
    assert_eq!(
        (&only.node, only.address.as_deref(), only.draining),
        (&node("a"), Some("https://10.0.0.1:9000"), false)
    );
    assert!(
        only.remaining_lease > LONG / 2 && only.remaining_lease <= LONG,
        "{:?}",
        only.remaining_lease
    );
    Ok(())
}

pub async fn nodes_are_listed_by_name(store: &dyn DurableStore) -> Outcome {
    for name in ["b/2", "a/9", "c", "a/10"] {
        store.join(&node(name), None, LONG).await?;
    }
    store.join(&node("aa"), None, Duration::ZERO).await?;
    assert_eq!(
        names(&store.live_nodes().await?),
        ["a/10", "a/9", "b/2", "c"],
        "without the lapsed one"
    );
    assert_eq!(store.live_nodes().await?[0].address, None);
    Ok(())
}

pub async fn joining_may_be_repeated(store: &dyn DurableStore) -> Outcome {
    // A caller repeats a join like this when its outcome is unknown.
    store.join(&node("a"), None, Duration::ZERO).await?;
    store.join(&node("a"), Some("there"), LONG).await?;
    let nodes = store.live_nodes().await?;
    assert_eq!(names(&nodes), ["a"]);
    assert_eq!(nodes[0].address.as_deref(), Some("there"));
    Ok(())
}

pub async fn a_renewal_extends_the_lease(store: &dyn DurableStore) -> Outcome {
    store.join(&node("a"), Some("there"), LONG).await?;
    let renewal = store.renew_lease(&node("a"), LONG * 3, true).await?;
    assert!(renewal.renewed && renewal.sessions_to_end.is_empty(), "{renewal:?}");
    let nodes = store.live_nodes().await?;
    assert!(nodes[0].draining && nodes[0].remaining_lease > LONG * 2, "{nodes:?}");
    assert_eq!(nodes[0].address.as_deref(), Some("there"));
    assert!(store.renew_lease(&node("a"), LONG, false).await?.renewed);
    assert!(!store.live_nodes().await?[0].draining);
    Ok(())
}

pub async fn a_lapsed_lease_is_not_renewed(store: &dyn DurableStore) -> Outcome {
    store.join(&node("a"), None, LONG).await?;
    assert!(
        store.renew_lease(&node("a"), Duration::ZERO, false).await?.renewed,
        "it ran until then"
    );
    assert_eq!(store.live_nodes().await?, []);
    for _again in 0..2 {
        assert!(!store.renew_lease(&node("a"), LONG, false).await?.renewed);
    }
    assert_eq!(store.live_nodes().await?, [], "and the attempt changes nothing");
    Ok(())
}

pub async fn an_unknown_node_has_no_lease(store: &dyn DurableStore) -> Outcome {
    store.join(&node("a"), None, LONG).await?;
    assert!(!store.renew_lease(&node("b"), LONG, false).await?.renewed);
    assert_eq!(names(&store.live_nodes().await?), ["a"]);
    Ok(())
}

pub async fn a_node_that_leaves_is_removed_at_once(store: &dyn DurableStore) -> Outcome {
    store.join(&node("a"), None, LONG).await?;
    store.join(&node("b"), None, LONG).await?;
    store.leave(&node("a")).await?;
    store.leave(&node("a")).await?;
    assert_eq!(names(&store.live_nodes().await?), ["b"]);
    assert!(!store.renew_lease(&node("a"), LONG, false).await?.renewed);
    Ok(())
}

pub async fn a_renewal_returns_the_version_of_the_configuration(
    store: &dyn DurableStore,
) -> Outcome {
    store.join(&node("a"), None, LONG).await?;
    let before = store.renew_lease(&node("a"), LONG, false).await?.config_version;
    assert_eq!(before, store.config_version().await?);
    store.apply(AdminChange::PutTenant(&tenant_record("acme")), None).await?;
    let after = store.renew_lease(&node("a"), LONG, false).await?.config_version;
    assert!(after > before, "{before} {after}");
    assert_eq!(after, store.config_version().await?);
    Ok(())
}

pub async fn a_renewal_returns_the_sessions_to_end(store: &dyn DurableStore) -> Outcome {
    store.join(&node("a"), None, LONG).await?;
    store.join(&node("b"), None, LONG).await?;
    for (number, owner) in [(1, "a"), (2, "a"), (3, "b"), (4, "a")] {
        done(store, open(session_record(number), owner)).await?;
    }
    for number in [2, 3, 4] {
        assert!(store.apply(AdminChange::EndSession(&session(number)), None).await?);
    }
    let mut ended = store.renew_lease(&node("a"), LONG, false).await?.sessions_to_end;
    ended.sort_unstable();
    assert_eq!(ended, [session(2), session(4)]);
    assert_eq!(
        store.renew_lease(&node("a"), LONG, false).await?.sessions_to_end.len(),
        2,
        "as long as they are there"
    );
    assert_eq!(store.renew_lease(&node("b"), LONG, false).await?.sessions_to_end, [session(3)]);
    done(store, records::WriteOp::EndSession { key: session(3), epoch: 1 }).await?;
    let LeaseRenewal { renewed: held, sessions_to_end: ended, .. } =
        store.renew_lease(&node("b"), LONG, false).await?;
    assert!(held && ended.is_empty());
    Ok(())
}

fn names(nodes: &[NodeRecord]) -> Vec<&str> {
    nodes.iter().map(|record| record.node.as_str()).collect()
}
