//! Statements and rows of sealed values, which both engines share.

use protocol::ids::{BackendId, PrincipalId, TenantId};
use records::{GrantKey, SealedLocation, SealedValue, SecretKey, SecretKind, StoredRoot};

use crate::{StoreError, audit_rows::Column};

/// Selects the root keys, the oldest one first.
pub(crate) const ROOTS: &str = "SELECT secret, seal_key, sealed FROM root_keys ORDER BY number";

pub(crate) const ADD_ROOT: &str = "INSERT INTO root_keys (secret, sealed, seal_key) VALUES ($1, $2, CAST($3 AS INTEGER)) ON CONFLICT (secret) DO NOTHING";

pub(crate) const KEEP_ROOT: &str = "DELETE FROM root_keys WHERE secret <> $1 AND EXISTS (SELECT 1 FROM root_keys WHERE secret = $1)";

/// Selects values whose first byte is less than `$1`, at most `$2`, without the first `$3`.
/// Secrets of other kinds end soon.
pub(crate) const SEALED_BEFORE: &str =
    "SELECT kind, tenant, name, principal, issuer, sealed FROM (
        SELECT 'backend' AS kind, tenant, backend AS name, '' AS principal, '' AS issuer, settings AS sealed FROM backends
        UNION ALL SELECT 'issuer', tenant, issuer, '', '', settings FROM token_issuers
        UNION ALL SELECT 'grant', tenant, backend, principal, issuer, sealed FROM upstream_grants
        UNION ALL SELECT kind, tenant, name, '', '', sealed FROM upstream_secrets WHERE kind IN ('client', 'key')
     ) AS sealed_values
     WHERE substr(sealed, 1, 1) < $1 ORDER BY kind, tenant, name, principal LIMIT $2 OFFSET $3";

/// Returns the statement that writes `$1` over `$2`, and the texts of the row's key from `$3` on.
pub(crate) fn reseal(location: &SealedLocation) -> (&'static str, Vec<&str>) {
    match location {
        SealedLocation::Backend { tenant, backend } => (
            "UPDATE backends SET settings = $1 WHERE settings = $2 AND tenant = $3 AND backend = $4",
            vec![tenant.as_str(), backend.as_str()],
        ),
        SealedLocation::Issuer { tenant, issuer } => (
            "UPDATE token_issuers SET settings = $1 WHERE settings = $2 AND tenant = $3 AND issuer = $4",
            vec![tenant.as_str(), issuer],
        ),
        SealedLocation::Grant { key, .. } => (
            "UPDATE upstream_grants SET sealed = $1 WHERE sealed = $2 AND tenant = $3 AND backend = $4 AND principal = $5",
            vec![key.tenant.as_str(), key.backend.as_str(), key.principal.as_str()],
        ),
        SealedLocation::Secret(key) => (
            "UPDATE upstream_secrets SET sealed = $1 WHERE sealed = $2 AND tenant = $3 AND kind = $4 AND name = $5",
            vec![key.tenant.as_str(), key.kind.name(), &key.name],
        ),
    }
}

/// Reads a root key.
pub(crate) fn root<R: Column<Vec<u8>> + Column<i32>>(row: &R) -> Result<StoredRoot, StoreError> {
    let secret: Vec<u8> = row.column("secret")?;
    let seal_key: i32 = row.column("seal_key")?;
    Ok(StoredRoot {
        secret: secret.try_into().map_err(|_| corrupt("root secret"))?,
        seal_key: u8::try_from(seal_key).map_err(|_| corrupt("number"))?,
        sealed: row.column("sealed")?,
    })
}

/// Reads a sealed value.
pub(crate) fn value<R: Column<String> + Column<Vec<u8>>>(
    row: &R,
) -> Result<SealedValue, StoreError> {
    let text = |name: &str| -> Result<String, StoreError> { row.column(name) };
    let tenant = TenantId::parse(&text("tenant")?).map_err(|_| corrupt("tenant"))?;
    let name = text("name")?;
    let backend = |name: &str| BackendId::parse(name).map_err(|_| corrupt("backend"));
    let location = match text("kind")?.as_str() {
        "backend" => SealedLocation::Backend { tenant, backend: backend(&name)? },
        "issuer" => SealedLocation::Issuer { tenant, issuer: name },
        "grant" => {
            let principal = PrincipalId::new(text("principal")?);
            let key = GrantKey { tenant, backend: backend(&name)?, principal };
            SealedLocation::Grant { key, issuer: text("issuer")? }
        }
        kind => {
            let kinds = [SecretKind::Client, SecretKind::Key].into_iter();
            let kind = kinds.clone().find(|known| known.name() == kind);
            let kind = kind.ok_or_else(|| corrupt("kind of a secret"))?;
            SealedLocation::Secret(SecretKey { kind, tenant, name })
        }
    };
    Ok(SealedValue { location, sealed: row.column("sealed")? })
}

fn corrupt(what: &str) -> StoreError {
    StoreError::Corrupt { detail: format!("the {what} of a sealed value is not valid") }
}
