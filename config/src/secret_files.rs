//! Files with secrets that the configuration names.
//!
//! Invariant: a file of `include.folder` cannot make the broker read a file with a secret of the
//! broker itself. Its author chooses the address that gets the secrets of a backend.

use std::path::{Path, PathBuf};

use protocol::form::form_decoded;
use serde_json::Value;

use super::{
    ClientKey, DatabaseConfig, FieldError,
    config_key::{KeyDefault, KeyKind},
    config_reader::{read_secret_file, text},
    field_error::{describe, join},
    included::IncludedFile,
    raw_config::RawConfig,
    replica::database,
};

/// Name of the file with the root secret, next to an SQLite database.
pub const ROOT_FILE: &str = "secret.key";
/// Name of a file with a root secret that a new one replaces.
pub const PREVIOUS_ROOT_FILE: &str = "secret.key.previous";

/// Members of a backend's body that can name a file with their value.
const FILES_OF_BACKENDS: [(&str, &str); 3] =
    [("credentials", "bearer"), ("auth", "client_secret"), ("auth", "client_key")];
/// File in a home folder from which the driver of PostgreSQL reads passwords.
const PASSWORDS: &str = ".pgpass";

/// Returns all files with secrets that the configuration names, including the keys of certificates.
pub(super) fn of_config(raw: &RawConfig) -> Vec<PathBuf> {
    let bodies = raw.map("backends").into_iter().flatten().map(|(_, body)| body);
    let in_bodies = bodies.flat_map(of_backend).map(|(_, file)| PathBuf::from(file));
    of_broker(raw).into_iter().chain(in_bodies).collect()
}

/// Returns the files with secrets of the broker itself, and of its issuers and operators.
pub(super) fn of_broker(raw: &RawConfig) -> Vec<PathBuf> {
    let named = raw.keys().filter(|(path, key)| {
        matches!(key.kind, KeyKind::SecretFile { .. }) || path == "tls.key_file"
    });
    let issuers = raw.value("auth.issuers").and_then(Value::as_array).into_iter().flatten();
    let of_issuers = issuers.flat_map(|issuer| {
        let introspection = &issuer["introspection"];
        [
            &issuer["registration"]["secret_file"],
            &issuer["sign_in"]["client_secret_file"],
            &introspection["client_secret_file"],
            &introspection["client_key_file"],
        ]
    });
    let operators = raw.value("auth.operators").and_then(Value::as_array).into_iter().flatten();
    let of_operators = operators.map(|operator| &operator["token_file"]);
    let in_lists = of_issuers.chain(of_operators);
    let values = named.filter_map(|(path, _)| raw.value(&path)).chain(in_lists);
    values.filter_map(text).map(PathBuf::from).chain(of_database(raw)).collect()
}

/// Returns the URLs of the database: the written one, and the one in a file.
fn database_urls(raw: &RawConfig) -> impl Iterator<Item = String> {
    let written = raw.value("storage.url").and_then(text).map(str::to_owned);
    // The section `storage` reports a file that cannot be read.
    let file = raw.value("storage.url_file").and_then(text);
    let in_file = file.and_then(|file| read_secret_file(file, 1).ok());
    written.into_iter().chain(in_file.map(|url| url.expose().to_owned()))
}

/// Returns the files with the root secret next to an SQLite database. No setting names them.
pub(super) fn of_root(raw: &RawConfig) -> Vec<PathBuf> {
    let mut urls: Vec<String> = database_urls(raw).collect();
    if let KeyDefault::Value(default) = raw.key("storage.url").default
        && urls.is_empty()
    {
        urls.push(default.to_owned());
    }
    let next_to = |url: &String| match database(url) {
        Ok(DatabaseConfig::Sqlite(path)) => {
            Some([ROOT_FILE, PREVIOUS_ROOT_FILE].map(|name| path.with_file_name(name)))
        }
        Ok(DatabaseConfig::Postgres(_)) | Err(_) => None,
    };
    urls.iter().filter_map(next_to).flatten().collect()
}

/// Returns the files with private keys that the URL of the database names.
fn of_database(raw: &RawConfig) -> Vec<PathBuf> {
    database_urls(raw).flat_map(|url| key_files(&url)).collect()
}

