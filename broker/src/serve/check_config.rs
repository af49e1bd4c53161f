//! `mcp-broker check-config`: checks a configuration file without starting anything, and compares
//! its backends with a lock file.

use std::{collections::BTreeSet, fs, path::Path, process::ExitCode};

use rules::pins::{LockFile, PinMode};

use super::{error::EXIT_USAGE, say};
use crate::config::{self, Config};

/// Checks a configuration file, and compares it with a lock file. Prints one line for each fault.
pub fn check_config(file: &Path, locked: Option<&Path>) -> ExitCode {
    let faults = match config::load(Some(file)) {
        Ok(config) => locked.map(|locked| faults_of_lock(&config, locked)).unwrap_or_default(),
        Err(faults) => vec![faults.to_string()],
    };
    if faults.is_empty() {
        say(&format!("{} is a good configuration", file.display()));
        return ExitCode::SUCCESS;
    }
    faults.iter().for_each(|fault| say(fault));
    EXIT_USAGE.into()
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
                    "backends.{name}: is missing, and the backend is held to its pins"
                ));
            }
            _ => {}
        }
    }
    faults
}
