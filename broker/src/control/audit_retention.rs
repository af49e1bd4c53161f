//! Retention of the audit log. The term is stored in the database, signed, and recorded in the log
//! itself.
//!
//! `audit.retain` is the term that this process requests. All replicas remove records by the term
//! in the database ([`AuditRetention`]).

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use config::units::format_duration;
use records::{AdminChange, AuditRetentionTerms, AuditTruncation};
use rules::{
    audit_retention::AuditRetention,
    limits::{AUDIT_CHAINS_AT_ONCE, SWEEP_ROWS},
};
use storage::StoreError;

use super::{
    AuditedAction, Author, Control, ControlError, audit_chain::ChainPosition, audit_seal::tenant,
};

/// Longest time of one removal of old records. The next one continues it.
const TRIM_WITHIN: Duration = Duration::from_secs(10);

impl Control {
    /// Stores `audit.retain` in the database, once after a start. A change is recorded in the same
    /// transaction. The delay of a shorter retention begins by the clock of the store, as the removal
    /// of records follows that clock.
    pub(super) async fn declare_retention(&self) -> Result<(), ControlError> {
        let configured = self.config.audit.retain;
        let now = self.query_store("read_clock", self.store().clock_us()).await?;
        let stored = self.query_store("get_audit_terms", self.store().audit_terms()).await?;
        let known = stored.as_ref().and_then(|terms| self.retention(terms));
        let log_is_empty = match &stored {
            Some(_) => false,
            None => self.audit_is_empty().await?,
        };
        let next = match &known {
            Some(known) => known.reconfigure(configured, now),
            None => Some(AuditRetention::initial(configured, now, log_is_empty)),
        };
        let Some(next) = next else { return Ok(()) };
        let text = serde_json::to_string(&next).map_err(|_| ControlError::Internal)?;
        let terms = self
            .audit_seal()
            .signed_terms(stored.as_ref().map_or(1, |terms| terms.version.saturating_add(1)), text);
        // The first term of an empty log needs no record.
        let author = if log_is_empty {
            Author::default()
        } else {
            Author::of(retention_change(known.as_ref(), &next, now))
        };
        match self.commit(None, AdminChange::PutAuditTerms(&terms), &author).await? {
            true => Ok(()),
            false => {
                Err(ControlError::Changed { what: "retention of the audit log", exists: true })
            }
        }
    }

    async fn audit_is_empty(&self) -> Result<bool, StoreError> {
        let chains =
            self.query_store("list_audit_chains", self.store().audit_chains(None, 1)).await?;
        let outside =
            self.query_store("get_unchained_audit", self.store().unchained_audit()).await?;
        Ok(chains.is_empty() && outside.until == 0)
    }

