//! Reload of the configuration file after SIGHUP.

use config::{Config, ConfigSource};

use super::{RunningBroker, ServeError, signals::Signals};
use crate::control::ReloadSummary;

impl RunningBroker {
    /// Reloads a changed configuration file. After a fault everything stays as it is. Returns the
    /// name of a stop signal like [`Self::follow_folder`].
    pub(super) async fn reload(&mut self, signals: &mut Signals) -> Option<&'static str> {
        let read = tokio::select! { biased;
            name = signals.stop() => return Some(name),
            () = self.broker.drain_requested() => return None,
            read = self.files.read_again(&self.control) => read,
        };
        match self.follow_file(read).await {
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
                let ReloadSummary { tenants, backends, issuers, documents } = changed.reloaded;
                tracing::info!(
                    tenants,
                    backends,
                    issuers,
                    documents,
                    generation,
                    "configuration reloaded"
                );
                self.follow_folder(signals).await
            }
            Err(error) => {
                let text = error.to_string();
                for fault in text.lines() {
                    tracing::error!(fault, "the configuration was not reloaded");
                }
                self.control.generation.record_file_refusal(&text, &self.control.metrics);
                None
            }
        }
    }

    /// Applies the whole file or nothing: every check precedes the first change.
    async fn follow_file(
        &mut self,
        read: Result<(ConfigSource, Config), ServeError>,
    ) -> Result<ReloadOutcome, ServeError> {
        let (source, next) = read?;
        let certificates = self.certificates.read().await?;
        certificates.count(&self.control.metrics);
        let certificates = certificates.usable()?;
        let reloaded = self.control.reload(&next).await?;
        // Everything is in force before the first wait.
        self.certificates.install(certificates, &self.control.metrics);
        self.control.broker.backend_resources.tls_clients.reload().await;
        self.control.record_reload(reloaded).await;
        self.control.configure_log(&next.telemetry.log);
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
