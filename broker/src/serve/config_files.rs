//! The files that configure this process: the configuration file, and those of `include.folder`.

use std::path::PathBuf;

use config::{Config, ConfigSource, DeclaredBackend, FieldErrors, included};

use super::{
    ServeError, ServeOptions,
    config_folder::{ConfigFolder, FolderChange},
    demo,
};
use crate::control::Control;

pub(super) struct ConfigFiles {
    file: Option<PathBuf>,
    /// The configuration file as it is in force.
    source: ConfigSource,
    folder: Option<ConfigFolder>,
    /// The bundled demo backend, if the command line enables it.
    demo: Option<DeclaredBackend>,
}

impl ConfigFiles {
    /// Reads the configuration file, and checks that the folder can be read. The folder is applied
    /// by [`Self::follow`].
    pub(super) fn read(options: &ServeOptions) -> Result<(Self, Config), ServeError> {
        let source = ConfigSource::read(options.config.as_deref())?;
        let mut config = source.load([])?;
        let program = std::env::current_exe()
            .map_err(|source| ServeError::System { what: "the path of this program", source })?;
        let demo = options.demo.then(|| demo::backend(program.to_string_lossy().into_owned()));
        config.backends.extend(demo.clone());
        let folder = config.include.folder.clone();
        if let Some(folder) = &folder {
            included::read_folder(folder).map_err(|fault| FieldErrors(vec![fault]))?;
        }
        let folder = folder.map(ConfigFolder::new);
        // Children of the file start before the folder is applied.
        config.private_files.extend(folder.iter().flat_map(ConfigFolder::secret_files));
        Ok((Self { file: options.config.clone(), source, folder, demo }, config))
    }

    /// Reads the configuration file again. [`Self::accept`] keeps it. The result has the refused
    /// files of the folder too, if all are good with it. So an entry that moves to one of them stays
    /// in force. Cancel-safe.
    pub(super) async fn read_again(
        &self,
        control: &Control,
    ) -> Result<(ConfigSource, Config), ServeError> {
        let source = ConfigSource::read(self.file.as_deref())?;
        let with_demo = |mut config: Config| {
            config.backends.extend(self.demo.clone());
            config
        };
        let config = with_demo(source.load(self.folder.iter().flat_map(ConfigFolder::accepted))?);
        let newest = self.folder.as_ref().and_then(|folder| folder.newest(&source));
        let joint = newest.and_then(|newest| source.load(&newest).ok()).map(with_demo);
        if let Some(joint) = joint
            && control.check_reload(&joint).await.is_ok()
        {
            return Ok((source, joint));
        }
        Ok((source, config))
    }

    /// Keeps a configuration file that is in force now. Files of the folder may fit to it that did
    /// not fit before.
    pub(super) fn accept(&mut self, source: ConfigSource) {
        self.source = source;
        if let Some(folder) = &mut self.folder {
            folder.retry();
        }
    }

    /// Returns what changed in the folder since the last call, after all checks. Cancel-safe.
    pub(super) async fn changes(&mut self, control: &Control) -> Option<FolderChange> {
        let adjust = |config: &mut Config| config.backends.extend(self.demo.clone());
        self.folder.as_mut()?.changes(&self.source, control, adjust).await
    }

    /// Applies the result of [`Self::changes`].
    pub(super) async fn apply(&mut self, change: FolderChange, control: &Control) {
        if let Some(folder) = &mut self.folder {
            folder.apply(change, control).await;
        }
    }

    /// Applies what changed in the folder since the last call.
    pub(super) async fn follow(&mut self, control: &Control) {
        if let Some(change) = self.changes(control).await {
            self.apply(change, control).await;
        }
    }

    /// Returns whether there is a folder to follow.
    pub(super) fn has_folder(&self) -> bool {
        self.folder.is_some()
    }

    /// Logs the variables of the environment that have no effect, and that were probably meant to have
    /// one.
    pub(super) fn warn_of_ignored_variables(&self) {
        for warning in self.source.ignored_variables() {
            tracing::warn!("{warning}");
        }
    }

    pub(super) fn has_demo(&self) -> bool {
        self.demo.is_some()
    }
}