    /// Removes records older than the retention in force, from the beginning of each chain. The age
    /// counts by the clock of the store: one wrong clock of a replica must not empty the log.
    pub(super) async fn trim_audit(&self) -> Result<(), StoreError> {
        let _turn = self.keeping_audit.lock().await;
        let now = self.query_store("read_clock", self.store().clock_us()).await?;
        let terms = self.query_store("get_audit_terms", self.store().audit_terms()).await?;
        let Some(retain) = terms
            .and_then(|terms| self.retention(&terms))
            .and_then(|retention| retention.effective(now))
        else {
            return Ok(());
        };
        let before = now.saturating_sub(i64::try_from(retain.as_micros()).unwrap_or(i64::MAX));
        let started = Instant::now();
        while started.elapsed() < TRIM_WITHIN {
            let gone = self
                .query_store("trim_audit", self.store().trim_unchained_audit(before, SWEEP_ROWS))
                .await?;
            self.metrics.expired("audit", gone);
            if gone < u64::from(SWEEP_ROWS) {
                break;
            }
        }
        let mut refused = HashSet::new();
        while started.elapsed() < TRIM_WITHIN {
            if self.cut_each_audit_chain(before, started, &mut refused).await? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Cuts each chain with old records once. Skips the chains in `refused`, and adds those that do
    /// not verify. Returns the number of removed records.
    async fn cut_each_audit_chain(
        &self,
        before_us: i64,
        started: Instant,
        refused: &mut HashSet<String>,
    ) -> Result<u64, StoreError> {
        let (mut after, mut removed) = (None::<String>, 0);
        while started.elapsed() < TRIM_WITHIN {
            let chains = self
                .query_store(
                    "list_older_audit_chains",
                    self.store().audit_chains_to_truncate(
                        before_us,
                        after.as_deref(),
                        AUDIT_CHAINS_AT_ONCE,
                    ),
                )
                .await?;
            for name in &chains {
                if refused.contains(name) {
                    continue;
                }
                let Some(gone) = self.cut_audit_chain(name, before_us).await? else {
                    refused.insert(name.clone());
                    continue;
                };
                self.metrics.expired("audit", gone);
                removed += gone;
            }
            if chains.len() < AUDIT_CHAINS_AT_ONCE as usize {
                break;
            }
            after = chains.last().cloned();
        }
        Ok(removed)
    }

    /// Removes the oldest records of a chain. `None`: the chain does not verify, which is logged.
    async fn cut_audit_chain(&self, name: &str, before_us: i64) -> Result<Option<u64>, StoreError> {
        let page = self
            .query_store("list_audit_links", self.store().audit_chain_page(name, 0, SWEEP_ROWS))
            .await?;
        let followed = self.audit_seal().verified_start(&page.chain).and_then(
            |mut position: ChainPosition| {
                let mut old = page.records.iter().take_while(|link| link.at_us < before_us);
                old.try_for_each(|link| position.follow(link)).map(|()| position)
            },
        );
        let position = match followed {
            Ok(position) if position.position > page.chain.start.position => position,
            Ok(_) => return Ok(Some(0)),
            Err(misfit) => {
                self.log_mismatch(name, &misfit);
                return Ok(None);
            }
        };
        let cut: AuditTruncation = self.audit_seal().signed_cut(name, &position, before_us);
        let gone = self
            .query_store("cut_audit_chain", self.store().truncate_audit_chain(name, &cut))
            .await?;
        if gone > 0 {
            tracing::info!(
                tenant = tenant(name),
                removed = gone,
                last = position.number,
                "the broker removed audit records older than the retention"
            );
        }
        Ok(Some(gone))
    }

    /// Returns the retention, or `None` if this broker did not sign the terms. Unsigned terms
    /// remove nothing.
    pub(super) fn retention(&self, terms: &AuditRetentionTerms) -> Option<AuditRetention> {
        let retention = self
            .audit_seal()
            .checks_terms(terms)
            .then(|| serde_json::from_str(&terms.terms).ok())
            .flatten();
        if retention.is_none() {
            tracing::error!(
                "the stored retention of the audit log was not signed with this broker's secret: the broker removes no records"
            );
        }
        retention
    }
}

/// Returns the audited action for a change of the retention.
fn retention_change(
    known: Option<&AuditRetention>,
    next: &AuditRetention,
    now_us: i64,
) -> AuditedAction {
    let time =
        |time: Option<Duration>| time.map_or_else(|| "unlimited".to_owned(), format_duration);
    let before = time(known.and_then(|known| known.effective(now_us)));
    let target = match next.pending_reduction(now_us) {
        Some((announced, from_us)) => {
            let from = jiff::Timestamp::from_microsecond(from_us).unwrap_or_default();
            format!("{before} to {}, from {from} on", format_duration(announced))
        }
        None => format!("{before} to {}", time(next.effective(now_us))),
    };
    tracing::warn!(change = target, "the retention of the audit log changes");
    AuditedAction::of_process("audit.retain", target)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use records::{AuditFilter, AuditKind, AuditRecord};
    use rules::limits::AUDIT_RETENTION_DELAY;
    use storage::{AuditStore as _, DurableStore, SqliteStore};

    use super::super::{Verdict, tests::Rig, validation::now_us};
    use super::*;
    use crate::persistence::{Stores, tests::Meddled};

    const HOUR_US: i64 = 3_600_000_000;

    fn record(number: u8, hours_old: i64, of: Option<&str>) -> AuditRecord {
        let at_us = now_us() - hours_old * HOUR_US;
        AuditRecord {
            id: [number; 16],
            at_us,
            kind: AuditKind::Call,
            tenant: of.map(str::to_owned),
            body: "{}".into(),
        }
    }

    async fn rig(
        folder: &std::path::Path,
        store: &Arc<impl DurableStore + 'static>,
        yaml: &str,
    ) -> Rig {
        let stores = Stores {
            durable: store.clone(),
            events: None,
            hot: Arc::new(storage::hot::MemoryHotStore::new()),
        };
        Rig::on(stores, folder, yaml).await.unwrap()
    }

    /// Returns a folder and a store without contents.
    async fn empty_store() -> (tempfile::TempDir, Arc<SqliteStore>) {
        (tempfile::tempdir().unwrap(), Arc::new(SqliteStore::in_memory().await.unwrap()))
    }

    /// Returns the ids of the remaining records.
    async fn remaining_records(control: &Control) -> Vec<u8> {
        let stored =
            control.store().audit_records(&AuditFilter::default(), None, 100).await.unwrap();
        stored
            .iter()
            .filter(|stored| stored.record.kind == AuditKind::Call)
            .map(|stored| stored.record.id[0])
            .collect()
    }

    async fn verified(control: &Control, of: Option<&str>) -> Verdict {
        control.verify_audit(of, None, 100, None).await.unwrap()
    }

    async fn put_terms(control: &Control, version: i64, retention: &AuditRetention) {
        let terms =
            control.audit_seal().signed_terms(version, serde_json::to_string(retention).unwrap());
        assert!(
            control
                .commit(None, AdminChange::PutAuditTerms(&terms), &Author::default())
                .await
                .unwrap()
        );
    }

    #[tokio::test]
    async fn s15_expired_records_are_removed_from_each_chain_and_the_rest_verifies() {
        let (folder, store) = empty_store().await;
        let rig = rig(folder.path(), &store, "audit: {retain: 1h}").await;
        let control = &rig.control;
        control.declare_retention().await.unwrap();
        assert!(
            remaining_records(control).await.is_empty() && control.audit_is_empty().await.unwrap(),
            "there was nothing to tell"
        );
        let acme = [
            record(1, 3, Some("acme")),
            record(2, 2, Some("acme")),
            record(3, 0, Some("acme")),
            record(4, 2, Some("acme")),
        ];
        store.append_audit(&acme).await.unwrap();
        store.append_audit(&[record(5, 2, None), record(6, 0, None)]).await.unwrap();
        control.trim_audit().await.unwrap();
        assert_eq!(
            remaining_records(control).await,
            [3, 4, 6],
            "an old record after a younger one stays with it"
        );
        for (of, records) in [(Some("acme"), 2), (None, 1)] {
            let verdict = verified(control, of).await;
            assert_eq!((verdict.records, verdict.misfit), (records, None));
        }
        let chains = control.audit_chains(None, 10).await.unwrap().chains;
        assert_eq!(
            chains.iter().map(|chain| (chain.count, chain.removed)).collect::<Vec<_>>(),
            [(2, 1), (4, 2)]
        );
        control.trim_audit().await.unwrap();
        assert_eq!(remaining_records(control).await, [3, 4, 6]);
    }

    #[tokio::test]
    async fn s15_records_that_are_removed_while_a_checkpoint_is_made_are_no_mismatch() {
        let (folder, store) = empty_store().await;
        let rig = rig(folder.path(), &store, "audit: {retain: 1h}").await;
        let control = &rig.control;
        control.declare_retention().await.unwrap();
        // Records from before a long outage, which no checkpoint covers.
        let old = [record(1, 3, Some("acme")), record(2, 2, Some("acme"))];
        store.append_audit(&old).await.unwrap();
        let chains = control.store().audit_chains_to_checkpoint(1, None, 10).await.unwrap();
        let [chain] = <[_; 1]>::try_from(chains).unwrap();
        // Another replica removes them before this one reads the records of the chain.
        control.trim_audit().await.unwrap();
        store.append_audit(&[record(3, 0, Some("acme"))]).await.unwrap();
        let checkpoint = control.checkpoint_of(chain).await.unwrap();
        assert_eq!(checkpoint.map(|checkpoint| checkpoint.count), Ok(3));
    }

    #[tokio::test]
    async fn s15_a_shorter_retention_is_recorded_and_waits_for_its_delay() {
        let (folder, store) = empty_store().await;
        let before = rig(folder.path(), &store, "audit: {retain: 720h}").await;
        before.control.declare_retention().await.unwrap();
        store.append_audit(&[record(1, 2, None)]).await.unwrap();
        let after = rig(folder.path(), &store, "audit: {retain: 1h}").await;
        for _ in 0..2 {
            after.control.declare_retention().await.unwrap();
            after.control.trim_audit().await.unwrap();
        }
        assert_eq!(remaining_records(&after.control).await, [1]);
        let (entries, _) = after.control.audit(&AuditFilter::default(), None, 10).await.unwrap();
        let recorded: Vec<_> =
            entries.iter().filter(|entry| entry.action == "audit.retain").collect();
        assert_eq!(recorded.len(), 1, "{recorded:?}");
        assert_eq!(recorded[0].principal, "configuration");
        assert!(
            recorded[0].target.as_deref().unwrap().starts_with("720h to 1h, from "),
            "{recorded:?}"
        );
        // The delay is over.
        let declared = now_us() - 8 * 24 * HOUR_US;
        let shortened = AuditRetention::initial(Duration::from_secs(720 * 3_600), 0, true)
            .reconfigure(Duration::from_secs(3_600), declared);
        put_terms(&after.control, 3, &shortened.unwrap()).await;
        after.control.trim_audit().await.unwrap();
        assert!(remaining_records(&after.control).await.is_empty());
    }

    #[tokio::test]
    async fn s15_the_delay_of_a_shorter_retention_begins_by_the_clock_of_the_store() {
        let (folder, store) = (tempfile::tempdir().unwrap(), Meddled::start("sqlite").await);
        let before = rig(folder.path(), &store, "audit: {retain: 720h}").await;
        before.control.declare_retention().await.unwrap();
        store.append_audit(&[record(1, 2, None)]).await.unwrap();
        // The clock of this replica is late by more than the delay.
        store.set_clock_ahead(AUDIT_RETENTION_DELAY + Duration::from_secs(3_600));
        let after = rig(folder.path(), &store, "audit: {retain: 1h}").await;
        after.control.declare_retention().await.unwrap();
        after.control.trim_audit().await.unwrap();
        assert_eq!(remaining_records(&after.control).await, [1]);
    }

    #[tokio::test]
    async fn s15_unsigned_retention_terms_are_detected_and_remove_nothing() {
        let (folder, store) = empty_store().await;
        let rig = rig(folder.path(), &store, "audit: {retain: 1h}").await;
        let control = &rig.control;
        store.append_audit(&[record(1, 2, None)]).await.unwrap();
        let text =
            serde_json::to_string(&AuditRetention::initial(Duration::from_secs(3_600), 0, true))
                .unwrap();
        let forged = AuditRetentionTerms { version: 1, terms: text, signature: vec![0; 64] };
        assert!(
            control
                .commit(None, AdminChange::PutAuditTerms(&forged), &Author::default())
                .await
                .unwrap()
        );
        control.trim_audit().await.unwrap();
        assert_eq!(remaining_records(control).await, [1]);
        assert!(verified(control, None).await.misfit.unwrap().detail.contains("retention"));
        // The next start begins the delay again: nothing is removed before it is over.
        control.declare_retention().await.unwrap();
        control.trim_audit().await.unwrap();
        assert_eq!(remaining_records(control).await, [1]);
        assert_eq!(verified(control, None).await.misfit, None);
    }

    #[tokio::test]
    async fn s15_checkpoints_are_signed_up_to_the_newest_record_and_appended_to_the_file() {
        let (folder, store) = empty_store().await;
        let file = folder.path().join("checkpoints.jsonl");
        let rig = rig(
            folder.path(),
            &store,
            &format!("audit: {{checkpoint_file: '{}'}}", file.display()),
        )
        .await;
        let control = &rig.control;
        store
            .append_audit(&[
                record(1, 0, None),
                record(2, 0, Some("acme")),
                record(3, 0, Some("acme")),
            ])
            .await
            .unwrap();
        control.seal_audit().await;
        control.seal_audit().await;
        store.append_audit(&[record(4, 0, Some("acme"))]).await.unwrap();
        control.seal_audit().await;
        let text = std::fs::read_to_string(&file).unwrap();
        let kept: Vec<super::super::CheckpointView> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(
            kept.iter().map(|kept| (kept.tenant.as_deref(), kept.count)).collect::<Vec<_>>(),
            [(None, 1), (Some("acme"), 2), (Some("acme"), 3)]
        );
        for checkpoint in &kept {
            let verdict = control
                .verify_audit(checkpoint.tenant.as_deref(), None, 100, Some(checkpoint))
                .await
                .unwrap();
            assert_eq!(verdict.misfit, None);
        }
        let foreign = super::super::CheckpointView { count: 4, ..kept[2].clone() };
        assert!(
            control
                .verify_audit(Some("acme"), None, 100, Some(&foreign))
                .await
                .unwrap()
                .misfit
                .is_some()
        );
        assert!(
            control.metrics.render().contains(r#"mcp_audit_checkpoints_total{outcome="signed"} 3"#)
        );
    }
}
