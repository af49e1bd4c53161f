//! The configuration file and the environment as they were read last. The files of a folder are
//! checked with them, each time one of them changes.

use std::path::{Path, PathBuf};

use super::{
    Config, FieldError, FieldErrors, IncludedFile,
    included::{self, FoundFile},
    key_table,
    raw_config::{RawConfig, misspelt_variables},
    read_file, secret_files, validation,
};

/// Text of the configuration file, and the environment variables of the process.
#[derive(Debug, Clone, Default)]
pub struct ConfigSource {
    file: Option<PathBuf>,
    text: String,
    environment: Vec<(String, String)>,
}

impl ConfigSource {
    /// Reads the file, if given, and the environment of this process.
    pub fn read(file: Option<&Path>) -> Result<Self, FieldErrors> {
        let text = file.map(read_file).transpose().map_err(|fault| FieldErrors(vec![fault]))?;
        // A variable that is not Unicode cannot be one of the broker's.
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
        });
        Ok(Self {
            file: file.map(Path::to_owned),
            text: text.unwrap_or_default(),
            environment: environment.collect(),
        })
    }

    /// Creates a source from YAML text and environment variables.
    pub(super) fn of(text: &str, environment: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { file: None, text: text.to_owned(), environment: environment.into_iter().collect() }
    }

    /// Returns a warning for each variable that the broker ignores and that was probably meant to set
    /// a key.
    pub fn ignored_variables(&self) -> Vec<String> {
        let names = self.environment.iter().map(|(name, _)| name.as_str());
        let misspelt = misspelt_variables(&key_table::TABLE, names).into_iter();
        misspelt
            .map(|(name, meant)| {
                format!("the variable {name} has no effect, perhaps {meant} was meant")
            })
            .collect()
    }

    /// Checks the file, the environment and the included files together.
    pub fn load<'a>(
        &self,
        included: impl IntoIterator<Item = &'a IncludedFile>,
    ) -> Result<Config, FieldErrors> {
        let mut faults = Vec::new();
        let environment = self.environment.iter().cloned();
        let mut raw = RawConfig::read(&key_table::TABLE, &self.text, environment, &mut faults);
        let of_environment = secret_files::of_environment(&raw, &self.environment);
        let of_broker: Vec<_> = secret_files::of_broker(&raw)
            .into_iter()
            .chain(self.file.clone())
            .chain(of_environment.clone())
            .chain(secret_files::of_root(&raw))
            .collect();
        for file in included {
            secret_files::check_included(file, &of_broker, &mut faults);
            raw.include(file, &mut faults);
        }
        let mut config = validation::validate(&raw, faults)?;
        let folder = config.include.folder.take();
        config.include.folder =
            folder.map(|folder| included::resolve_folder(self.file.as_deref(), folder));
        config.private_files.extend(self.file.clone());
        config.private_files.extend(of_environment);
        Ok(config)
    }

    /// Checks the file, the environment and the files of `include.folder`. Returns the configuration
    /// with the number of these files, or every fault with the name of its file.
    pub fn check(&self) -> Result<(Config, usize), FieldErrors> {
        let alone = self.load([])?;
        let Some(folder) = alone.include.folder.clone() else { return Ok((alone, 0)) };
        let found = included::read_folder(&folder).map_err(|fault| FieldErrors(vec![fault]))?;
        let (mut good, mut faults) = (Vec::new(), Vec::new());
        for FoundFile { name, text } in found {
            let parsed = text
                .map_err(|fault| FieldErrors(vec![fault]))
                .and_then(|text| IncludedFile::parse(&name, &text));
            let checked =
                parsed.and_then(|file| self.load(good.iter().chain([&file])).map(|_| file));
            match checked {
                Ok(file) => good.push(file),
                Err(FieldErrors(of_file)) => {
                    faults.extend(of_file.into_iter().map(|fault| FieldError {
                        path: format!("{name}: {}", fault.path),
                        ..fault
                    }))
                }
            }
        }
        match faults.is_empty() {
            true => Ok((self.load(&good)?, good.len())),
            false => Err(FieldErrors(faults)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = "{transport: {type: http, url: 'http://127.0.0.1:9/'}}";

    fn source(folder: &Path) -> ConfigSource {
        let file = folder.join("mcp-broker.yaml");
        std::fs::write(
            &file,
            format!("include: {{folder: config.d}}\nbackends: {{main: {BODY}}}\n"),
        )
        .unwrap();
        ConfigSource {
            file: Some(file.clone()),
            ..ConfigSource::of(&read_file(&file).unwrap(), [])
        }
    }

    fn write(folder: &Path, name: &str, text: &str) {
        let included = folder.join("config.d");
        std::fs::create_dir_all(&included).unwrap();
        std::fs::write(included.join(name), text).unwrap();
    }

    #[test]
    fn every_fault_of_every_included_file_is_named_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let source = source(folder.path());
        let missing = source.check().unwrap_err().to_string();
        assert!(missing.starts_with("include.folder: "), "{missing}");
        write(
            folder.path(),
            "a.yaml",
            &format!("tenants: {{acme: {{}}}}\nbackends: {{acme/x: {BODY}}}"),
        );
        assert_eq!(source.check().map(|(_, count)| count), Ok(1));
        write(folder.path(), "b.yaml", &format!("limits: {{}}\nbackends: {{y: {BODY}}}"));
        write(folder.path(), "c.yaml", "backends: {z: {transport: {type: quic}}}");
        write(
            folder.path(),
            "d.yaml",
            &format!("backends: {{default/main: {BODY}, acme/x: {BODY}}}"),
        );
        let faults = source.check().unwrap_err();
        let starts = [
            "b.yaml: limits: is not allowed in a file of include.folder",
            "c.yaml: backends.default/z.transport.address: is missing",
            "d.yaml: backends.default/main: is declared twice, also in the configuration file",
            "d.yaml: backends.acme/x: is declared twice, also in a.yaml",
        ];
        let lines: Vec<String> = faults.0.iter().map(ToString::to_string).collect();
        for start in starts {
            assert!(lines.iter().any(|line| line.starts_with(start)), "{start}: {lines:#?}");
        }
        assert_eq!(lines.len(), starts.len(), "{lines:#?}");
    }
}
