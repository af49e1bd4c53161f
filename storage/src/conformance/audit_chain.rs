//! Behaviours of every [`AuditChainStore`](crate::AuditChainStore).

use futures_util::future::try_join_all;
use records::{
    AUDIT_GENESIS, AdminChange, AuditChain, AuditCheckpoint, AuditFilter, AuditKind, AuditRecord,
    AuditRetentionTerms, AuditTruncation, ChainedAuditRecord,
};

use super::{Outcome, audit::moment, config::tenant_record};
use crate::{DurableStore, StoreError};

fn record(number: u16, of: Option<&str>) -> AuditRecord {
    let mut id = [0; 16];
    id[..2].copy_from_slice(&number.to_be_bytes());
    AuditRecord {
        id,
        at_us: moment(u32::from(number)),
        kind: if number.is_multiple_of(2) { AuditKind::Admin } else { AuditKind::Call },
        tenant: of.map(str::to_owned),
        body: format!("{{\"n\":{number},\"text\":\"ü '\\u0000\"}}"),
    }
}

/// Returns a chain after checking all its records from the start to the head.
async fn sound(
    store: &dyn DurableStore,
    name: &str,
) -> Result<(AuditChain, Vec<ChainedAuditRecord>), StoreError> {
    let found = store.audit_chain_page(name, 0, 1_000).await?;
    let (mut position, mut number, mut hash) =
        (found.chain.start.position, 0, found.chain.start.hash.clone());
    for link in &found.records {
        assert_eq!(link.position, position + 1, "{name}: no position is left out");
        assert!(link.number > number, "{name}: numbers grow along the chain");
        assert_eq!(link.hash, link.hash_after(&hash), "{name}: record {}", link.number);
        (position, number, hash) = (link.position, link.number, link.hash.clone());
    }
    assert_eq!(
        (found.chain.length, &found.chain.head),
        (position, &hash),
        "{name}: the chain ends where it says"
    );
    Ok((found.chain, found.records))
}

pub async fn s15_records_form_a_chain_for_each_tenant(store: &dyn DurableStore) -> Outcome {
    let owners = [Some("acme"), None, Some("b")];
    let records: Vec<AuditRecord> =
        (0..12).map(|number| record(number, owners[usize::from(number % 3)])).collect();
    store.append_audit(&records[..5]).await?;
    // The log already has some of these records, and one of them occurs twice.
    store.append_audit(&[&records[3..], &records[10..11]].concat()).await?;
    for (name, of) in [("acme", Some("acme")), ("", None), ("b", Some("b"))] {
        let (chain, links) = sound(store, name).await?;
        assert_eq!((chain.length, chain.checkpoint), (4, None));
        assert!(links.iter().all(|link| link.tenant.as_deref() == of), "{name}");
    }
    let all = store.audit_records(&AuditFilter::default(), None, 100).await?;
    assert_eq!(
        all.into_iter().map(|stored| stored.record).collect::<Vec<_>>(),
        records,
        "in the order given, over all chains"
    );
    let page = store.audit_chain_page("acme", 1, 2).await?;
    assert_eq!(page.records.iter().map(|link| link.position).collect::<Vec<_>>(), [2, 3]);
    let nothing = store.audit_chain_page("nobody", 0, 10).await?;
    assert_eq!((nothing.chain, nothing.records.len()), (AuditChain::empty("nobody"), 0));
    assert_eq!(store.unchained_audit().await?.first_unchained, None);
    Ok(())
}

pub async fn s15_writers_at_the_same_time_extend_one_chain(store: &dyn DurableStore) -> Outcome {
    let owners = [Some("acme"), None, Some("b")];
    let writers = (0..8_u16).map(|writer| async move {
        for batch in 0..5_u16 {
            let first = 1_000 * writer + 10 * batch;
            let batch: Vec<AuditRecord> = (first..first + 6)
                .map(|number| record(number, owners[usize::from((number + writer) % 3)]))
                .collect();
            store.append_audit(&batch).await?;
            store
                .apply(
                    AdminChange::PutTenant(&tenant_record("acme")),
                    Some(&record(first + 9, Some("acme"))),
                )
                .await?;
        }
        Ok::<_, StoreError>(())
    });
    try_join_all(writers).await?;
    let mut lengths = 0;
    for name in ["", "acme", "b"] {
        lengths += sound(store, name).await?.0.length;
    }
    assert_eq!(lengths, 8 * 5 * 7);
    Ok(())
}

