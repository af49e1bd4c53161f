//! Keeps the audit log: signs checkpoints of its chains, publishes them outside of the database, and removes what is older than
//! the retention.
//!
//! Invariant: before a place of a chain is signed, every record since the last signed place was read and follows from it. A chain
//! that was edited gets no further checkpoint, and nothing of it is removed: the last checkpoint stays as the evidence.

use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use storage::{AuditChain, AuditCheckpoint, StoreError};
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    Control,
    audit_chain::{ChainMismatch, inspect},
    audit_seal::{AuditSeal, tenant},
    validation::now_us,
};
use crate::limits::{
    AUDIT_CHAINS_AT_ONCE, AUDIT_CHECKPOINT_ROWS, AUDIT_FLUSH_WAIT, AUDIT_PAGE_ROWS, SWEEP_INTERVAL,
    SWEEP_ROUNDS_MAX,
};

impl Control {
    /// Starts what keeps the audit log. Must be called inside the runtime, after [`Control::load`].
    pub fn keep_audit(self: &Arc<Self>) {
        tokio::spawn(keep(Arc::downgrade(self)));
    }

    /// Signs what is stored of the audit log by now. Called last, when nothing is added any more.
    pub(super) async fn seal_audit(&self) {
        let sealing = async {
            self.durable().audit.flush().await;
            self.checkpoint_audit(1).await;
        };
        if timeout(AUDIT_FLUSH_WAIT, sealing).await.is_err() {
            tracing::error!("the newest records of the audit log have no checkpoint");
        }
    }

    pub(super) fn audit_seal(&self) -> AuditSeal<'_> {
        AuditSeal(&self.keys.audit)
    }

    /// Signs the chains with at least so many records that no checkpoint covers. An error of the store is in the log already.
    async fn checkpoint_audit(&self, by: i64) {
        let _turn = self.keeping_audit.lock().await;
        let mut after = None::<String>;
        loop {
            let Ok(chains) = self
                .ask(
                    "audit_chains_ahead",
                    self.store().audit_chains_ahead(by, after.as_deref(), AUDIT_CHAINS_AT_ONCE),
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
                Err(misfit) => self.tell_of_misfit(&name, &misfit),
            }
        }
        let taken =
            self.ask("put_audit_checkpoints", self.store().put_audit_checkpoints(&made)).await?;
        made.retain(|(name, _)| taken.contains(name));
        self.metrics.observed.audit_checkpoints("signed", made.len());
        self.publish(&made).await;
        Ok(())
    }

    /// Reads on from the last signed place, and signs the place it comes to.
    async fn checkpoint_of(
        &self,
        chain: AuditChain,
    ) -> Result<Result<AuditCheckpoint, ChainMismatch>, StoreError> {
        let mut place = match self.audit_seal().last_signed(&chain) {
            Ok(place) => place,
            Err(misfit) => return Ok(Err(misfit)),
        };
        for _ in 0..SWEEP_ROUNDS_MAX {
            let page = self
                .ask(
                    "audit_links",
                    self.store().audit_links(&chain.name, place.position, AUDIT_PAGE_ROWS),
                )
                .await?;
            let is_last = page.links.len() < AUDIT_PAGE_ROWS as usize;
            place = match inspect(place, &page, is_last, &[]) {
                Ok(place) => place,
                Err(misfit) => return Ok(Err(misfit)),
            };
            if is_last {
                break;
            }
        }
        Ok(Ok(self.audit_seal().signed_checkpoint(&chain.name, &place, now_us())))
    }

    pub(super) fn tell_of_misfit(&self, name: &str, misfit: &ChainMismatch) {
        self.metrics.observed.audit_checkpoints("refused", 1);
        let (number, detail) = (misfit.number.unwrap_or_default(), &misfit.detail);
        tracing::error!(
            tenant = tenant(name),
            number,
            detail,
            "the audit log was changed in the database; run mcp-broker audit verify"
        );
    }

    /// Puts checkpoints where an owner of the database cannot change them: into the log, and into the file if there is one.
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
            self.metrics.observed.audit_checkpoints("unwritten", made.len());
            tracing::error!(path = shown, %error, "audit.checkpoint_file could not be written: these checkpoints are in the log only");
        }
    }
}

/// Opened for each writing, so that the file may be moved away at any time.
fn append(path: &Path, lines: &[String]) -> io::Result<()> {
    let mut file =
        OpenOptions::new().append(true).create(true).mode(0o600).open(PathBuf::from(path))?;
    file.write_all(format!("{}\n", lines.join("\n")).as_bytes())?;
    file.sync_data()
}

/// For as long as the process lives. Each step is finished before the next one begins.
async fn keep(control: Weak<Control>) {
    let Some((interval, many)) = control.upgrade().map(|control| {
        (control.config.audit.checkpoint_interval, control.durable().audit.unsigned())
    }) else {
        return;
    };
    let mut is_declared = false;
    let (mut sign_at, mut trim_at) = (Instant::now() + interval, Instant::now());
    loop {
        enum MaintenanceStep {
            Checkpoints(i64),
            Trimming,
        }
        // Cancel-safe: moments are kept here, and a notification that comes meanwhile is kept by its source.
        let due = tokio::select! { biased;
            () = sleep_until(sign_at) => MaintenanceStep::Checkpoints(1),
            () = many.notified() => MaintenanceStep::Checkpoints(AUDIT_CHECKPOINT_ROWS),
            () = sleep_until(trim_at) => MaintenanceStep::Trimming,
        };
        let Some(control) = control.upgrade() else { return };
        match due {
            MaintenanceStep::Checkpoints(by) => {
                control.checkpoint_audit(by).await;
                sign_at = if by == 1 { Instant::now() + interval } else { sign_at };
            }
            MaintenanceStep::Trimming => {
                is_declared = is_declared || control.declare_retention().await.is_ok();
                // An error is in the log and counted already; what was not done is done next time.
                let _later = control.trim_audit().await;
                trim_at = Instant::now() + by_lot(SWEEP_INTERVAL);
            }
        }
    }
}

/// So that replicas started together do not stay together.
fn by_lot(interval: Duration) -> Duration {
    interval.mul_f64(rand::random_range(0.5..1.5))
}
