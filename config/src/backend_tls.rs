//! Client certificates that the broker presents to backends: `tls` of a backend's body. Also checks
//! which files a backend from the admin API may name.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use transport::tls::ClientIdentityFiles;
use utoipa::ToSchema;

use super::{
    TlsConfig,
    field_error::{FieldError, join},
    transport_spec::TransportSpec,
};

const PATH: &str = "tls";
const CERT: &str = "client_cert";
const KEY: &str = "client_key";
const FILE_ALLOWED: &str = "the absolute path of a PEM file, without ..";
/// Longest path of the operating system, in bytes.
const PATH_BYTES_MAX: usize = 4096;

/// Certificate that the broker presents to a backend that requests one, on every transport with
/// TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BackendTls {
    /// Path of a PEM file with the certificate and its chain up to the authority.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub client_cert: Option<PathBuf>,
    /// Path of a PEM file with the private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub client_key: Option<PathBuf>,
}

impl BackendTls {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the two files, or `None` if the broker presents no certificate.
    pub fn identity(&self) -> Option<ClientIdentityFiles> {
        let (Some(cert), Some(key)) = (&self.client_cert, &self.client_key) else { return None };
        Some(ClientIdentityFiles { cert: cert.clone(), key: key.clone() })
    }
}

/// Checks the rules that the types do not express.
pub(super) fn check(tls: &BackendTls, transport: &TransportSpec, faults: &mut Vec<FieldError>) {
    let named = [(CERT, &tls.client_cert), (KEY, &tls.client_key)];
    for (name, path) in &named {
        match path {
            Some(path) if !is_plain(path) => faults.push(FieldError::new(
                join(PATH, name),
                "is not an absolute path",
                FILE_ALLOWED,
            )),
            None if named.iter().any(|(_, other)| other.is_some()) => {
                faults.push(FieldError::new(
                    join(PATH, name),
                    "is missing: a certificate and its key are given together",
                    FILE_ALLOWED,
                ));
            }
            _ => {}
        }
    }
    if tls.identity().is_some() && !transport.has_tls() {
        let wrong = "is given, but the connection to this backend has no TLS";
        faults.push(FieldError::new(
            PATH,
            wrong,
            "an https:// or wss:// URL, tcp with `tls`, or quic",
        ));
    }
}

/// Returns whether the path is absolute and normal, so that its folder is known without a look at
/// the disk.
fn is_plain(path: &Path) -> bool {
    let text = path.as_os_str().as_encoded_bytes();
    path.is_absolute()
        && text.len() <= PATH_BYTES_MAX
        && !text.contains(&0)
        && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

/// Parses an entry of `tls.client_cert_folders`.
pub(super) fn folder(text: &str) -> Option<PathBuf> {
    Some(PathBuf::from(text)).filter(|path| is_plain(path))
}

impl TlsConfig {
    /// Checks the files that a backend from the admin API names. Its author may be a tenant's
    /// operator, who could otherwise have any key of this machine presented to a server of their
    /// own.
    pub fn check_stored(&self, tls: &BackendTls) -> Result<(), FieldError> {
        let in_folder = |path: &PathBuf| {
            is_plain(path) && self.client_cert_folders.iter().any(|folder| path.starts_with(folder))
        };
        for (name, path) in [(CERT, &tls.client_cert), (KEY, &tls.client_key)] {
            if path.as_ref().is_some_and(|path| !in_folder(path)) {
                let wrong = "is not in a folder of tls.client_cert_folders";
                return Err(FieldError::new(
                    join(PATH, name),
                    wrong,
                    "a file in a folder the operator listed there",
                ));
            }
        }
        Ok(())
    }

    /// Checks that the files exist and belong together.
    pub fn check_files(tls: &BackendTls) -> Result<(), FieldError> {
        let Some(files) = tls.identity() else { return Ok(()) };
        files.check().map_err(|error| {
            FieldError::new(
                PATH,
                error.to_string(),
                "PEM files of a certificate and of its private key",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{load_from, validation::parse_backend_spec};

    fn faults(transport: Value, tls: Value) -> Vec<String> {
        let body = json!({"transport": transport, "tls": tls});
        parse_backend_spec(&body)
            .err()
            .unwrap_or_default()
            .iter()
            .map(FieldError::to_string)
            .collect()
    }

    #[test]
    fn a_certificate_needs_its_key_and_a_wire_with_tls() {
        let (https, both) = (
            json!({"type": "http", "url": "https://h/"}),
            json!({"client_cert": "/c.pem", "client_key": "/c.key"}),
        );
        for transport in [
            https.clone(),
            json!({"type": "websocket", "url": "wss://h/"}),
            json!({"type": "tcp", "address": "h:1", "tls": true}),
            json!({"type": "tcp", "address": "h:1", "tls": {"server_name": "n"}}),
            json!({"type": "quic", "address": "h:1"}),
        ] {
            assert_eq!(faults(transport.clone(), both.clone()), [""; 0], "{transport}");
        }
        for transport in [
            json!({"type": "http", "url": "http://h/"}),
            json!({"type": "websocket", "url": "ws://h/"}),
            json!({"type": "tcp", "address": "h:1"}),
            json!({"type": "tcp", "address": "h:1", "tls": false}),
            json!({"type": "stdio", "command": "c"}),
        ] {
            assert!(
                faults(transport.clone(), both.clone())[0].contains("has no TLS"),
                "{transport}"
            );
        }
        assert!(
            faults(https.clone(), json!({"client_cert": "/c.pem"}))[0]
                .starts_with("tls.client_key: is missing")
        );
        assert!(
            faults(https.clone(), json!({"client_key": "/c.pem"}))[0]
                .starts_with("tls.client_cert: is missing")
        );
        for path in ["c.pem", "", "/a/../c.pem", "/a\0"] {
            assert!(
                faults(https.clone(), json!({"client_cert": path, "client_key": "/k"}))[0]
                    .contains("not an absolute path"),
                "{path:?}"
            );
        }
        assert!(!faults(https, json!({"ca": "/c.pem"})).is_empty());
    }

    #[test]
    fn stored_backends_name_files_of_listed_folders_only() {
        let tls = |folders: &str| load_from(&format!("tls: {{{folders}}}"), []).unwrap().tls;
        let pair = |cert: &str| BackendTls {
            client_cert: Some(cert.into()),
            client_key: Some("/certs/one/k.pem".into()),
        };
        assert!(tls("").check_stored(&pair("/certs/one/c.pem")).is_err(), "none by default");
        assert_eq!(tls("").check_stored(&BackendTls::default()), Ok(()));
        let listed = tls("client_cert_folders: [/certs/one, /certs/two/]");
        assert_eq!(listed.check_stored(&pair("/certs/one/c.pem")), Ok(()));
        assert_eq!(listed.check_stored(&pair("/certs/two/deep/c.pem")), Ok(()));
        for path in
            ["/certs/c.pem", "/certs/onetwo/c.pem", "/certs/one/../c.pem", "certs/one/c.pem"]
        {
            assert!(
                listed
                    .check_stored(&pair(path))
                    .unwrap_err()
                    .to_string()
                    .starts_with("tls.client_cert: "),
                "{path}"
            );
        }
        for wrong in ["[certs]", "['/a/../b']", "/certs", "[1]"] {
            assert!(
                load_from(&format!("tls: {{client_cert_folders: {wrong}}}"), []).is_err(),
                "{wrong}"
            );
        }
    }
}
