//! The files that configure this process: the configuration file, and those of `include.folder`.

use std::path::PathBuf;

use super::{ServeError, ServeOptions, config_folder::ConfigFolder, demo};
use crate::{
    config::{Config, ConfigSource, DeclaredBackend, FieldErrors, included},
    control::Control,
};

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

    /// Reads the configuration file again. [`Self::accept`] keeps it.
    pub(super) fn read_again(&self) -> Result<(ConfigSource, Config), ServeError> {
        let source = ConfigSource::read(self.file.as_deref())?;
        let mut config = source.load(self.folder.iter().flat_map(ConfigFolder::accepted))?;
        config.backends.extend(self.demo.clone());
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

    /// Applies what changed in the folder since the last call.
    pub(super) async fn follow(&mut self, control: &Control) {
        let adjust = |config: &mut Config| config.backends.extend(self.demo.clone());
        if let Some(folder) = &mut self.folder {
            folder.follow(&self.source, control, adjust).await;
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