/// Returns the files with secrets of a PostgreSQL database that the environment names. The driver
/// reads them if the URL has no key or no password.
pub(super) fn of_environment(raw: &RawConfig, environment: &[(String, String)]) -> Vec<PathBuf> {
    if !database_urls(raw).any(|url| url.starts_with("postgres")) {
        return Vec::new();
    }
    let named = environment.iter().filter(|(_, value)| !value.is_empty());
    let files = named.filter_map(|(name, value)| match name.as_str() {
        "PGSSLKEY" => is_file(value).then(|| PathBuf::from(value)),
        "PGPASSFILE" => Some(PathBuf::from(value)),
        "HOME" => Some(Path::new(value).join(PASSWORDS)).filter(|file| file.is_file()),
        _ => None,
    });
    files.collect()
}

/// Returns whether the value of a key names a file. The driver also accepts the key itself.
fn is_file(key: &str) -> bool {
    !key.trim_start().starts_with("-----BEGIN")
}

/// Returns the files with private keys that a URL of a database names. A URL with a value that is
/// not form-encoded is refused elsewhere.
fn key_files(url: &str) -> Vec<PathBuf> {
    let url = url.split_once('#').map_or(url, |(url, _)| url);
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .filter_map(|(name, value)| Some((form_decoded(name)?, form_decoded(value)?)))
        .filter(|(name, value)| matches!(name.as_str(), "sslkey" | "ssl-key") && is_file(value))
        .map(|(_, file)| PathBuf::from(file))
        .collect()
}

/// Returns the members of a backend's body that name a file with a secret, with the file.
fn of_backend(body: &Value) -> impl Iterator<Item = (String, &str)> {
    let of_values = FILES_OF_BACKENDS.map(|(section, name)| (section, format!("{name}_file")));
    let of_tls = ("tls", "client_key".to_owned());
    of_values
        .into_iter()
        .chain([of_tls])
        .filter_map(|(section, name)| Some((join(section, &name), body[section][&name].as_str()?)))
}

/// Returns the path of each member of an included file that names a file, with the file.
fn members_of(included: &IncludedFile) -> impl Iterator<Item = (String, &str)> {
    let backends = included.entries().filter(|(section, ..)| *section == "backends");
    backends.flat_map(|(section, name, body)| {
        let path = join(section, &name);
        of_backend(body).map(move |(member, file)| (join(&path, &member), file))
    })
}

/// Returns the files with secrets that an included file names.
pub(super) fn of_included(included: &IncludedFile) -> Vec<PathBuf> {
    members_of(included).map(|(_, file)| PathBuf::from(file)).collect()
}

/// Reports each member of an included file that names one of the files of the broker.
pub(super) fn check_included(
    included: &IncludedFile,
    of_broker: &[PathBuf],
    faults: &mut Vec<FieldError>,
) {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let closed: Vec<PathBuf> = of_broker.iter().map(|path| real(path)).collect();
    let named = members_of(included).filter(|(_, file)| closed.contains(&real(Path::new(file))));
    faults.extend(named.map(|(member, _)| {
        let wrong = "names a file with a secret of the broker";
        FieldError::new(member, wrong, "a file with a secret of this backend")
    }));
}

