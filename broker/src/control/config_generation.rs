//! Generation of the configuration in force, and the faults of refused reloads. Updated by `serve`,
//! shown to operators.
//!
//! Invariant: a refusal lasts until its own source is applied, the file or `include.folder`. Of two
//! refusals at once, operators see that of the file.

use std::sync::Arc;

use config::ConfigSettings;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::validation::now_us;
use crate::metrics::Metrics;

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
    /// The last reload, if it was refused: nothing of it is in force. If both the configuration file
    /// and `include.folder` are refused, the reload of the file.
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
pub struct ConfigGeneration(Mutex<GenerationState>);

#[derive(Debug)]
struct GenerationState {
    generation: u64,
    since: String,
    needs_restart: Vec<String>,
    /// The last reload of the configuration file, if it was refused.
    file_refusal: Option<RefusedReload>,
    /// The last reading of `include.folder`, if it was refused as a whole.
    folder_refusal: Option<RefusedReload>,
    files: Vec<IncludedFileView>,
    /// The settings of the last reload.
    settings: Option<Arc<ConfigSettings>>,
}

impl Default for ConfigGeneration {
    fn default() -> Self {
        Self(Mutex::new(GenerationState {
            generation: 1,
            since: now_text(),
            needs_restart: Vec::new(),
            file_refusal: None,
            folder_refusal: None,
            files: Vec::new(),
            settings: None,
        }))
    }
}

impl ConfigGeneration {
    pub fn view(&self) -> ConfigurationView {
        let state = self.lock();
        ConfigurationView {
            generation: state.generation,
            since: state.since.clone(),
            needs_restart: state.needs_restart.clone(),
            refused: state.file_refusal.as_ref().or(state.folder_refusal.as_ref()).cloned(),
            files: state.files.clone(),
        }
    }

    /// Returns the generation, and the settings of the last reload.
    pub(super) fn in_force(&self) -> (u64, Option<Arc<ConfigSettings>>) {
        let state = self.lock();
        (state.generation, state.settings.clone())
    }

    /// Records the settings of a reload that is applied.
    pub(super) fn record_settings(&self, settings: Arc<ConfigSettings>) {
        self.lock().settings = Some(settings);
    }

    /// Records that the configuration file is in force. The caller then reads `include.folder`
    /// again, so a refusal of the folder ends too.
    pub fn record_reload(&self, needs_restart: &[&str], metrics: &Metrics) -> u64 {
        let mut state = self.lock();
        state.needs_restart = needs_restart.iter().map(|section| (*section).to_owned()).collect();
        (state.file_refusal, state.folder_refusal) = (None, None);
        // The folder itself counts no more. It is not applied again if it did not change.
        let [applied, outdated, refused] = count_by_state(&state.files);
        metrics.reloads.files(applied, outdated, refused);
        metrics.reloads.file_applied(needs_restart.len());
        state.start_generation(metrics)
    }

    /// Records the state of each file of `include.folder`, and a new generation if one of them changed
    /// what is in force. A refusal of the folder is over.
    pub fn record_folder(
        &self,
        mut files: Vec<IncludedFileView>,
        is_changed: bool,
        metrics: &Metrics,
    ) -> u64 {
        for file in &mut files {
            file.faults.truncate(FAULTS_SHOWN_MAX);
        }
        let [applied, outdated, refused] = count_by_state(&files);
        metrics.reloads.files(applied, outdated, refused);
        let mut state = self.lock();
        state.files = files;
        state.folder_refusal = None;
        if is_changed { state.start_generation(metrics) } else { state.generation }
    }

    /// Records why the configuration file is not applied.
    pub fn record_file_refusal(&self, why: &str, metrics: &Metrics) {
        self.lock().file_refusal = Some(RefusedReload::now(why));
        metrics.reloads.file_refused();
    }

    /// Records why nothing of `include.folder` is applied.
    /// The folder itself then counts as a refused file.
    pub fn record_folder_refusal(&self, why: &str, metrics: &Metrics) {
        let mut state = self.lock();
        state.folder_refusal = Some(RefusedReload::now(why));
        let [applied, outdated, refused] = count_by_state(&state.files);
        metrics.reloads.files(applied, outdated, refused + 1);
        metrics.reloads.refused();
    }

    fn lock(&self) -> MutexGuard<'_, GenerationState> {
        self.0.lock()
    }
}

/// Returns the numbers of applied, outdated and refused files.
fn count_by_state(files: &[IncludedFileView]) -> [usize; 3] {
    [IncludedFileState::Applied, IncludedFileState::Outdated, IncludedFileState::Refused]
        .map(|state| files.iter().filter(|file| file.state == state).count())
}

impl GenerationState {
    fn start_generation(&mut self, metrics: &Metrics) -> u64 {
        (self.generation, self.since) = (self.generation + 1, now_text());
        metrics.reloads.reloaded(self.generation);
        self.generation
    }
}

impl RefusedReload {
    fn now(why: &str) -> Self {
        let faults = why.lines().take(FAULTS_SHOWN_MAX).map(str::to_owned).collect();
        Self { at: now_text(), faults }
    }
}

/// Returns the present time as the admin API shows it.
pub fn now_text() -> String {
    super::resource_views::moment(now_us())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_ends_a_refusal_of_the_folder_in_the_view_and_in_the_metrics() {
        let (generation, metrics) = (ConfigGeneration::default(), Metrics::new(false));
        let is_refused = || metrics.render().contains(r#"mcp_config_files{state="refused"} 1"#);
        let file = IncludedFileView {
            name: "a.yaml".to_owned(),
            state: IncludedFileState::Applied,
            read_at: now_text(),
            faults: Vec::new(),
        };
        generation.record_folder(vec![file], true, &metrics);
        generation.record_folder_refusal("include.folder: cannot be read", &metrics);
        assert!(is_refused() && generation.view().refused.is_some());
        // The folder can be read again and has not changed, so nothing else is recorded about it.
        generation.record_reload(&[], &metrics);
        assert!(!is_refused() && generation.view().refused.is_none(), "{}", metrics.render());
        assert!(metrics.render().contains(r#"mcp_config_files{state="applied"} 1"#));
    }
}
