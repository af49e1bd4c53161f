//! Files of the folder `include.folder`. Each declares tenants and backends in the form of the
//! configuration file. `serve` follows the folder while the broker runs.
//!
//! Invariant: a file of the folder sets nothing but tenants and backends, so its author cannot
//! change the broker itself. It cannot name a file with a secret of the broker either
//! ([`super::secret_files`]).

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use protocol::ids::DEFAULT_TENANT;
use rules::limits::included::INCLUDED_FILES_MAX;
use serde_json::{Map, Value};

use super::{
    FieldError, FieldErrors,
    config_key::{ConfigKey, HOUR, KeyKind, key, optional_key},
    field_error::describe,
    read_file, secret_files,
    yaml::parse_yaml,
};

pub(super) const KEYS: &[ConfigKey] = &[
    optional_key(
        "folder",
        KeyKind::Path,
        "config.d",
        "Folder of `*.yaml` and `*.yml` files. A relative path begins at the folder of this file. Only one file can declare an entry. A file with a fault changes nothing: the broker keeps the entries that it accepted from that file before, and reports the faults.",
    ),
    key(
        "interval",
        KeyKind::Duration { min: Duration::from_millis(100), max: HOUR },
        "2s",
        "Interval at which the broker checks `include.folder`, and the files of `tls`, for changes.",
    ),
];

/// Maps of bodies: known sections without keys of their own.
pub(super) const MAPS: [&str; 2] = ["tenants", "backends"];

/// Endings of the files that count. A folder may hold others, such as a README.
const ENDINGS: [&str; 2] = ["yaml", "yml"];

/// Link to the folder with the version of a mounted ConfigMap. Kubernetes replaces it, and so all
/// files at once.
const MOUNTED_FILES: &str = "..data";

/// The tenants and backends of one file.
#[derive(Debug, Clone, PartialEq)]
pub struct IncludedFile {
    /// Name within the folder.
    pub name: String,
    entries: Map<String, Value>,
}

impl IncludedFile {
    /// Reads the shape of a file. [`super::ConfigSource::load`] checks the bodies.
    pub fn parse(name: &str, text: &str) -> Result<Self, FieldErrors> {
        let allowed = "a map of `tenants` and `backends`";
        let entries = match parse_yaml(text) {
            Ok(Value::Null) => Map::new(),
            Ok(Value::Object(entries)) => entries,
            Ok(other) => return Err(fault("", format!("is {}", describe(&other)), allowed)),
            Err(reason) => return Err(fault("", format!("is not YAML: {reason}"), "")),
        };
        let mut faults = Vec::new();
        for (section, value) in &entries {
            if !MAPS.contains(&section.as_str()) {
                let wrong = "is not allowed in a file of include.folder";
                faults.push(FieldError::new(section, wrong, allowed));
            } else if !value.is_object() && !value.is_null() {
                faults.push(FieldError::new(section, format!("is {}", describe(value)), "a map"));
            }
        }
        if faults.is_empty() {
            Ok(Self { name: name.to_owned(), entries })
        } else {
            Err(FieldErrors(faults))
        }
    }

    /// Returns the section and name of each entry. The tenant is part of the name of a backend.
    pub fn entries(&self) -> impl Iterator<Item = (&str, String, &Value)> {
        self.entries.iter().flat_map(|(section, entries)| {
            let entries = entries.as_object().into_iter().flatten();
            entries.map(|(name, body)| (section.as_str(), full_name(section, name), body))
        })
    }
}

/// Returns the name under which two spellings of a backend meet.
pub(super) fn full_name(section: &str, name: &str) -> String {
    let is_short = section == "backends" && !name.contains('/');
    if is_short { format!("{}/{name}", DEFAULT_TENANT) } else { name.to_owned() }
}

/// Returns the shorter spelling of the name of a backend, if it has one.
pub(super) fn short_name<'a>(section: &str, name: &'a str) -> Option<&'a str> {
    name.strip_prefix(DEFAULT_TENANT)?.strip_prefix('/').filter(|_| section == "backends")
}

/// Returns the fault of an entry that another file declares too.
pub fn declared_twice(path: String, other: &str) -> FieldError {
    FieldError::new(path, format!("is declared twice, also in {other}"), "each entry in one file")
}

