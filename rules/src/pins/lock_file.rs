//! The lock file: the accepted definitions of a tenant's backends, as hashes, for a repository.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Fingerprint;
use records::PinKind;

/// Version of the format.
const FORMAT: u32 = 1;

/// Hashes by kind and name.
pub type LockedBackend = BTreeMap<String, BTreeMap<String, String>>;

/// The accepted definitions of a tenant's backends. Equal contents have equal bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockFile {
    pub version: u32,
    pub tenant: String,
    /// By backend, kind and name.
    pub backends: BTreeMap<String, LockedBackend>,
}

/// A fault of a lock file. The text names its path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LockFileError(String);

/// A difference between a lock file and what backends show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockDifference {
    /// `BACKEND/KIND/NAME`
    pub object: String,
    pub problem: &'static str,
}

impl LockFile {
    pub fn new(tenant: &str) -> Self {
        Self { version: FORMAT, tenant: tenant.to_owned(), backends: BTreeMap::new() }
    }

    /// Reads a lock file. Returns every fault, with its path.
    pub fn parse(text: &str) -> Result<Self, Vec<LockFileError>> {
        let file: Self = serde_json::from_str(text).map_err(|error| {
            let is_json = !error.is_syntax() && !error.is_eof();
            let what = if is_json { "is not a lock file" } else { "is not JSON" };
            vec![LockFileError(format!("{what}: {error}"))]
        })?;
        let mut faults = Vec::new();
        if file.version != FORMAT {
            let version = file.version;
            faults.push(format!("version: {version} is not a known format; allowed: {FORMAT}"));
        }
        for (backend, kinds) in &file.backends {
            for (kind, names) in kinds {
                if PinKind::parse(kind).is_none() {
                    let allowed = PinKind::ALL.map(PinKind::name).join(", ");
                    faults.push(format!(
                        "backends.{backend}.{kind}: is not a kind of object; allowed: {allowed}"
                    ));
                }
                let wrong = names.iter().filter(|(_, hash)| Fingerprint::parse(hash).is_none());
                faults.extend(wrong.map(|(name, _)| {
                    format!(
                        "backends.{backend}.{kind}.{name}: is not a hash; allowed: v1: and 64 hexadecimal digits"
                    )
                }));
            }
        }
        match faults.is_empty() {
            true => Ok(file),
            false => Err(faults.into_iter().map(LockFileError).collect()),
        }
    }

    /// Adds an object.
    pub fn add(&mut self, backend: &str, kind: PinKind, name: &str, hash: &str) {
        let backend = self.backends.entry(backend.to_owned()).or_default();
        backend.entry(kind.name().to_owned()).or_default().insert(name.to_owned(), hash.to_owned());
    }

    /// Returns how `now` differs from this file.
    pub fn differences(&self, now: &Self) -> Vec<LockDifference> {
        let mut differences = self.unmatched(now);
        let locked: BTreeMap<String, &str> = self.objects().collect();
        let shown: BTreeMap<String, &str> = now.objects().collect();
        let added = shown.keys().filter(|object| !locked.contains_key(*object));
        differences.extend(added.map(|object| LockDifference {
            object: object.clone(),
            problem: "is not in the lock file",
        }));
        differences
    }

    /// Returns the objects of this file that `now` does not have with the same definition.
    pub fn unmatched(&self, now: &Self) -> Vec<LockDifference> {
        let shown: BTreeMap<String, &str> = now.objects().collect();
        let locked: BTreeMap<String, &str> = self.objects().collect();
        let problem = |object: &String, hash: &str| match shown.get(object) {
            None => Some("is not listed any more"),
            Some(shown) if *shown != hash => Some("has another definition"),
            Some(_) => None,
        };
        let unmatched = locked.into_iter().filter_map(|(object, hash)| {
            problem(&object, hash).map(|problem| LockDifference { object, problem })
        });
        unmatched.collect()
    }

    /// Returns the text of the file.
    pub fn to_text(&self) -> String {
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        format!("{text}\n")
    }

    fn objects(&self) -> impl Iterator<Item = (String, &str)> {
        self.backends.iter().flat_map(|(backend, kinds)| {
            kinds.iter().flat_map(move |(kind, names)| {
                names
                    .iter()
                    .map(move |(name, hash)| (format!("{backend}/{kind}/{name}"), hash.as_str()))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u8) -> String {
        format!("v1:{number:064x}")
    }

    #[test]
    fn a_lock_file_is_read_as_it_is_written() {
        let mut file = LockFile::new("acme");
        file.add("files", PinKind::Tool, "read", &hash(1));
        file.add("files", PinKind::Resource, "file:///a/b", &hash(2));
        assert_eq!(LockFile::parse(&file.to_text()), Ok(file.clone()));
        assert_eq!(file.differences(&file), []);
    }

    #[test]
    fn every_fault_has_its_path() {
        let at = |text: &str| -> Vec<String> {
            LockFile::parse(text).unwrap_err().iter().map(ToString::to_string).collect()
        };
        assert!(at("{\n \"version\": 1,\n oops")[0].contains("line 3 column 2"));
        assert!(at(r#"{"version":1,"tenant":"a","backends":{},"more":1}"#)[0].contains("more"));
        let faults =
            at(r#"{"version":2,"tenant":"a","backends":{"b":{"tool":{"t":"v1:0"},"thing":{}}}}"#);
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(faults[1].starts_with("backends.b.thing: is not a kind"), "{faults:?}");
        assert!(faults[2].starts_with("backends.b.tool.t: is not a hash"), "{faults:?}");
    }

    #[test]
    fn differences_to_a_lock_file_are_named() {
        let (mut locked, mut now) = (LockFile::new("a"), LockFile::new("a"));
        locked.add("b", PinKind::Tool, "same", &hash(1));
        locked.add("b", PinKind::Tool, "other", &hash(1));
        locked.add("b", PinKind::Tool, "gone", &hash(1));
        now.add("b", PinKind::Tool, "same", &hash(1));
        now.add("b", PinKind::Tool, "other", &hash(2));
        now.add("c", PinKind::Prompt, "new", &hash(1));
        let differences: Vec<(String, &str)> =
            locked.differences(&now).into_iter().map(|one| (one.object, one.problem)).collect();
        assert_eq!(
            differences,
            [
                ("b/tool/gone".to_owned(), "is not listed any more"),
                ("b/tool/other".to_owned(), "has another definition"),
                ("c/prompt/new".to_owned(), "is not in the lock file"),
            ]
        );
    }
}
