//! Maintains the audit log: signs checkpoints of its chains, publishes them outside the database,
//! and removes records older than the retention.
//!
//! Invariant: before a position of a chain is signed, every record since the last signed position
//! was read and verified. An edited chain gets no further checkpoint and no removal: the last
//! checkpoint stays as evidence.

use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use records::{AuditChain, AuditCheckpoint};
use rules::limits::{
    AUDIT_CHAINS_AT_ONCE, AUDIT_CHECKPOINT_ROWS, AUDIT_FLUSH_WAIT, AUDIT_PAGE_ROWS, SWEEP_INTERVAL,
    SWEEP_ROUNDS_MAX,
};
use storage::StoreError;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};

use super::{
    Control,
    audit_chain::{ChainMismatch, verify_page},
    audit_seal::{AuditSeal, tenant},
    validation::now_us,
};

impl Control {
    /// Starts the maintenance of the audit log. Must be called inside the runtime, after
    /// [`Control::load`].
    pub fn start_audit_maintenance(self: &Arc<Self>) {
        tokio::spawn(run_maintenance(Arc::downgrade(self)));
    }

    /// Signs the stored audit log. Called last, when no more records are added.
    pub(super) async fn seal_audit(&self) {
        let sealing = async {
            self.persistence().audit.flush().await;
            self.checkpoint_audit(1).await;
        };
        if timeout(AUDIT_FLUSH_WAIT, sealing).await.is_err() {
            tracing::error!("the newest records of the audit log have no checkpoint");
        }
    }

    pub(super) fn audit_seal(&self) -> AuditSeal<'_> {
        AuditSeal(&self.keys.audit)
    }

    /// Signs the chains with at least `by` records that no checkpoint covers. An error of the store
    /// is already in the log.
    async fn checkpoint_audit(&self, by: i64) {
        let _turn = self.keeping_audit.lock().await;
        let mut after = None::<String>;
        loop {
            let Ok(chains) = self
                .query_store(
                    "list_audit_chains_ahead",
                    self.store().audit_chains_to_checkpoint(
                        by,
                        after.as_deref(),
                        AUDIT_CHAINS_AT_ONCE,
                    ),
                )
                .await
            else {
                return;
            };
            after = chains.last().map(|chain| chain.name.clone());
            let is_last = chains.len() < AUDIT_CHAINS_AT_ONCE as usize;
            if self.checkpoint_chains(chains).await.is_err() || is_last {
                return;
            }
        }
    }

    async fn checkpoint_chains(&self, chains: Vec<AuditChain>) -> Result<(), StoreError> {
        let mut made = Vec::with_capacity(chains.len());
        for chain in chains {
            let name = chain.name.clone();
            match self.checkpoint_of(chain).await? {
                Ok(checkpoint) => made.push((name, checkpoint)),
                Err(misfit) => self.log_mismatch(&name, &misfit),
            }
        }
        let taken = self
            .query_store("put_audit_checkpoints", self.store().put_audit_checkpoints(&made))
            .await?;
        made.retain(|(name, _)| taken.contains(name));
        self.metrics.observability.audit_checkpoints("signed", made.len());
        self.publish(&made).await;
        Ok(())
    }

    /// Reads on from the last signed position, and signs the position that it reaches.
    pub(super) async fn checkpoint_of(
        &self,
        chain: AuditChain,
    ) -> Result<Result<AuditCheckpoint, ChainMismatch>, StoreError> {
        let mut position = match self.audit_seal().last_signed(&chain) {
            Ok(position) => position,
            Err(misfit) => return Ok(Err(misfit)),
        };
        for _ in 0..SWEEP_ROUNDS_MAX {
            let page = self
                .query_store(
                    "list_audit_links",
                    self.store().audit_chain_page(&chain.name, position.position, AUDIT_PAGE_ROWS),
                )
                .await?;
            let is_last = page.records.len() < AUDIT_PAGE_ROWS as usize;
            // The retention may have removed records since `chain` or the page before was read.
            match self.audit_seal().verified_start(&page.chain) {
                Ok(start) if start.position > position.position => position = start,
                Ok(_) => {}
                Err(misfit) => return Ok(Err(misfit)),
            }
            position = match verify_page(position, &page, is_last, &[]) {
                Ok(position) => position,
                Err(misfit) => return Ok(Err(misfit)),
            };
            if is_last {
                break;
            }
        }
        Ok(Ok(self.audit_seal().signed_checkpoint(&chain.name, &position, now_us())))
    }

    pub(super) fn log_mismatch(&self, name: &str, misfit: &ChainMismatch) {
        self.metrics.observability.audit_checkpoints("refused", 1);
        let (number, detail) = (misfit.number.unwrap_or_default(), &misfit.detail);
        tracing::error!(
            tenant = tenant(name),
            number,
            detail,
            "the audit log was changed in the database; run mcp-broker audit verify"
        );
    }

    /// Publishes checkpoints where an owner of the database cannot change them: in the log, and in
    /// the file, if any.
    async fn publish(&self, made: &[(String, AuditCheckpoint)]) {
        let lines: Vec<String> = made
            .iter()
            .filter_map(|(name, checkpoint)| {
                serde_json::to_string(&self.audit_seal().published(name, checkpoint)).ok()
            })
            .collect();
        for checkpoint in &lines {
            tracing::info!(%checkpoint, "audit checkpoint");
        }
        let Some(path) = self.config.audit.checkpoint_file.clone().filter(|_| !lines.is_empty())
        else {
            return;
        };
        let shown = path.display().to_string();
        let written = tokio::task::spawn_blocking(move || append(&path, &lines))
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)));
        if let Err(error) = written {
            self.metrics.observability.audit_checkpoints("unwritten", made.len());
            tracing::error!(path = shown, %error, "audit.checkpoint_file could not be written: these checkpoints are in the log only");
        }
    }
}

