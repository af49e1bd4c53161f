//! `auth.operators`: operators that the configuration file declares, each with a token of its own.
//! Read with the rest by [`super::validation`].
//!
//! Invariants:
//! - The configuration keeps hashes of the tokens, not the tokens.
//! - No two operators have the same name or token, and none has the admin token.

use std::{
    fmt,
    sync::{Arc, LazyLock},
};

use aws_lc_rs::{constant_time, digest};
use protocol::characters;
use rules::operators::{ADMIN_NAME, CONFIGURATION_NAME, Operator, Scope};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    AuthConfig, Secret,
    body_schema::BodySchema,
    config_reader::{ConfigReader, read_secret_file, secret_of},
    field_error::{FieldError, element, invalid_value},
    operator_scope::parse_operator_scope,
};

static ENTRY: LazyLock<BodySchema<DeclaredOperatorEntry>> = LazyLock::new(BodySchema::new);

const PATH: &str = "auth.operators";
/// Largest number of declared operators.
pub const DECLARED_OPERATORS_MAX: usize = 256;
const TOKEN_BYTES_MIN: usize = 16;
/// Longest name in characters.
const NAME_CHARS_MAX: usize = 128;

/// Hash of an operator's token. All hashes have the same length, so the time of a comparison
/// reveals nothing about the token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenHash([u8; digest::SHA256_OUTPUT_LEN]);

impl TokenHash {
    pub fn new(token: &str) -> Self {
        let hash = digest::digest(&digest::SHA256, token.as_bytes());
        Self(hash.as_ref().try_into().expect("SHA-256 has this length"))
    }

    /// Compares in constant time.
    pub fn matches(&self, other: &Self) -> bool {
        constant_time::verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("TokenHash")
    }
}

/// An operator of the configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredOperator {
    pub operator: Arc<Operator>,
    pub token: TokenHash,
}

/// An operator as written.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct DeclaredOperatorEntry {
    name: String,
    role: String,
    tenants: Option<Vec<String>>,
    backends: Option<Vec<String>>,
    token: Option<String>,
    token_file: Option<String>,
}

impl AuthConfig {
    /// Returns the scope of each operator and each grant of the configuration file, with its path.
    pub fn operator_scopes(&self) -> impl Iterator<Item = (String, &Scope)> {
        let operators = self.operators.iter().enumerate();
        let operators = operators.map(|(at, one)| (element(PATH, at), &one.operator.scope));
        let grants = self.issuers.iter().enumerate().flat_map(|(issuer, config)| {
            let scopes = config.operators.iter().flat_map(|mapping| mapping.scopes()).enumerate();
            scopes
                .map(move |(at, scope)| (format!("auth.issuers[{issuer}].admin.map[{at}]"), scope))
        });
        operators.chain(grants)
    }
}

impl ConfigReader<'_> {
    pub(super) fn operators(&mut self, admin_token: Option<&Secret>) -> Vec<DeclaredOperator> {
        let raw = self.raw;
        let Some(written) = raw.value(PATH) else { return Vec::new() };
        let Some(entries) = written.as_array() else {
            let allowed = self.raw.key(PATH).kind.allowed();
            self.report(PATH, &invalid_value(written), &allowed);
            return Vec::new();
        };
        if entries.len() > DECLARED_OPERATORS_MAX {
            self.report(PATH, "has too many entries", &format!("at most {DECLARED_OPERATORS_MAX}"));
        }
        let named = self.raw.source_name(PATH);
        let admin_token = admin_token.map(|token| TokenHash::new(token.expose()));
        let mut operators: Vec<DeclaredOperator> = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            let path = element(&named, at);
            let read = read(entry).and_then(|operator| {
                check_distinct(&operator, &operators, admin_token)?;
                Ok(operator)
            });
            match read {
                Ok(operator) => operators.push(operator),
                Err(faults) => {
                    self.faults.extend(faults.into_iter().map(|fault| fault.nested_in(&path)));
                }
            }
        }
        operators
    }
}

fn read(entry: &Value) -> Result<DeclaredOperator, Vec<FieldError>> {
    let entry = ENTRY.read(entry)?;
    let mut faults = Vec::new();
    if !is_name(&entry.name) {
        let allowed = format!("1 to {NAME_CHARS_MAX} visible characters on one line");
        let wrong = "is empty, too long or reserved, or has invisible characters";
        faults.push(FieldError::new("name", wrong, allowed));
    }
    let (tenants, backends) = (entry.tenants.as_deref(), entry.backends.as_deref());
    let scope = parse_operator_scope(&entry.role, tenants, backends);
    let token = token(&entry);
    match (scope, token) {
        (Ok((role, scope)), Ok(token)) if faults.is_empty() => {
            let operator = Arc::new(Operator { name: entry.name, role, scope, groups: Vec::new() });
            Ok(DeclaredOperator { operator, token: TokenHash::new(token.expose()) })
        }
        (scope, token) => {
            faults.extend(scope.err());
            faults.extend(token.err());
            Err(faults)
        }
    }
}

