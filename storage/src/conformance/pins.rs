//! Behaviours of every [`PinStore`](crate::PinStore).

use futures_util::future::join_all;
use records::{
    AdminChange, BackendRecord, PIN_APPROVED_MAX, PinApproval, PinBlock, PinDefinitions, PinKey,
    PinKind, PinSighting, StoredPin,
};

use super::{Outcome, backend, config::tenant_record, tenant};
use crate::{DurableStore, StoreError};

const MANY: u32 = 1_000;

pub async fn the_first_sighting_of_any_replica_stays(store: &dyn DurableStore) -> Outcome {
    let sightings: Vec<PinSighting> = (0..8).map(|number| sighting("a", number)).collect();
    let tries = join_all(sightings.iter().map(|one| see(store, std::slice::from_ref(one)))).await;
    let stored = tries.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
    let first = &stored[0].first_hash;
    assert!(stored.len() == 8 && stored.iter().all(|pin| pin.first_hash == *first), "{stored:?}");
    let again = see(store, &[sighting("a", 9)]).await?;
    assert_eq!((&again[0].first_hash, &again[0].seen_hash), (first, &hash(9)));
    let definitions = definitions(store, "a").await?.expect("a pin");
    assert_ne!(definitions.accepted, definitions.seen);
    assert_eq!(definitions.seen, "{\"n\":9}");
    assert_eq!(pins(store).await?, again);
    Ok(())
}

pub async fn a_sighting_changes_no_decision(store: &dyn DurableStore) -> Outcome {
    see(store, &[sighting("a", 1), sighting("b", 1)]).await?;
    assert!(approve(store, &[("a", 1)]).await?);
    assert!(block(store, &["b"]).await?);
    let before = pins(store).await?;
    let after = see(store, &[sighting("a", 2), sighting("b", 2)]).await?;
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(after.seen_hash, hash(2));
        let seen_at_us = after.seen_at_us;
        let expected = StoredPin { seen_hash: hash(2), seen_at_us, ..before.clone() };
        assert_eq!(*after, expected);
    }
    assert_eq!(after[0].approved, [hash(1)]);
    assert!(after[1].is_blocked && after[1].approved.is_empty());
    assert_eq!(after[0].decided_by.as_deref(), Some("ada"));
    Ok(())
}

pub async fn an_approval_names_the_hash_that_was_seen_last(store: &dyn DurableStore) -> Outcome {
    assert!(!approve(store, &[("a", 1)]).await?, "nothing was seen");
    see(store, &[sighting("a", 1)]).await?;
    see(store, &[sighting("a", 2)]).await?;
    assert!(!approve(store, &[("a", 1)]).await?, "the hash has moved");
    assert_eq!(pins(store).await?[0].decisions, 0);
    assert!(approve(store, &[("a", 2)]).await?);
    let pin = pins(store).await?.remove(0);
    assert_eq!((pin.decisions, pin.approved, pin.first_hash), (1, vec![hash(2)], hash(1)));
    let definitions = definitions(store, "a").await?.expect("a pin");
    assert_eq!(definitions.accepted, definitions.seen);
    Ok(())
}

pub async fn an_approval_of_pins_is_applied_as_a_whole(store: &dyn DurableStore) -> Outcome {
    see(store, &[sighting("a", 1), sighting("b", 1)]).await?;
    assert!(!approve(store, &[("a", 1), ("b", 2)]).await?);
    assert!(!approve(store, &[("a", 1), ("c", 1)]).await?);
    assert!(!block(store, &["a", "c"]).await?);
    let untouched = pins(store).await?;
    assert!(untouched.iter().all(|pin| pin.decisions == 0 && pin.approved.is_empty()));
    assert!(approve(store, &[("a", 1), ("b", 1)]).await?);
    assert!(pins(store).await?.iter().all(|pin| pin.decisions == 1));
    Ok(())
}