/// A file of the folder as it is now.
#[derive(Debug)]
pub struct FoundFile {
    pub name: String,
    pub text: Result<String, FieldError>,
}

/// Reads the files of the folder, in the order of their names. Those of a mounted ConfigMap have
/// one version: otherwise an entry that moves from one file to another could be missing in both.
pub fn read_folder(folder: &Path) -> Result<Vec<FoundFile>, FieldError> {
    read_one_version(folder, read_file)
}

fn read_one_version(
    folder: &Path,
    mut read: impl FnMut(&Path) -> Result<String, FieldError>,
) -> Result<Vec<FoundFile>, FieldError> {
    let version = || std::fs::read_link(folder.join(MOUNTED_FILES)).ok();
    let before = version();
    let found = read_files(folder, before.as_deref(), &mut read);
    let after = version();
    if after == before {
        return found;
    }
    // Kubernetes removes the files of the last version. The next change comes seconds later.
    read_files(folder, after.as_deref(), read)
}

/// Reads the files of the folder, and those of the version of a mounted ConfigMap. With a version,
/// ignores the links to its files, which change later than the version.
fn read_files(
    folder: &Path,
    version: Option<&Path>,
    mut read: impl FnMut(&Path) -> Result<String, FieldError>,
) -> Result<Vec<FoundFile>, FieldError> {
    let unreadable = |error: std::io::Error| {
        let wrong = format!("{} cannot be read: {error}", folder.display());
        FieldError::new("include.folder", wrong, "a folder that the broker can read")
    };
    let mounted = version.map(|version| folder.join(version));
    let mut paths = Vec::new();
    for folder in [Some(folder), mounted.as_deref()].into_iter().flatten() {
        for entry in std::fs::read_dir(folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if !(mounted.is_some() && is_mounted_link(&path)) && counts(&path) {
                paths.push(path);
            }
        }
    }
    if paths.len() > INCLUDED_FILES_MAX {
        let wrong = format!("{} holds {} files", folder.display(), paths.len());
        return Err(FieldError::new(
            "include.folder",
            wrong,
            format!("at most {INCLUDED_FILES_MAX}"),
        ));
    }
    paths.sort_by(|one, other| one.file_name().cmp(&other.file_name()));
    let found = paths.into_iter().filter_map(|path| {
        let name = path.file_name()?.to_string_lossy().into_owned();
        Some(FoundFile { name, text: read(&path) })
    });
    Ok(found.collect())
}

/// Returns whether the path leads to a file of a mounted ConfigMap.
fn is_mounted_link(path: &Path) -> bool {
    std::fs::read_link(path).is_ok_and(|target| target.starts_with(MOUNTED_FILES))
}

/// Returns the files with secrets that the valid files of the folder name.
pub fn secret_files(folder: &Path) -> Vec<PathBuf> {
    let found = read_folder(folder).unwrap_or_default().into_iter();
    let parsed = found.filter_map(|file| IncludedFile::parse(&file.name, &file.text.ok()?).ok());
    parsed.flat_map(|file| secret_files::of_included(&file)).collect()
}

/// Returns whether the path is a file of the configuration. Names that begin with a dot are those of
/// editors, and of the links behind a mounted ConfigMap.
fn counts(path: &Path) -> bool {
    let is_hidden = path.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.'));
    let ending = path.extension().unwrap_or_default();
    !is_hidden && ENDINGS.iter().any(|known| ending == *known) && may_be_file(path)
}

