//! Follows the files of `include.folder`: applies those that changed, without a signal.
//!
//! Invariant: a fault of one file leaves the others alone. The broker keeps what it accepted of that
//! file before, and shows the fault until the file changes. A folder that cannot be read changes
//! nothing.

use std::{collections::BTreeMap, mem, path::PathBuf, sync::Arc};

use crate::{
    config::{
        Config, ConfigSource, FieldError, FieldErrors, IncludedFile,
        included::{FoundFile, read_folder},
    },
    control::{Control, IncludedFileState, IncludedFileView, LoadError, ReloadSummary, now_text},
};

/// The folder as it was read last.
pub(super) struct ConfigFolder {
    folder: PathBuf,
    files: Files,
    /// Why nothing of the folder could be applied last, in lines.
    fault: Option<String>,
}

type Files = BTreeMap<String, FollowedFile>;

/// A file of the folder.
#[derive(Clone)]
struct FollowedFile {
    text: Result<String, FieldError>,
    /// The version in force.
    accepted: Option<Arc<IncludedFile>>,
    /// Faults of the text, one per line. Empty if the text is in force.
    faults: Vec<String>,
    read_at: String,
}

impl ConfigFolder {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, files: Files::new(), fault: None }
    }

    /// Returns the versions of the files that are in force.
    pub(super) fn accepted(&self) -> impl Iterator<Item = &IncludedFile> {
        self.files.values().filter_map(|file| file.accepted.as_deref())
    }

    /// Applies what changed since the last reading. `adjust` completes a configuration that was
    /// loaded.
    pub(super) async fn follow(
        &mut self,
        source: &ConfigSource,
        control: &Control,
        adjust: impl Fn(&mut Config),
    ) {
        let folder = self.folder.clone();
        let found = match tokio::task::spawn_blocking(move || read_folder(&folder)).await {
            Ok(Ok(found)) => found,
            Ok(Err(fault)) => return self.refuse(fault.to_string(), control),
            Err(_) => return, // the runtime stops
        };
        if self.fault.is_none() && self.is_as(&found) {
            return;
        }
        let mut update =
            FolderUpdate { source, control, adjust, files: Files::new(), next: Vec::new() };
        for file in found {
            update.add(file, &self.files);
        }
        match update.apply().await {
            Ok((files, summary)) => self.accept(files, summary, control).await,
            Err(error) => self.refuse(error.to_string(), control),
        }
    }

    /// Returns whether the folder holds what it held at the last reading.
    fn is_as(&self, found: &[FoundFile]) -> bool {
        let is_known = |file: &FoundFile| {
            self.files.get(&file.name).is_some_and(|known| known.text == file.text)
        };
        found.len() == self.files.len() && found.iter().all(is_known)
    }

    async fn accept(&mut self, files: Files, summary: ReloadSummary, control: &Control) {
        for (name, file) in &files {
            let is_new = self.files.get(name).is_none_or(|known| known.text != file.text);
            for fault in file.faults.iter().filter(|_| is_new) {
                tracing::error!(file = name, fault, "a file of include.folder is not applied");
            }
        }
        let views = files.iter().map(|(name, file)| file.view(name)).collect();
        self.files = files;
        let was_refused = self.fault.take().is_some();
        let is_changed = summary != ReloadSummary::default();
        let generation =
            control.generation.record_folder(views, is_changed, was_refused, &control.metrics);
        if is_changed {
            let ReloadSummary { tenants, backends, issuers: _ } = summary;
            tracing::info!(tenants, backends, generation, "include.folder applied");
            control.record_reload(summary).await;
        }
    }

    /// Notes why nothing of the folder can be applied. Everything stays as it is.
    fn refuse(&mut self, fault: String, control: &Control) {
        if self.fault.as_ref() == Some(&fault) {
            return;
        }
        for line in fault.lines() {
            tracing::error!(folder = %self.folder.display(), fault = line, "include.folder is not applied");
        }
        control.generation.record_refusal(&fault, &control.metrics);
        self.fault = Some(fault);
    }
}