pub async fn approved_hashes_are_kept_up_to_a_number(store: &dyn DurableStore) -> Outcome {
    let last = u8::try_from(PIN_APPROVED_MAX + 1).expect("a small number");
    for number in 1..=last {
        see(store, &[sighting("a", number)]).await?;
        assert!(approve(store, &[("a", number)]).await?);
    }
    let expected: Vec<String> = (2..=last).rev().map(hash).collect();
    assert_eq!(pins(store).await?[0].approved, expected);
    see(store, &[sighting("a", 3)]).await?;
    assert!(approve(store, &[("a", 3)]).await?, "approved once more");
    let approved = pins(store).await?.remove(0).approved;
    assert_eq!((approved.len(), &approved[0]), (PIN_APPROVED_MAX, &hash(3)));
    Ok(())
}

pub async fn a_block_lasts_until_an_approval(store: &dyn DurableStore) -> Outcome {
    assert!(!block(store, &["a"]).await?, "nothing was seen");
    see(store, &[sighting("a", 1)]).await?;
    assert!(approve(store, &[("a", 1)]).await? && block(store, &["a"]).await?);
    see(store, &[sighting("a", 2)]).await?;
    let pin = pins(store).await?.remove(0);
    assert!(pin.is_blocked && pin.decisions == 2);
    assert!(approve(store, &[("a", 2)]).await?);
    assert!(!pins(store).await?[0].is_blocked);
    Ok(())
}

pub async fn removed_objects_are_marked_and_forgotten_on_request(
    store: &dyn DurableStore,
) -> Outcome {
    see(store, &[sighting("a", 1), sighting("b", 1), sighting("c", 1)]).await?;
    assert!(approve(store, &[("b", 1)]).await?);
    store.record_sightings(&tenant("acme"), &backend("one"), &[], &keys(&["a", "b"]), MANY).await?;
    let listed: Vec<bool> = pins(store).await?.iter().map(|pin| pin.is_listed).collect();
    assert_eq!(listed, [false, false, true]);
    assert!(approve(store, &[("c", 1)]).await?);
    assert_eq!(pins(store).await?.len(), 3, "an approval alone forgets nothing");
    let forgetting = PinApproval { forgets_gone: true, ..approval(&[("c", 1)]) };
    assert!(store.apply(AdminChange::ApprovePins(&forgetting), None).await?);
    let remaining: Vec<String> = pins(store).await?.into_iter().map(|pin| pin.key.name).collect();
    assert_eq!(remaining, ["b", "c"], "what an operator decided about stays");
    let back = see(store, &[sighting("b", 1)]).await?;
    assert!(back[0].is_listed);
    Ok(())
}

pub async fn a_backend_has_a_limited_number_of_pins(store: &dyn DurableStore) -> Outcome {
    let (acme, one) = (tenant("acme"), backend("one"));
    let three = [sighting("a", 1), sighting("b", 1), sighting("c", 1)];
    let stored = store.record_sightings(&acme, &one, &three, &[], 2).await?;
    assert_eq!(names(&stored), ["a", "b"]);
    let two = [sighting("b", 2), sighting("d", 1)];
    let stored = store.record_sightings(&acme, &one, &two, &[], 2).await?;
    assert_eq!((names(&stored), &stored[0].seen_hash), (vec!["b"], &hash(2)));
    let other = store.record_sightings(&acme, &backend("two"), &three, &[], 2).await?;
    assert_eq!(other.len(), 2, "the other backend has its own");
    Ok(())
}