/// Appends lines. Opens the file for each write, so that it may be moved away at any time.
fn append(path: &Path, lines: &[String]) -> io::Result<()> {
    let mut file =
        OpenOptions::new().append(true).create(true).mode(0o600).open(PathBuf::from(path))?;
    file.write_all(format!("{}\n", lines.join("\n")).as_bytes())?;
    file.sync_data()
}

/// A step of the maintenance.
#[derive(Debug, PartialEq, Eq)]
enum MaintenanceStep {
    /// Signs the chains with at least so many records without a checkpoint.
    Checkpoints(i64),
    Trimming,
}

/// Waits for the next step. A step whose time has come is never displaced by `many`, which under
/// high load is notified during each step.
async fn next_step(sign_at: Instant, trim_at: Instant, many: &Notify) -> MaintenanceStep {
    let first_at = sign_at.min(trim_at);
    if first_at > Instant::now() {
        // Cancel-safe: the source keeps a notification that comes meanwhile.
        tokio::select! {
            () = sleep_until(first_at) => {}
            () = many.notified() => return MaintenanceStep::Checkpoints(AUDIT_CHECKPOINT_ROWS),
        }
    }
    if sign_at <= trim_at { MaintenanceStep::Checkpoints(1) } else { MaintenanceStep::Trimming }
}

/// Runs the maintenance for the life of the process. Each step completes before the next one
/// begins.
async fn run_maintenance(control: Weak<Control>) {
    let Some((interval, many)) = control.upgrade().map(|control| {
        (control.config.audit.checkpoint_interval, control.persistence().audit.unsigned())
    }) else {
        return;
    };
    let mut is_declared = false;
    let (mut sign_at, mut trim_at) = (Instant::now() + interval, Instant::now());
    loop {
        let due = next_step(sign_at, trim_at, &many).await;
        let Some(control) = control.upgrade() else { return };
        match due {
            MaintenanceStep::Checkpoints(by) => {
                control.checkpoint_audit(by).await;
                sign_at = if by == 1 { Instant::now() + interval } else { sign_at };
            }
            MaintenanceStep::Trimming => {
                is_declared = is_declared || control.declare_retention().await.is_ok();
                // An error is already logged and counted. The next turn tries again.
                let _later = control.trim_audit().await;
                trim_at = Instant::now() + jittered(SWEEP_INTERVAL);
            }
        }
    }
}

/// Returns a random interval, so that replicas that started together do not stay together.
fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(rand::random_range(0.5..1.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn many_records_displace_no_step_whose_time_has_come() {
        let (many, past) = (Notify::new(), Instant::now());
        let (later, much_later) =
            (past + Duration::from_secs(600), past + Duration::from_secs(1_200));
        many.notify_one();
        assert_eq!(next_step(later, past, &many).await, MaintenanceStep::Trimming);
        assert_eq!(next_step(past, later, &many).await, MaintenanceStep::Checkpoints(1));
        assert_eq!(
            next_step(later, much_later, &many).await,
            MaintenanceStep::Checkpoints(AUDIT_CHECKPOINT_ROWS),
            "the notification is kept for the step after them"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_earlier_of_two_steps_comes_first() {
        let (many, now) = (Notify::new(), Instant::now());
        let (soon, later) = (now + Duration::from_secs(1), now + Duration::from_secs(2));
        assert_eq!(next_step(soon, later, &many).await, MaintenanceStep::Checkpoints(1));
        let past = Instant::now();
        assert_eq!(next_step(later, past, &many).await, MaintenanceStep::Trimming);
    }
}