impl FollowedFile {
    fn view(&self, name: &str) -> IncludedFileView {
        let state = match (self.faults.is_empty(), &self.accepted) {
            (true, _) => IncludedFileState::Applied,
            (false, Some(_)) => IncludedFileState::Outdated,
            (false, None) => IncludedFileState::Refused,
        };
        IncludedFileView {
            name: name.to_owned(),
            state,
            read_at: self.read_at.clone(),
            faults: self.faults.clone(),
        }
    }
}

/// The files as they are to be, while they are applied.
struct FolderUpdate<'a, Adjust> {
    source: &'a ConfigSource,
    control: &'a Control,
    adjust: Adjust,
    /// All files, with the versions that are in force.
    files: Files,
    /// Versions that are good by themselves and not in force yet.
    next: Vec<(String, Arc<IncludedFile>)>,
}

impl<Adjust: Fn(&mut Config)> FolderUpdate<'_, Adjust> {
    /// Adds a file. Checks it alone if it changed.
    fn add(&mut self, found: FoundFile, before: &Files) {
        let FoundFile { name, text } = found;
        let known = before.get(&name);
        if let Some(known) = known.filter(|known| known.text == text) {
            self.files.insert(name, known.clone());
            return;
        }
        let checked = text
            .clone()
            .map_err(|fault| FieldErrors(vec![fault]))
            .and_then(|text| IncludedFile::parse(&name, &text))
            .and_then(|file| self.source.load([&file]).map(|_| Arc::new(file)));
        let faults = match checked {
            Ok(next) => {
                self.next.push((name.clone(), next));
                Vec::new()
            }
            Err(faults) => lines(faults),
        };
        let accepted = known.and_then(|known| known.accepted.clone());
        self.files.insert(name, FollowedFile { text, accepted, faults, read_at: now_text() });
    }

    /// Applies all next versions together. If that fails, applies each one that can be applied.
    async fn apply(mut self) -> Result<(Files, ReloadSummary), FolderError> {
        let mut together = self.files.clone();
        for (name, next) in &self.next {
            if let Some(file) = together.get_mut(name) {
                file.accepted = Some(Arc::clone(next));
            }
        }
        if let Ok(summary) = self.reload(&together).await {
            return Ok((together, summary));
        }
        let mut total = self.reload(&self.files).await?;
        loop {
            let waiting = mem::take(&mut self.next);
            let before = waiting.len();
            for (name, next) in waiting {
                total += self.apply_one(name, next).await;
            }
            // A file may need the tenant of another one, so the rest is tried again after progress.
            if self.next.is_empty() || self.next.len() == before {
                return Ok((self.files, total));
            }
        }
    }

    /// Applies the next version of one file. It stays in `next` if it cannot be applied.
    async fn apply_one(&mut self, name: String, next: Arc<IncludedFile>) -> ReloadSummary {
        let mut files = self.files.clone();
        let Some(file) = files.get_mut(&name) else { return ReloadSummary::default() };
        file.accepted = Some(Arc::clone(&next));
        file.faults.clear();
        match self.reload(&files).await {
            Ok(summary) => {
                self.files = files;
                summary
            }
            Err(error) => {
                if let Some(file) = self.files.get_mut(&name) {
                    file.faults = lines(error);
                }
                self.next.push((name, next));
                ReloadSummary::default()
            }
        }
    }

    async fn reload(&self, files: &Files) -> Result<ReloadSummary, FolderError> {
        let accepted = files.values().filter_map(|file| file.accepted.as_deref());
        let mut config = self.source.load(accepted)?;
        (self.adjust)(&mut config);
        Ok(self.control.reload(&config).await?)
    }
}

/// Why the files cannot be applied together.
#[derive(Debug, thiserror::Error)]
enum FolderError {
    #[error(transparent)]
    Config(#[from] FieldErrors),
    #[error(transparent)]
    Load(#[from] LoadError),
}

fn lines(error: impl std::error::Error) -> Vec<String> {
    error.to_string().lines().map(str::to_owned).collect()
}