/// Returns whether the path is a file, or cannot be examined. The entries of such a file must stay,
/// so it counts as a file that cannot be read.
fn may_be_file(path: &Path) -> bool {
    match std::fs::metadata(path) {
        Ok(found) => found.is_file(),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

/// Returns the folder of the configuration. A relative path begins at the configuration file.
pub(super) fn resolve_folder(file: Option<&Path>, folder: PathBuf) -> PathBuf {
    file.and_then(Path::parent).map_or_else(|| folder.clone(), |parent| parent.join(&folder))
}

fn fault(path: &str, wrong: String, allowed: &str) -> FieldErrors {
    FieldErrors(vec![FieldError::new(path, wrong, allowed)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str, text: &str) -> Result<IncludedFile, String> {
        IncludedFile::parse(name, text).map_err(|faults| faults.to_string())
    }

    #[test]
    fn only_tenants_and_backends_are_read_and_every_other_section_is_named() {
        let file = parse("a.yaml", "tenants: {acme: {}}\nbackends:\n").unwrap();
        assert_eq!(file.entries().map(|(_, name, _)| name).collect::<Vec<_>>(), ["acme"]);
        assert!(parse("empty.yaml", "# nothing yet\n").is_ok());
        let wrong = parse("a.yaml", "auth: {}\nlimits: {}\nbackends: [a]\n").unwrap_err();
        for start in ["auth: is not allowed", "limits: is not allowed", "backends: is a list"] {
            assert!(wrong.contains(start), "{wrong}");
        }
        assert!(parse("a.yaml", "a: [").unwrap_err().contains("is not YAML"));
    }

    #[test]
    fn hidden_files_and_other_extensions_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.yml", "a.yaml", ".hidden.yaml", "notes.txt", "a.yaml~"] {
            std::fs::write(folder.path().join(name), "backends: {}").unwrap();
        }
        std::fs::create_dir(folder.path().join("..data.yaml")).unwrap();
        let found = read_folder(folder.path()).unwrap();
        assert_eq!(found.iter().map(|file| &file.name).collect::<Vec<_>>(), ["a.yaml", "b.yml"]);
        let gone = read_folder(&folder.path().join("none")).unwrap_err();
        assert!(gone.to_string().starts_with("include.folder: "), "{gone}");
    }

    #[test]
    fn an_entry_that_moves_within_a_mounted_configmap_is_never_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let link = |target: &str, name: &str| {
            std::os::unix::fs::symlink(target, path("..new")).unwrap();
            std::fs::rename(path("..new"), path(name)).unwrap();
        };
        for (version, files) in [
            ("..1", &[("a.yaml", ""), ("b.yaml", "entry")][..]),
            ("..2", &[("a.yaml", "entry"), ("b.yaml", "")]),
            ("..3", &[("c.yaml", "entry")]),
        ] {
            std::fs::create_dir(path(version)).unwrap();
            for (name, text) in files {
                std::fs::write(path(version).join(name), text).unwrap();
            }
        }
        link("..1", MOUNTED_FILES);
        link("..data/a.yaml", "a.yaml");
        link("..data/b.yaml", "b.yaml");
        // The version changes after the first file was read.
        let mut reads = 0;
        let found = read_one_version(folder.path(), |file| {
            let text = read_file(file);
            reads += 1;
            if reads == 1 {
                link("..2", MOUNTED_FILES);
                std::fs::remove_dir_all(path("..1")).unwrap();
            }
            text
        });
        let texts = |found: Vec<FoundFile>| -> Vec<(String, String)> {
            found.into_iter().map(|file| (file.name, file.text.unwrap())).collect()
        };
        let of = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        assert_eq!(texts(found.unwrap()), [of("a.yaml", "entry"), of("b.yaml", "")]);
        // Kubernetes has not made the link to the new file yet.
        link("..3", MOUNTED_FILES);
        assert_eq!(texts(read_folder(folder.path()).unwrap()), [of("c.yaml", "entry")]);
        // The version cannot be found out.
        link("..data/c.yaml", "c.yaml");
        let found = read_files(folder.path(), None, read_file);
        assert_eq!(texts(found.unwrap()), [of("c.yaml", "entry")], "no entry is missing");
    }

    #[test]
    fn a_file_that_cannot_be_examined_is_not_a_removed_file() {
        let folder = tempfile::tempdir().unwrap();
        let link = |name: &str, target: &str| {
            std::os::unix::fs::symlink(target, folder.path().join(name)).unwrap();
        };
        link("a.yaml", "a.yaml"); // the system cannot follow it
        link("b.yaml", "none");
        let found = read_folder(folder.path()).unwrap();
        assert_eq!(found.iter().map(|file| &file.name).collect::<Vec<_>>(), ["a.yaml"]);
        assert!(found[0].text.is_err());
    }
}
