//! Follows the files of `include.folder`: applies those that changed, without a signal.
//!
//! Invariant: a fault of one file leaves the others alone. The broker keeps what it accepted of that
//! file before, and shows the fault until the file is applied. It tries the file again, because the
//! reason may lie elsewhere: in another file, the database or a certificate. A folder that cannot be
//! read changes nothing.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    path::PathBuf,
    sync::Arc,
};

use config::{
    Config, ConfigSource, FieldError, FieldErrors, IncludedFile,
    included::{FoundFile, declared_twice, read_folder, secret_files},
};
use protocol::ids::BackendId;
use rules::limits::included::INCLUDED_RETRY_READINGS;

use crate::control::{
    Control, IncludedFileState, IncludedFileView, LoadError, ReloadSummary, now_text,
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

    /// Returns the files with their newest versions, as far as those are good by themselves. `None`:
    /// all of these are in force.
    pub(super) fn newest(&self, source: &ConfigSource) -> Option<Vec<IncludedFile>> {
        let refused = |(name, file): (&String, &FollowedFile)| {
            let text = file.text.as_deref().ok().filter(|_| !file.faults.is_empty())?;
            let newest = IncludedFile::parse(name, text).ok()?;
            source.load([&newest]).is_ok().then_some(newest)
        };
        let mut newest: Vec<IncludedFile> = self.files.iter().filter_map(refused).collect();
        if newest.is_empty() {
            return None;
        }
        let is_other = |file: &&IncludedFile| newest.iter().all(|one| one.name != file.name);
        let others: Vec<IncludedFile> = self.accepted().filter(is_other).cloned().collect();
        newest.extend(others);
        Some(newest)
    }

    /// Makes the next reading try all files with faults again, and report what they still lack.
    pub(super) fn retry(&mut self) {
        (self.fault, self.retry_in) = (None, 0);
    }

    /// Returns what changed since the last reading, and at times the files with faults, after all
    /// checks. `adjust` completes a configuration that was loaded. Cancel-safe: a dropped future
    /// only delays the next retry.
    pub(super) async fn changes(
        &mut self,
        source: &ConfigSource,
        control: &Control,
        adjust: impl Fn(&mut Config),
    ) -> Option<FolderChange> {
        let folder = self.folder.clone();
        let found = match tokio::task::spawn_blocking(move || read_folder(&folder)).await {
            Ok(Ok(found)) => found,
            Ok(Err(fault)) => return Some(FolderChange(Err(FieldErrors(vec![fault]).into()))),
            Err(_) => return None, // the runtime stops
        };
        let has_faults = self.files.values().any(|file| !file.faults.is_empty());
        self.retry_in = self.retry_in.saturating_sub(1);
        let is_retry = has_faults && self.retry_in == 0;
        if self.fault.is_none() && !is_retry && self.is_as(&found) {
            return None;
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
            tokio::task::yield_now().await; // the caller may drop this future between two files
        }
        Some(FolderChange(update.settle().await))
    }

    /// Applies the result of [`Self::changes`].
    pub(super) async fn apply(&mut self, change: FolderChange, control: &Control) {
        match change.apply(control).await {
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
            let ReloadSummary { tenants, backends, issuers: _, documents } = summary;
            tracing::info!(tenants, backends, documents, generation, "include.folder applied");
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

/// The files as they are to be with their configuration, or why nothing of them can be applied.
pub(super) struct FolderChange(Result<(Files, Config), FolderError>);

impl FolderChange {
    async fn apply(self, control: &Control) -> Result<(Files, ReloadSummary), FolderError> {
        let (files, config) = self.0?;
        let summary = control.reload(&config).await?;
        Ok((files, summary))
    }
}

/// The files as they are to be, while they are checked.
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

    /// Accepts all next versions that are good together. They are applied at once: an entry that
    /// moves from one file to another stays in force.
    async fn settle(mut self) -> Result<(Files, Config), FolderError> {
        let (changed, refused) = (mem::take(&mut self.changed), mem::take(&mut self.refused));
        let all: Vec<_> = changed.iter().chain(&refused).cloned().collect();
        if self.accept(&all).await?.is_some() {
            // A file that stays refused must not separate changes that belong together.
            let mut waiting = refused;
            if self.accept(&changed).await?.is_some() {
                self.check(&self.files).await?;
                waiting = all;
            }
            loop {
                let before = waiting.len();
                waiting = self.accept_good(waiting).await?;
                // A file may need the tenant of another one, so the rest is tried again after
                // progress.
                if waiting.is_empty() || waiting.len() == before {
                    break;
                }
            }
        }
        let config = self.load(&self.files)?;
        Ok((self.files, config))
    }

    /// Accepts the versions that are good together, and returns the others.
    async fn accept_good(
        &mut self,
        versions: Vec<NextVersion>,
    ) -> Result<Vec<NextVersion>, FolderError> {
        let mut left = versions.clone();
        loop {
            let (once, repeated) = split_repeated(&self.files, left);
            let is_over = once.is_empty();
            left = Vec::new();
            for (version, faults) in repeated {
                self.refuse(&version.0, faults);
                left.push(version);
            }
            if is_over {
                break;
            }
            // A version that this refuses leaves its entries to the others.
            self.accept_groups(once).await?;
        }
        let is_refused =
            |name: &str| self.files.get(name).is_some_and(|file| !file.faults.is_empty());
        Ok(versions.into_iter().filter(|(name, _)| is_refused(name)).collect())
    }

    /// Accepts each of these versions that is good, or refuses it. A check of many versions replaces
    /// those of single ones where it can: each check reads all accepted files.
    async fn accept_groups(&mut self, versions: Vec<NextVersion>) -> Result<(), FolderError> {
        let mut groups = vec![versions];
        while let Some(mut group) = groups.pop() {
            if group.is_empty() {
                continue;
            }
            let Some(fault) = self.accept(&group).await? else { continue };
            let before = group.len();
            group.retain(|(name, version)| {
                let own = fault.of_version(version, &self.files);
                own.is_none_or(|own| {
                    self.refuse(name, vec![own]);
                    false
                })
            });
            if group.len() < before {
                groups.push(group);
            } else if let [(name, _)] = group.as_slice() {
                self.refuse(name, lines(fault));
            } else {
                let second = group.split_off(before / 2);
                groups.extend([second, group]);
            }
        }
        Ok(())
    }

    fn refuse(&mut self, name: &str, faults: Vec<String>) {
        if let Some(file) = self.files.get_mut(name) {
            file.faults = faults;
        }
    }

    /// Accepts these versions if they are good together with the accepted ones. Otherwise returns
    /// why not.
    async fn accept(
        &mut self,
        versions: &[NextVersion],
    ) -> Result<Option<FolderError>, FolderError> {
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
                Ok(None)
            }
            // No file is the reason.
            Err(FolderError::Load(error @ LoadError::Store(_))) => Err(error.into()),
            Err(error) => Ok(Some(error)),
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

impl FolderError {
    /// Returns this fault of several versions as that of one version, if it is one for certain:
    /// without the others, the version has it too.
    fn of_version(&self, version: &IncludedFile, files: &Files) -> Option<String> {
        match self {
            // A change of the file that declares the tenant may be the reason, and be refused.
            Self::Load(LoadError::NoTenant { tenant, .. }) if !declares(files, tenant.as_str()) => {
                let backend = version.entries().find_map(|(section, name, _)| {
                    let (of, backend) = name.split_once('/')?;
                    (section == "backends" && of == tenant.as_str())
                        .then(|| BackendId::parse(backend).ok())?
                })?;
                Some(LoadError::NoTenant { tenant: tenant.clone(), backend }.to_string())
            }
            // The database has the entry.
            Self::Load(LoadError::Twice { what }) => {
                let is_own = version.entries().any(|(section, name, _)| {
                    *what == format!("{} {name}", section.trim_end_matches('s'))
                });
                is_own.then(|| self.to_string())
            }
            Self::Load(_) | Self::Config(_) => None,
        }
    }
}

/// Returns whether a version in force declares the tenant.
fn declares(files: &Files, tenant: &str) -> bool {
    let accepted = files.values().filter_map(|file| file.accepted.as_deref());
    let mut entries = accepted.flat_map(IncludedFile::entries);
    entries.any(|(section, name, _)| section == "tenants" && name == tenant)
}

/// Returns the versions without an entry of another file, and the others with their faults. A version
/// in force precedes all next ones, and an earlier one of these precedes a later one.
fn split_repeated(
    files: &Files,
    versions: Vec<NextVersion>,
) -> (Vec<NextVersion>, Vec<(NextVersion, Vec<String>)>) {
    let mut owners: HashMap<String, String> = HashMap::new();
    for (name, file) in files {
        let accepted = file.accepted.as_deref().into_iter().flat_map(paths);
        owners.extend(accepted.map(|path| (path, name.clone())));
    }
    let (mut once, mut repeated) = (Vec::new(), Vec::new());
    for version in versions {
        let name = &version.0;
        let paths: Vec<String> = paths(&version.1).collect();
        let owned = paths.iter().filter_map(|path| Some((path, owners.get(path)?)));
        let faults: Vec<String> = owned
            .filter(|(_, owner)| *owner != name)
            .map(|(path, owner)| declared_twice(path.clone(), owner).to_string())
            .collect();
        if faults.is_empty() {
            owners.extend(paths.into_iter().map(|path| (path, name.clone())));
            once.push(version);
        } else {
            repeated.push((version, faults));
        }
    }
    (once, repeated)
}

fn paths(file: &IncludedFile) -> impl Iterator<Item = String> {
    file.entries().map(|(section, name, _)| format!("{section}.{name}"))
}

fn lines(error: impl std::error::Error) -> Vec<String> {
    error.to_string().lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(name: &str, text: &str) -> NextVersion {
        (name.to_owned(), Arc::new(IncludedFile::parse(name, text).unwrap()))
    }

    fn file(accepted: Option<&str>) -> FollowedFile {
        let accepted = accepted.map(|text| version("any", text).1);
        FollowedFile { text: Ok(String::new()), accepted, faults: Vec::new(), read_at: now_text() }
    }

    #[test]
    fn repeated_entries_are_found_without_a_check_of_each_file() {
        let accepted = [
            ("a.yaml", Some("backends: {x: {}, moves: {}}")),
            ("b.yaml", None),
            ("c.yaml", None),
            ("d.yaml", Some("backends: {kept: {}}")),
        ];
        let files: Files =
            accepted.into_iter().map(|(name, text)| (name.to_owned(), file(text))).collect();
        let versions = [
            version("b.yaml", "tenants: {acme: {}}\nbackends: {default/x: {}}"),
            version("c.yaml", "tenants: {acme: {}}\nbackends: {acme/x: {}}"),
            version("d.yaml", "tenants: {acme: {}}\nbackends: {kept: {}, y: {}}"),
            version("a.yaml", "backends: {x: {}}"),
        ];
        let (once, repeated) = split_repeated(&files, versions.to_vec());
        let names: Vec<&str> = once.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["c.yaml", "a.yaml"]);
        let shown: Vec<(&str, &str)> = repeated
            .iter()
            .map(|((name, _), faults)| (name.as_str(), faults[0].as_str()))
            .collect();
        let fault = |path: &str, other: &str| declared_twice(path.to_owned(), other).to_string();
        let (of_x, of_acme) =
            (fault("backends.default/x", "a.yaml"), fault("tenants.acme", "c.yaml"));
        assert_eq!(shown, [("b.yaml", of_x.as_str()), ("d.yaml", of_acme.as_str())]);
    }
}