pub async fn s15_only_the_beginning_of_a_chain_is_removed(store: &dyn DurableStore) -> Outcome {
    let records: Vec<AuditRecord> = (1..=9).map(|number| record(number, Some("acme"))).collect();
    store.append_audit(&records).await?;
    store.append_audit(&[record(20, None)]).await?;
    assert_eq!(store.audit_chains_to_truncate(moment(1), None, 10).await?, Vec::<String>::new());
    assert_eq!(store.audit_chains_to_truncate(moment(6), None, 10).await?, ["acme"]);
    assert_eq!(store.audit_chains_to_truncate(moment(100), None, 1).await?, [""]);
    assert_eq!(store.audit_chains_to_truncate(moment(100), Some(""), 1).await?, ["acme"]);
    assert_eq!(
        store.audit_chains_to_truncate(moment(100), Some("acme"), 1).await?,
        Vec::<String>::new()
    );
    let (_, links) = sound(store, "acme").await?;
    let cut = |position: usize| AuditTruncation {
        position: position as i64,
        hash: links[position - 1].hash.clone(),
        before_us: moment(6),
        signature: b"signed".to_vec(),
    };
    let wrong = AuditTruncation { hash: AUDIT_GENESIS.to_vec(), ..cut(5) };
    assert_eq!(
        store.truncate_audit_chain("acme", &wrong).await?,
        0,
        "another record is at that position"
    );
    assert_eq!(store.truncate_audit_chain("acme", &cut(3)).await?, 3);
    assert_eq!(store.truncate_audit_chain("acme", &cut(5)).await?, 2);
    assert_eq!(store.truncate_audit_chain("acme", &cut(5)).await?, 0, "it is gone already");
    let (chain, remaining) = sound(store, "acme").await?;
    assert_eq!((chain.length, chain.start, remaining.len()), (9, cut(5), 4));
    assert!(
        store.truncate_audit_chain("acme", &cut(7)).await.is_err(),
        "the newest of them is not old enough"
    );
    assert_eq!(sound(store, "acme").await?.1.len(), 4, "then nothing is removed");
    assert_eq!(
        store.trim_unchained_audit(moment(1_000), 100).await?,
        0,
        "a record of a chain is not removed by its age alone"
    );
    assert_eq!(sound(store, "").await?.1.len(), 1, "other chains are left alone");
    store.append_audit(&records[8..]).await?;
    assert_eq!(sound(store, "acme").await?.0.length, 9);
    Ok(())
}

pub async fn s15_checkpoints_only_move_forward(store: &dyn DurableStore) -> Outcome {
    store
        .append_audit(&(1..=5).map(|number| record(number, Some("acme"))).collect::<Vec<_>>())
        .await?;
    store.append_audit(&[record(6, None), record(7, Some("b"))]).await?;
    let names =
        |chains: Vec<AuditChain>| chains.into_iter().map(|chain| chain.name).collect::<Vec<_>>();
    assert_eq!(names(store.audit_chains_to_checkpoint(1, None, 10).await?), ["", "acme", "b"]);
    assert_eq!(names(store.audit_chains_to_checkpoint(1, Some(""), 1).await?), ["acme"]);
    assert_eq!(names(store.audit_chains_to_checkpoint(5, None, 10).await?), ["acme"]);
    let checkpoint = |count: i64| {
        let made = AuditCheckpoint {
            count,
            head: vec![count as u8; 32],
            at_us: count,
            signature: vec![1; 64],
        };
        ("acme".to_owned(), made)
    };
    assert_eq!(
        store
            .put_audit_checkpoints(&[checkpoint(4), ("nobody".to_owned(), checkpoint(4).1)])
            .await?,
        ["acme"]
    );
    assert_eq!(store.put_audit_checkpoints(&[checkpoint(3)]).await?, Vec::<String>::new());
    assert_eq!(store.audit_chain_page("acme", 0, 1).await?.chain.checkpoint, Some(checkpoint(4).1));
    assert_eq!(store.put_audit_checkpoints(&[checkpoint(5)]).await?, ["acme"]);
    assert_eq!(names(store.audit_chains_to_checkpoint(1, None, 10).await?), ["", "b"]);
    assert_eq!(store.put_audit_checkpoints(&[]).await?, Vec::<String>::new());
    Ok(())
}

pub async fn s15_chains_are_listed_by_name(store: &dyn DurableStore) -> Outcome {
    assert_eq!(store.audit_chains(None, 10).await?, []);
    let owners = [Some("b"), None, Some("acme"), Some("c-1"), Some("Z")];
    store
        .append_audit(
            &(0..20)
                .map(|number| record(number, owners[usize::from(number % 5)]))
                .collect::<Vec<_>>(),
        )
        .await?;
    let (mut seen, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = store.audit_chains(after.as_deref(), 2).await?;
        seen.extend(page.iter().map(|chain| (chain.name.clone(), chain.length)));
        after = page.last().map(|chain| chain.name.clone());
        if page.len() < 2 {
            break;
        }
    }
    assert_eq!(seen, ["", "Z", "acme", "b", "c-1"].map(|name| (name.to_owned(), 4)));
    Ok(())
}

pub async fn s15_terms_change_one_version_at_a_time(store: &dyn DurableStore) -> Outcome {
    assert_eq!(store.audit_terms().await?, None);
    let terms = |version: i64| AuditRetentionTerms {
        version,
        terms: format!("terms {version}"),
        signature: vec![9; 64],
    };
    assert!(store.apply(AdminChange::PutAuditTerms(&terms(1)), Some(&record(1, None))).await?);
    assert!(
        !store.apply(AdminChange::PutAuditTerms(&terms(1)), Some(&record(2, None))).await?,
        "another replica was first"
    );
    assert!(!store.apply(AdminChange::PutAuditTerms(&terms(3)), Some(&record(3, None))).await?);
    assert!(store.apply(AdminChange::PutAuditTerms(&terms(2)), Some(&record(4, None))).await?);
    assert_eq!(store.audit_terms().await?, Some(terms(2)));
    let records = store.audit_records(&AuditFilter::default(), None, 10).await?;
    assert_eq!(
        records.into_iter().map(|stored| stored.record).collect::<Vec<_>>(),
        [record(1, None), record(4, None)]
    );
    Ok(())
}
