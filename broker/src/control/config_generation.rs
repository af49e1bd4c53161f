//! Generation of the configuration in force, and the faults of the last refused reload. Updated by
//! `serve`, shown to operators.

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{control::now_us, metrics::Metrics};

/// Maximum number of faults in the view. The log contains every fault.
const FAULTS_SHOWN_MAX: usize = 20;

/// Configuration of this process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConfigurationView {
    /// 1 after the start, plus one for each applied reload.
    pub generation: u64,
    /// Time at which the generation was applied.
    pub since: String,
    /// Sections that changed in the file and require a restart.
    pub needs_restart: Vec<String>,
    /// The last reload, if it was refused: nothing of it is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedReload>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusedReload {
    pub at: String,
    /// Faults of the file, one per line.
    pub faults: Vec<String>,
}

#[derive(Debug)]
pub struct ConfigGeneration(Mutex<ConfigurationView>);

impl Default for ConfigGeneration {
    fn default() -> Self {
        Self(Mutex::new(ConfigurationView {
            generation: 1,
            since: now(),
            needs_restart: Vec::new(),
            refused: None,
        }))
    }
}

impl ConfigGeneration {
    pub fn view(&self) -> ConfigurationView {
        self.lock().clone()
    }

    pub fn record_reload(&self, needs_restart: &[&str], metrics: &Metrics) -> u64 {
        let mut view = self.lock();
        let generation = view.generation + 1;
        let needs_restart = needs_restart.iter().map(|section| (*section).to_owned()).collect();
        *view = ConfigurationView { generation, since: now(), needs_restart, refused: None };
        metrics.reloads.reloaded(generation);
        generation
    }

    pub fn record_refusal(&self, why: &str, metrics: &Metrics) {
        let faults = why.lines().take(FAULTS_SHOWN_MAX).map(str::to_owned).collect();
        self.lock().refused = Some(RefusedReload { at: now(), faults });
        metrics.reloads.refused();
    }

    fn lock(&self) -> MutexGuard<'_, ConfigurationView> {
        self.0.lock()
    }
}

fn now() -> String {
    super::resource_views::moment(now_us())
}
