//! `mcp-broker check-config`: checks a configuration file and its certificates without starting
//! anything, and compares its backends with a lock file.

use std::{collections::BTreeSet, fs, path::Path, process::ExitCode};

use config::{Config, ConfigSource};
use protocol::ids::{BackendId, DEFAULT_TENANT, TenantId, ToolsetId};
use rules::{
    access::{Policy, PolicyFault},
    pins::{LockFile, PinMode},
    toolsets::Toolset,
};

use super::{error::EXIT_USAGE, print_line};
use crate::listeners::tls_acceptor;

/// Checks a configuration file, the files that it includes and the certificates of the listeners,
/// and compares the backends with a lock file. Prints one line for each fault.
pub fn check_config(file: &Path, locked: Option<&Path>) -> ExitCode {
    let checked = ConfigSource::read(Some(file))
        .and_then(|source| Ok((source.check()?, source.ignored_variables())));
    let ((config, included), ignored) = match checked {
        Ok(checked) => checked,
        Err(faults) => {
            print_line(&faults.to_string());
            return EXIT_USAGE.into();
        }
    };
    let certificates = tls_acceptor::acceptors(&config).err();
    let mut faults: Vec<String> =
        certificates.map(|error| format!("tls: {error}")).into_iter().collect();
    faults.extend(locked.map(|locked| faults_of_lock(&config, locked)).unwrap_or_default());
    if !faults.is_empty() {
        faults.iter().for_each(|fault| print_line(fault));
        return EXIT_USAGE.into();
    }
    let notes = [undeclared_tenants, undeclared_backends, undeclared_of_operators];
    let notes = notes.into_iter().flat_map(|notes_of| notes_of(&config));
    let notes = ignored.into_iter().map(|warning| format!("note: {warning}")).chain(notes);
    notes.for_each(|note| print_line(&note));
    let more = match included {
        0 => String::new(),
        1 => ", with 1 included file".to_owned(),
        count => format!(", with {count} included files"),
    };
    print_line(&format!("{} is a valid configuration{more}", file.display()));
    ExitCode::SUCCESS
}

/// Returns a note for each tenant that has declared backends and is not declared. The store may have
/// it, which this command does not open.
fn undeclared_tenants(config: &Config) -> Vec<String> {
    let tenants: BTreeSet<&str> =
        config.backends.iter().map(|backend| backend.tenant.as_str()).collect();
    tenants
        .into_iter()
        .filter(|tenant| {
            *tenant != DEFAULT_TENANT && !config.tenants.iter().any(|(id, _)| id.as_str() == *tenant)
        })
        .map(|tenant| {
            format!(
                "note: backends.{tenant}/…: the file does not declare the tenant {tenant}; without it in the database, serve does not start"
            )
        })
        .collect()
}

/// Returns a note for each name of a backend in a policy or toolset that the file does not declare.
/// A tenant without declared backends has them in the store, which this command does not open.
fn undeclared_backends(config: &Config) -> Vec<String> {
    let declared = |tenant: &TenantId| -> Option<Vec<BackendId>> {
        let of_tenant = config.backends.iter().filter(|backend| backend.tenant == *tenant);
        let names: Vec<BackendId> = of_tenant.map(|backend| backend.backend.clone()).collect();
        (!names.is_empty()).then(|| names.into_iter().chain([BackendId::hosted()]).collect())
    };
    let note = |path: String, fault: PolicyFault| {
        format!("note: {path}.{}: {}, unless the database has more", fault.path, fault.problem)
    };
    let mut notes = Vec::new();
    for (tenant, policy) in &config.policies {
        let Some(known) = declared(tenant) else { continue };
        let faults = Policy::compile(policy, Some(&known)).err().into_iter().flatten();
        notes.extend(faults.map(|fault| note(format!("tenants.{tenant}.policy"), fault)));
    }
    for (tenant, name, toolset) in &config.toolsets {
        let (Some(known), Ok(id)) = (declared(tenant), ToolsetId::parse(name)) else { continue };
        let faults = Toolset::compile(id, toolset, Some(&known)).err().into_iter().flatten();
        notes.extend(faults.map(|fault| note(format!("tenants.{tenant}.toolsets.{name}"), fault)));
    }
    notes
}

/// Returns a note for each tenant and backend of an operator that the file does not declare. The
/// store may have them, which this command does not open.
fn undeclared_of_operators(config: &Config) -> Vec<String> {
    let has_tenant = |tenant: &TenantId| {
        tenant.as_str() == DEFAULT_TENANT || config.tenants.iter().any(|(id, _)| id == tenant)
    };
    let has_backend = |tenant: &TenantId, backend: &BackendId| {
        config.backends.iter().any(|one| one.tenant == *tenant && one.backend == *backend)
    };
    let missing = config.auth.operator_scopes().flat_map(|(path, scope)| {
        let missing = scope.missing(has_tenant, has_backend);
        missing.into_iter().map(move |what| {
            format!(
                "note: {path}: the file does not declare {what}; without it in the database, the operator sees nothing of it"
            )
        })
    });
    missing.collect()
}

fn faults_of_lock(config: &Config, locked: &Path) -> Vec<String> {
    let name = locked.display();
    let text = match fs::read_to_string(locked) {
        Ok(text) => text,
        Err(error) => return vec![format!("{name}: {error}")],
    };
    match LockFile::parse(&text) {
        Ok(lock) => {
            let faults = differences(config, &lock);
            faults.into_iter().map(|fault| format!("{name}: {fault}")).collect()
        }
        Err(faults) => faults.into_iter().map(|fault| format!("{name}: {fault}")).collect(),
    }
}

/// Returns how the declared backends differ from those of a lock file.
fn differences(config: &Config, lock: &LockFile) -> Vec<String> {
    let is_of_lock = |tenant: &str| tenant == lock.tenant;
    let own: Vec<_> =
        config.backends.iter().filter(|backend| is_of_lock(backend.tenant.as_str())).collect();
    let declared: BTreeSet<&str> = own.iter().map(|backend| backend.backend.as_str()).collect();
    let mut faults = Vec::new();
    for backend in lock.backends.keys().filter(|backend| !declared.contains(backend.as_str())) {
        faults.push(format!(
            "backends.{backend}: the configuration has no such backend of the tenant {}",
            lock.tenant
        ));
    }
    for backend in own {
        let (name, mode) = (backend.backend.as_str(), backend.spec.pins.rules().0);
        match (mode, lock.backends.contains_key(name)) {
            (PinMode::Off, true) => {
                faults.push(format!("backends.{name}: has pins: off in the configuration"));
            }
            (PinMode::HoldChanged | PinMode::HoldAll, false) => {
                faults.push(format!(
                    "backends.{name}: is missing, but the pin mode of the backend requires it"
                ));
            }
            _ => {}
        }
    }
    faults
}
