//! Follows the files of `include.folder`: applies those that changed, without a signal.
//!
//! Invariant: a fault of one file leaves the others alone. The broker keeps what it accepted of that
//! file before, and shows the fault until the file is applied. It tries the file again, because the
//! reason may lie elsewhere: in another file, the database or a certificate. A folder that cannot be
//! read changes nothing.

use std::{collections::BTreeMap, mem, path::PathBuf, sync::Arc};

use rules::limits::included::INCLUDED_RETRY_READINGS;

use crate::{
    config::{
        Config, ConfigSource, FieldError, FieldErrors, IncludedFile,
        included::{FoundFile, read_folder, secret_files},
    },
    control::{Control, IncludedFileState, IncludedFileView, LoadError, ReloadSummary, now_text},
};

/// The folder as it was read last.
pub(super) struct ConfigFolder {
    folder: PathBuf,
    files: Files,
    /// Why nothing of the folder could be applied last, in lines.
    fault: Option<String>,
    /// Number of readings until the files with faults are tried again.
    retry_in: u32,
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
        Self { folder, files: Files::new(), fault: None, retry_in: 0 }
    }

    /// Returns the files with secrets that the folder names now.
    pub(super) fn secret_files(&self) -> Vec<PathBuf> {
        secret_files(&self.folder)
    }

    /// Returns the versions of the files that are in force.
    pub(super) fn accepted(&self) -> impl Iterator<Item = &IncludedFile> {
        self.files.values().filter_map(|file| file.accepted.as_deref())
    }

    /// Makes the next reading try all files with faults again, and report what they still lack.
    pub(super) fn retry(&mut self) {
        (self.fault, self.retry_in) = (None, 0);
    }

    /// Applies what changed since the last reading, and at times the files with faults. `adjust`
    /// completes a configuration that was loaded.
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
        let has_faults = self.files.values().any(|file| !file.faults.is_empty());
        self.retry_in = self.retry_in.saturating_sub(1);
        let is_retry = has_faults && self.retry_in == 0;
        if self.fault.is_none() && !is_retry && self.is_as(&found) {
            return;
        }
        self.retry_in = INCLUDED_RETRY_READINGS;
        let mut update = FolderUpdate {
            source,
            control,
            adjust,
            files: Files::new(),
            changed: Vec::new(),
            refused: Vec::new(),
        };
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
            let known = self.files.get(name).filter(|known| known.text == file.text);
            let is_new = |fault: &&String| known.is_none_or(|known| !known.faults.contains(fault));
            for fault in file.faults.iter().filter(is_new) {
                tracing::error!(file = name, fault, "a file of include.folder is not applied");
            }
        }
        let views = files.iter().map(|(name, file)| file.view(name)).collect();
        self.files = files;
        self.fault = None;
        let is_changed = summary != ReloadSummary::default();
        let generation = control.generation.record_folder(views, is_changed, &control.metrics);
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
        control.generation.record_folder_refusal(&fault, &control.metrics);
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
    /// Changed versions that are good by themselves and not in force yet.
    changed: Vec<NextVersion>,
    /// Versions that are good by themselves and were refused before.
    refused: Vec<NextVersion>,
}

/// A version of a file, and the name of the file.
type NextVersion = (String, Arc<IncludedFile>);

impl<Adjust: Fn(&mut Config)> FolderUpdate<'_, Adjust> {
    /// Adds a file. Checks it alone if it is not in force.
    fn add(&mut self, found: FoundFile, before: &Files) {
        let FoundFile { name, text } = found;
        let known = before.get(&name);
        let same = known.filter(|known| known.text == text);
        if let Some(applied) = same.filter(|known| known.faults.is_empty()) {
            self.files.insert(name, applied.clone());
            return;
        }
        let checked = text
            .clone()
            .map_err(|fault| FieldErrors(vec![fault]))
            .and_then(|text| IncludedFile::parse(&name, &text))
            .and_then(|file| self.source.load([&file]).map(|_| Arc::new(file)));
        let faults = match checked {
            Ok(next) => {
                let versions = if same.is_some() { &mut self.refused } else { &mut self.changed };
                versions.push((name.clone(), next));
                Vec::new()
            }
            Err(faults) => lines(faults),
        };
        let accepted = known.and_then(|known| known.accepted.clone());
        let read_at = same.map_or_else(now_text, |same| same.read_at.clone());
        self.files.insert(name, FollowedFile { text, accepted, faults, read_at });
    }

    /// Applies all next versions that are good together, at once: an entry that moves from one file
    /// to another stays in force.
    async fn apply(mut self) -> Result<(Files, ReloadSummary), FolderError> {
        let (changed, refused) = (mem::take(&mut self.changed), mem::take(&mut self.refused));
        let all: Vec<_> = changed.iter().chain(&refused).cloned().collect();
        if !self.accept(&all).await? {
            // A file that stays refused must not separate changes that belong together.
            let mut waiting = refused;
            if !self.accept(&changed).await? {
                self.check(&self.files).await?;
                waiting = all;
            }
            loop {
                let before = waiting.len();
                for version in mem::take(&mut waiting) {
                    if !self.accept(std::slice::from_ref(&version)).await? {
                        waiting.push(version);
                    }
                }
                // A file may need the tenant of another one, so the rest is tried again after
                // progress.
                if waiting.is_empty() || waiting.len() == before {
                    break;
                }
            }
        }
        let config = self.load(&self.files)?;
        let summary = self.control.reload(&config).await?;
        Ok((self.files, summary))
    }

    /// Accepts these versions if they are good together with the accepted ones. Otherwise notes why
    /// not, and returns false.
    async fn accept(&mut self, versions: &[NextVersion]) -> Result<bool, FolderError> {
        let mut files = self.files.clone();
        for (name, next) in versions {
            if let Some(file) = files.get_mut(name) {
                file.accepted = Some(Arc::clone(next));
                file.faults.clear();
            }
        }
        match self.check(&files).await {
            Ok(()) => {
                self.files = files;
                Ok(true)
            }
            // No file is the reason.
            Err(FolderError::Load(error @ LoadError::Store(_))) => Err(error.into()),
            Err(error) => {
                let faults = lines(error);
                for (name, _) in versions {
                    if let Some(file) = self.files.get_mut(name) {
                        file.faults.clone_from(&faults);
                    }
                }
                Ok(false)
            }
        }
    }

    async fn check(&self, files: &Files) -> Result<(), FolderError> {
        Ok(self.control.check_reload(&self.load(files)?).await?)
    }

    fn load(&self, files: &Files) -> Result<Config, FieldErrors> {
        let accepted = files.values().filter_map(|file| file.accepted.as_deref());
        let mut config = self.source.load(accepted)?;
        (self.adjust)(&mut config);
        Ok(config)
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
