//! Reload of the configuration file after SIGHUP.

use super::{
    RunningBroker, ServeError,
    exposure::{ACCEPTORS, report_certificates},
};
use crate::{config, control::ReloadSummary};

impl RunningBroker {
    /// Reloads a changed configuration file. After a fault everything stays as it is.
    pub(super) async fn reload(&mut self) {
        match self.follow_file().await {
            Ok(changed) => {
                let generation = self
                    .control
                    .generation
                    .record_reload(&changed.needs_restart, &self.control.metrics);
                for section in changed.needs_restart {
                    tracing::warn!(
                        section,
                        "a section of the configuration changed, which needs a restart"
                    );
                }
                let ReloadSummary { tenants, backends, issuers } = changed.reloaded;
                tracing::info!(tenants, backends, issuers, generation, "configuration reloaded");
                self.files.follow(&self.control).await;
            }
            Err(error) => {
                let text = error.to_string();
                for fault in text.lines() {
                    tracing::error!(fault, "the configuration was not reloaded");
                }
                self.control.generation.record_file_refusal(&text, &self.control.metrics);
            }
        }
    }

    /// Applies the whole file or nothing: every check precedes the first change.
    async fn follow_file(&mut self) -> Result<ReloadOutcome, ServeError> {
        let (source, next) = self.files.read_again()?;
        let mut certificates = Vec::with_capacity(self.acceptors.len());
        for (tls_acceptor, listener) in self.acceptors.iter().zip(ACCEPTORS) {
            let read = tls_acceptor.load_certificates();
            if tls_acceptor.tls().is_some() {
                self.control.metrics.observability.certificate_reload(listener, read.is_ok());
            }
            certificates.push(read?);
        }
        let reloaded = self.control.reload(&next).await?;
        // Everything is in force before the first wait.
        self.acceptors
            .iter()
            .zip(certificates)
            .for_each(|(acceptor, read)| acceptor.install_certificates(read));
        self.control.broker.backend_resources.tls_clients.reload().await;
        self.control.record_reload(reloaded).await;
        report_certificates(&self.acceptors, &self.control.metrics);
        // The filter was parsed with the file, so it is valid.
        let filter = &next.telemetry.log;
        if let Some(Err(error)) = self.logging.as_ref().map(|log| log.set_filter(filter)) {
            tracing::error!(%error, "the broker could not change the log filter and keeps the old one");
        }
        self.files.accept(source);
        Ok(ReloadOutcome {
            reloaded,
            needs_restart: config::sections_needing_restart(&self.config, &next),
        })
    }
}

/// Result of a reload.
struct ReloadOutcome {
    reloaded: ReloadSummary,
    needs_restart: Vec<&'static str>,
}
