//! Which reading of the configuration file is in force, and why the last other one is not. Told by `serve`, shown to
//! operators.

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{control::now_us, metrics::Metrics};

/// Faults that are shown; the log names every one.
const FAULTS_SHOWN_MAX: usize = 20;

/// The configuration of this process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConfigurationView {
    /// 1 after the start, and one more for each reload that came into force.
    pub generation: u64,
    /// When it came into force.
    pub since: String,
    /// Sections that differ in the file and wait for a restart.
    pub needs_restart: Vec<String>,
    /// The last attempt to follow the file, where that was refused: nothing of it is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedReload>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusedReload {
    pub at: String,
    /// What is wrong, a line each.
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

    pub fn taken(&self, needs_restart: &[&str], metrics: &Metrics) -> u64 {
        let mut view = self.lock();
        let generation = view.generation + 1;
        let needs_restart = needs_restart.iter().map(|section| (*section).to_owned()).collect();
        *view = ConfigurationView { generation, since: now(), needs_restart, refused: None };
        metrics.reloads.taken(generation);
        generation
    }

    pub fn refused(&self, why: &str, metrics: &Metrics) {
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
