//! Role of an operator and what it covers: the members `role`, `tenants` and `backends` in
//! `auth.operators`, in `auth.issuers[].admin.map` and in requests of the admin API.

use std::collections::BTreeSet;

use protocol::ids::{BackendId, TenantId};
use rules::operators::{Role, Scope};

use super::field_error::{FieldError, NAME_ALLOWED, element, invalid_value};

/// Largest number of tenants or backends of one operator.
const NAMES_MAX: usize = 1_000;
const BACKEND_ALLOWED: &str = "TENANT/BACKEND of each backend";

/// Returns role and scope, or the fault of one member. Does not check that tenants and backends
/// exist.
pub fn parse_operator_scope(
    role: &str,
    tenants: Option<&[String]>,
    backends: Option<&[String]>,
) -> Result<(Role, Scope), FieldError> {
    let fault = |path: &str, wrong: &str, allowed: &str| FieldError::new(path, wrong, allowed);
    let role = Role::parse(role).ok_or_else(|| {
        let wrong = format!("{}, which is not a role", invalid_value(&role.into()));
        fault("role", &wrong, &Role::ALL.map(Role::name).join(", "))
    })?;
    let scope = match (role, tenants, backends) {
        (Role::BackendOwner, Some(_), _) => {
            return Err(fault("tenants", "is not allowed for the role backend_owner", "backends"));
        }
        (Role::BackendOwner, None, None) => {
            return Err(fault("backends", "is missing", BACKEND_ALLOWED));
        }
        (Role::BackendOwner, None, Some(names)) => {
            Scope::Backends(parse_names("backends", names, BACKEND_ALLOWED, parse_backend_name)?)
        }
        (_, _, Some(_)) => {
            return Err(fault(
                "backends",
                "is set for a role other than backend_owner",
                "the role backend_owner",
            ));
        }
        (Role::Scraper, Some(_), None) => {
            let wrong = "is set for a scraper, but metrics cover all tenants";
            return Err(fault("tenants", wrong, "a scraper without tenants"));
        }
        (_, Some(names), None) => {
            Scope::Tenants(parse_names("tenants", names, NAME_ALLOWED, |name| {
                TenantId::parse(name).ok()
            })?)
        }
        (_, None, None) => Scope::Broker,
    };
    Ok((role, scope))
}

fn parse_backend_name(name: &str) -> Option<(TenantId, BackendId)> {
    let (tenant, backend) = name.split_once('/')?;
    Some((TenantId::parse(tenant).ok()?, BackendId::parse(backend).ok()?))
}

fn parse_names<T>(
    member: &str,
    names: &[String],
    allowed: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, FieldError> {
    let distinct: BTreeSet<&String> = names.iter().collect();
    if !(1..=NAMES_MAX).contains(&names.len()) || distinct.len() < names.len() {
        let allowed = format!("1 to {NAMES_MAX} different names");
        return Err(FieldError::new(member, "is empty, too long, or has a name twice", allowed));
    }
    let parsed = names.iter().enumerate().map(|(at, name)| {
        parse(name).ok_or_else(|| {
            let wrong =
                format!("{}, which is not a usable name", invalid_value(&name.as_str().into()));
            FieldError::new(element(member, at), wrong, allowed)
        })
    });
    parsed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_has_the_scope_that_fits_it() {
        let names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let of = |role, tenants: Option<&[&str]>, backends: Option<&[&str]>| {
            let (tenants, backends) = (tenants.map(names), backends.map(names));
            parse_operator_scope(role, tenants.as_deref(), backends.as_deref())
        };
        let acme = TenantId::parse("acme").unwrap();
        let files = BackendId::parse("files").unwrap();
        assert_eq!(of("viewer", None, None), Ok((Role::Viewer, Scope::Broker)));
        let scope = Scope::Tenants(vec![acme.clone()]);
        assert_eq!(of("auditor", Some(&["acme"]), None), Ok((Role::Auditor, scope)));
        let scope = Scope::Backends(vec![(acme, files)]);
        let owner = of("backend_owner", None, Some(&["acme/files"]));
        assert_eq!(owner, Ok((Role::BackendOwner, scope)));

        type Names = Option<&'static [&'static str]>;
        let refused: &[(&str, Names, Names, &str)] = &[
            ("root", None, None, "role: is \"root\", which is not a role; allowed: viewer"),
            ("backend_owner", None, None, "backends: is missing"),
            (
                "backend_owner",
                Some(&["acme"]),
                Some(&["acme/files"]),
                "tenants: is not allowed for the role b",
            ),
            (
                "backend_owner",
                None,
                Some(&["files"]),
                "backends[0]: is \"files\", which is not a usable name",
            ),
            (
                "viewer",
                None,
                Some(&["acme/files"]),
                "backends: is set for a role other than backend_owner",
            ),
            ("viewer", Some(&[]), None, "tenants: is empty"),
            ("viewer", Some(&["a", "a"]), None, "tenants: is empty, too long, or has a name twice"),
            ("viewer", Some(&["a", "A"]), None, "tenants[1]: is \"A\", which is not a usable name"),
            ("scraper", Some(&["acme"]), None, "tenants: is set for a scraper"),
        ];
        for (role, tenants, backends, expected) in refused {
            let fault = of(role, *tenants, *backends).unwrap_err().to_string();
            assert!(fault.starts_with(expected), "{fault}");
        }
    }
}
