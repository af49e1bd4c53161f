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
    /// Files of `include.folder`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<IncludedFileView>,
}

/// A file of `include.folder`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IncludedFileView {
    pub name: String,
    pub state: IncludedFileState,
    /// Time at which the broker read this text of the file.
    pub read_at: String,
    /// Faults of the file, one per line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
}

/// Which version of a file is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IncludedFileState {
    /// This one.
    Applied,
    /// An earlier one, because this one has faults.
    Outdated,
    /// None, because this one has faults.
    Refused,
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
            since: now_text(),
            needs_restart: Vec::new(),
            refused: None,
            files: Vec::new(),
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
        let files = std::mem::take(&mut view.files);
        *view = ConfigurationView {
            generation,
            since: now_text(),
            needs_restart,
            refused: None,
            files,
        };
        metrics.reloads.reloaded(generation);
        generation
    }

    /// Records the state of each file of `include.folder`, and a new generation if one of them changed
    /// what is in force. `was_refused`: the last refusal was that of the folder, and is over.
    pub fn record_folder(
        &self,
        mut files: Vec<IncludedFileView>,
        is_changed: bool,
        was_refused: bool,
        metrics: &Metrics,
    ) -> u64 {
        for file in &mut files {
            file.faults.truncate(FAULTS_SHOWN_MAX);
        }
        let count = |state| files.iter().filter(|file| file.state == state).count();
        let [applied, outdated, refused] =
            [IncludedFileState::Applied, IncludedFileState::Outdated, IncludedFileState::Refused]
                .map(count);
        metrics.reloads.files(applied, outdated, refused);
        let mut view = self.lock();
        view.files = files;
        if was_refused {
            view.refused = None;
        }
        if is_changed {
            (view.generation, view.since) = (view.generation + 1, now_text());
            metrics.reloads.reloaded(view.generation);
        }
        view.generation
    }

    pub fn record_refusal(&self, why: &str, metrics: &Metrics) {
        let faults = why.lines().take(FAULTS_SHOWN_MAX).map(str::to_owned).collect();
        self.lock().refused = Some(RefusedReload { at: now_text(), faults });
        metrics.reloads.refused();
    }

    fn lock(&self) -> MutexGuard<'_, ConfigurationView> {
        self.0.lock()
    }
}

/// Returns the present time as the admin API shows it.
pub fn now_text() -> String {
    super::resource_views::moment(now_us())
}
