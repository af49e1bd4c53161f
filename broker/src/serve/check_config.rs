//! `mcp-broker check-config`: checks a configuration file without starting anything, and compares
//! its backends with a lock file.

use std::{collections::BTreeSet, fs, path::Path, process::ExitCode};

use rules::pins::{LockFile, PinMode};

use super::{error::EXIT_USAGE, say};
use crate::config::{Config, ConfigSource};

/// Checks a configuration file and the files that it includes, and compares them with a lock file.
/// Prints one line for each fault.
pub fn check_config(file: &Path, locked: Option<&Path>) -> ExitCode {
    let checked = ConfigSource::read(Some(file)).and_then(|source| source.check());
    let (faults, included) = match checked {
        Ok((config, included)) => {
            (locked.map(|locked| faults_of_lock(&config, locked)).unwrap_or_default(), included)
        }
        Err(faults) => (vec![faults.to_string()], 0),
    };
    if !faults.is_empty() {
        faults.iter().for_each(|fault| say(fault));
        return EXIT_USAGE.into();
    }
    let more = match included {
        0 => String::new(),
        1 => ", with 1 included file".to_owned(),
        count => format!(", with {count} included files"),
    };
    say(&format!("{} is a good configuration{more}", file.display()));
    ExitCode::SUCCESS
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