/// Reads the files with secrets of a backend in the configuration file, such as
/// `credentials.bearer_file`. The admin API refuses them, because its callers must not make the
/// broker read files.
pub(super) fn read(body: &Value) -> Result<Value, Vec<FieldError>> {
    let mut body = body.clone();
    let mut faults = Vec::new();
    for (section, name) in FILES_OF_BACKENDS {
        let Some(members) = body.get_mut(section).and_then(Value::as_object_mut) else { continue };
        let path = join(section, &format!("{name}_file"));
        let file = members.remove(&format!("{name}_file"));
        let Some(file) = file.filter(|file| !file.is_null()) else { continue };
        let allowed = KeyKind::SecretFile { bytes_min: 1 }.allowed();
        let secret = if members.get(name).is_some_and(|value| !value.is_null()) {
            let wrong = format!("is set together with {}", join(section, name));
            faults.push(FieldError::new(path, wrong, "one of the two"));
            continue;
        } else {
            match file.as_str() {
                None => Err(format!("is {}", describe(&file))),
                Some(file) if name == "client_key" => ClientKey::read(file).map(|key| key.pem()),
                Some(file) => read_secret_file(file, 1),
            }
        };
        match secret {
            Ok(secret) => {
                members.insert(name.to_owned(), Value::String(secret.expose().to_owned()));
            }
            Err(wrong) => faults.push(FieldError::new(path, wrong, allowed)),
        }
    }
    if faults.is_empty() { Ok(body) } else { Err(faults) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConfigSource, key_table, load_from};

    #[test]
    fn private_keys_in_the_url_of_the_database_are_files_with_secrets() {
        let key = "postgres://b@db/x?sslmode=require&sslkey=/a/b.key";
        assert_eq!(key_files(key), [Path::new("/a/b.key")]);
        assert_eq!(key_files("postgres://b@db/x?ssl-key=%2Fa+b%41#f"), [Path::new("/a bA")]);
        assert!(key_files("postgres://b@db/x?sslkey=-----BEGIN+PRIVATE").is_empty());
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("url");
        std::fs::write(&file, key).unwrap();
        for storage in [format!("url: '{key}'"), format!("url_file: '{}'", file.display())] {
            let text = format!("node: {{secret: 0123456789abcdef}}\nstorage: {{{storage}}}");
            let config = load_from(&text, []).unwrap();
            assert!(config.private_files.contains(&PathBuf::from("/a/b.key")), "{storage}");
        }
        // The driver decodes less strictly, and would open another file.
        let text = "storage: {url: 'postgres://b@db/x?sslkey=/a/100%.key'}";
        let faults = load_from(text, []).unwrap_err().to_string();
        assert!(faults.contains("storage.url: has a value of sslkey that is not"), "{faults}");
    }

    /// An operator may write the root secret: any 32 bytes.
    #[test]
    fn a_file_cannot_name_the_root_secret_next_to_the_database() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}/broker.db", folder.path().display());
        let url_file = folder.path().join("url");
        std::fs::write(&url_file, &url).unwrap();
        let other = folder.path().join("of-the-team");
        std::fs::write(&other, "of-the-team").unwrap();
        for storage in [format!("url: '{url}'"), format!("url_file: '{}'", url_file.display())] {
            let source = ConfigSource::of(&format!("storage: {{{storage}}}"), []);
            let load = |file: &Path| {
                let body = format!(
                    "transport: {{type: http, url: 'http://127.0.0.1:9/'}}, credentials: {{bearer_file: '{}'}}",
                    file.display()
                );
                let included =
                    IncludedFile::parse("a.yaml", &format!("backends: {{x: {{{body}}}}}"));
                source.load([&included.unwrap()]).err().map(|faults| faults.to_string())
            };
            for name in [ROOT_FILE, PREVIOUS_ROOT_FILE] {
                let secret = folder.path().join(name);
                std::fs::write(&secret, "0123456789abcdef0123456789abcdef").unwrap();
                let faults = load(&secret).unwrap_or_default();
                assert!(faults.contains("names a file with a secret of the broker"), "{faults}");
            }
            assert_eq!(load(&other), None);
        }
        let closed = |text: &str| of_root(&raw(text));
        let by_default = PathBuf::from("./data/secret.key");
        assert!(closed("").contains(&by_default), "next to the default database");
        assert!(closed("storage: {url: 'postgres://b@db/x'}").is_empty());
    }

    fn raw(text: &str) -> RawConfig {
        RawConfig::read(&key_table::TABLE, text, [], &mut Vec::new())
    }

    #[test]
    fn files_of_the_database_in_the_environment_are_files_with_secrets() {
        let home = tempfile::tempdir().unwrap();
        let passwords = home.path().join(PASSWORDS);
        std::fs::write(&passwords, "*:*:*:b:hush\n").unwrap();
        let environment = [
            ("PGSSLKEY", "/a/b.key"),
            ("PGPASSFILE", "/a/passwords"),
            ("PGSSLROOTCERT", "/a/ca.crt"),
            ("HOME", home.path().to_str().unwrap()),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let postgres =
            "node: {secret: 0123456789abcdef}\nstorage: {url: 'postgres://b@db/x'}\n".to_owned();
        let files = |text: &str| load_from(text, environment.clone()).unwrap().private_files;
        let expected = [Path::new("/a/b.key"), Path::new("/a/passwords"), passwords.as_path()];
        assert_eq!(files(&postgres), expected);
        assert!(files("").is_empty(), "SQLite has no such files");
        let key = [("PGSSLKEY".to_owned(), "-----BEGIN PRIVATE KEY-----".to_owned())];
        assert!(load_from(&postgres, key).unwrap().private_files.is_empty());
        // A file of `include.folder` cannot name them.
        let body = "transport: {type: http, url: 'http://127.0.0.1:9/'}, credentials: {bearer_file: /a/b.key}";
        let included = IncludedFile::parse("a.yaml", &format!("backends: {{x: {{{body}}}}}"));
        let source = ConfigSource::of(&postgres, environment);
        let faults = source.load([&included.unwrap()]).unwrap_err().to_string();
        assert!(faults.contains("names a file with a secret of the broker"), "{faults}");
    }
}