pub async fn pins_end_with_their_backend_and_their_tenant(store: &dyn DurableStore) -> Outcome {
    let (acme, one) = (tenant("acme"), backend("one"));
    store.apply(AdminChange::PutTenant(&tenant_record("acme")), None).await?;
    let settings = BackendRecord {
        tenant: acme.clone(),
        backend: one.clone(),
        settings: vec![1],
        created_at_us: 1,
        updated_at_us: 1,
    };
    see(store, &[sighting("a", 1)]).await?;
    store.apply(AdminChange::PutBackend(&settings), None).await?;
    assert_eq!(pins(store).await?, [], "a new backend begins without pins");
    see(store, &[sighting("a", 1)]).await?;
    store.apply(AdminChange::PutBackend(&settings), None).await?;
    assert_eq!(pins(store).await?.len(), 1, "a replaced backend keeps them");
    store.apply(AdminChange::DeleteBackend(&acme, &one), None).await?;
    assert_eq!(pins(store).await?, []);
    see(store, &[sighting("a", 1)]).await?;
    store.apply(AdminChange::DeleteTenant(&acme), None).await?;
    assert_eq!(pins(store).await?, []);
    Ok(())
}

pub async fn decisions_are_counted_and_change_the_version(store: &dyn DurableStore) -> Outcome {
    let version = store.config_version().await?;
    see(store, &[sighting("a", 1), sighting("b", 1)]).await?;
    see(store, &[sighting("a", 2)]).await?;
    assert_eq!(
        store.config_version().await?,
        version,
        "a sighting does not change the configuration"
    );
    assert_eq!(store.pin_decisions().await?, []);
    assert!(approve(store, &[("a", 2), ("b", 1)]).await?);
    let approved = store.config_version().await?;
    assert!(approved > version);
    assert!(block(store, &["b"]).await?);
    assert!(store.config_version().await? > approved);
    assert_eq!(store.pin_decisions().await?, [(tenant("acme"), backend("one"), 3)]);
    Ok(())
}

async fn see(store: &dyn DurableStore, seen: &[PinSighting]) -> Result<Vec<StoredPin>, StoreError> {
    let mut stored =
        store.record_sightings(&tenant("acme"), &backend("one"), seen, &[], MANY).await?;
    stored.sort_by(|one, other| one.key.cmp(&other.key));
    Ok(stored)
}

async fn pins(store: &dyn DurableStore) -> Result<Vec<StoredPin>, StoreError> {
    store.pins_of(&tenant("acme"), &backend("one")).await
}

async fn definitions(
    store: &dyn DurableStore,
    name: &str,
) -> Result<Option<PinDefinitions>, StoreError> {
    store.pin_definitions(&tenant("acme"), &backend("one"), &key(name)).await
}

async fn approve(store: &dyn DurableStore, items: &[(&str, u8)]) -> Result<bool, StoreError> {
    store.apply(AdminChange::ApprovePins(&approval(items)), None).await
}

async fn block(store: &dyn DurableStore, names: &[&str]) -> Result<bool, StoreError> {
    let block = PinBlock {
        tenant: tenant("acme"),
        backend: backend("one"),
        keys: keys(names),
        by: "bob".to_owned(),
        at_us: 7,
    };
    store.apply(AdminChange::BlockPins(&block), None).await
}

fn approval(items: &[(&str, u8)]) -> PinApproval {
    PinApproval {
        tenant: tenant("acme"),
        backend: backend("one"),
        items: items.iter().map(|(name, number)| (key(name), hash(*number))).collect(),
        forgets_gone: false,
        by: "ada".to_owned(),
        at_us: 5,
    }
}

fn names(pins: &[StoredPin]) -> Vec<&str> {
    pins.iter().map(|pin| pin.key.name.as_str()).collect()
}

fn keys(names: &[&str]) -> Vec<PinKey> {
    names.iter().map(|name| key(name)).collect()
}

fn key(name: &str) -> PinKey {
    PinKey { kind: PinKind::Tool, name: name.to_owned() }
}

fn hash(number: u8) -> String {
    format!("v1:{number:064x}")
}

fn sighting(name: &str, number: u8) -> PinSighting {
    PinSighting {
        key: key(name),
        hash: hash(number),
        definition: format!("{{\"n\":{number}}}"),
        findings: "[]".to_owned(),
    }
}