fn is_name(name: &str) -> bool {
    let is_seen = |char: char| !char.is_control() && !characters::is_unseen(char);
    (1..=NAME_CHARS_MAX).contains(&name.chars().count())
        && name.trim() == name
        && name.chars().all(is_seen)
        && ![ADMIN_NAME, CONFIGURATION_NAME].contains(&name)
}

fn token(entry: &DeclaredOperatorEntry) -> Result<Secret, FieldError> {
    let (name, token) = match (&entry.token, &entry.token_file) {
        (Some(_), Some(_)) => ("token_file", Err("is set together with token".to_owned())),
        (Some(text), None) => ("token", secret_of(text, TOKEN_BYTES_MIN)),
        (None, Some(file)) => ("token_file", read_secret_file(file, TOKEN_BYTES_MIN)),
        (None, None) => ("token_file", Err("is missing, and so is token".to_owned())),
    };
    token.map_err(|wrong| {
        let allowed = format!("token, or token_file with at least {TOKEN_BYTES_MIN} bytes");
        FieldError::new(name, wrong, allowed)
    })
}

fn check_distinct(
    operator: &DeclaredOperator,
    others: &[DeclaredOperator],
    admin_token: Option<TokenHash>,
) -> Result<(), Vec<FieldError>> {
    let mut faults = Vec::new();
    if others.iter().any(|other| other.operator.name == operator.operator.name) {
        faults.push(FieldError::new("name", "is listed twice", "each name once"));
    }
    if admin_token.is_some_and(|token| token.matches(&operator.token))
        || others.iter().any(|other| other.token.matches(&operator.token))
    {
        let wrong = "is the token of another operator, or the admin token";
        faults.push(FieldError::new("token", wrong, "a token of its own"));
    }
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

#[cfg(test)]
mod tests {
    use rules::operators::{Role, Scope};

    use super::*;
    use crate::load_from;

    const TOKEN: &str = "token: sixteen-bytes-of";

    fn faults(entries: &str) -> String {
        let text = format!("auth: {{admin_token: the-token-of-admin, operators: {entries}}}");
        load_from(&text, []).expect_err(entries).to_string()
    }

    #[test]
    fn operators_have_their_roles_and_only_hashes_of_their_tokens() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "the-token-of-prometheus\n").unwrap();
        let text = format!(
            "auth: {{operators: [{{name: olga, role: auditor, tenants: [acme], {TOKEN}}}, {{name: Prometheus, role: scraper, token_file: '{}'}}]}}",
            file.display()
        );
        let auth = load_from(&text, []).unwrap().auth;
        let [olga, prometheus] = &auth.operators[..] else { panic!("two operators") };
        assert_eq!((olga.operator.role, olga.operator.name.as_str()), (Role::Auditor, "olga"));
        assert!(matches!(&olga.operator.scope, Scope::Tenants(names) if names.len() == 1));
        assert_eq!(prometheus.operator.role, Role::Scraper);
        assert!(prometheus.token.matches(&TokenHash::new("the-token-of-prometheus")));
        assert!(!prometheus.token.matches(&olga.token));
        assert!(!format!("{auth:?}").contains("sixteen"));
    }

    #[test]
    fn faults_of_operators_name_their_key() {
        for (entry, fault) in [
            ("{role: viewer, token: sixteen-bytes-of}", "name: is missing"),
            ("{name: olga, role: viewer}", "token_file: is missing, and so is token"),
            ("{name: olga, role: viewer, token: short}", "token: is too short for a secret"),
            ("{name: olga, role: viewer, token_file: /dev/nix}", "token_file: \"/dev/nix\" cannot"),
            (
                "{name: olga, role: viewer, token_file: /x, token: sixteen-bytes-of}",
                "token_file: is set together with token",
            ),
            (
                "{name: admin, role: viewer, token: sixteen-bytes-of}",
                "name: is empty, too long or r",
            ),
            ("{name: ' olga', role: viewer, token: sixteen-bytes-of}", "name: is empty, too long"),
            ("{name: olga, role: root, token: sixteen-bytes-of}", "role: is \"root\""),
            ("{name: olga, role: scraper, tenants: [a], token: sixteen-bytes-of}", "tenants: is s"),
            ("{name: olga, rule: viewer, token: sixteen-bytes-of}", "rule: "),
            ("{name: olga, role: viewer, token: the-token-of-admin}", "token: is the token of an"),
        ] {
            let faults = faults(&format!("[{entry}]"));
            assert!(faults.contains(&format!("auth.operators[0].{fault}")), "{entry}: {faults}");
            assert!(!faults.contains("sixteen-bytes-of"), "a secret: {faults}");
        }
        let two =
            format!("[{{name: a, role: viewer, {TOKEN}}}, {{name: a, role: viewer, {TOKEN}}}]");
        let both = faults(&two);
        assert!(both.contains("auth.operators[1].name: is listed twice"), "{both}");
        assert!(both.contains("auth.operators[1].token: is the token of another"), "{both}");
        assert!(faults("{}").contains("auth.operators: is a map"), "{}", faults("{}"));
    }
}
