//! One broker per database file: an advisory lock on a file next to it. Dropping this value or
//! ending the process releases the lock.
//!
//! The lock file stays on purpose. If it were removed, a third process could lock a new file of the
//! same name while the second still waits on the old one.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions, TryLockError},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use crate::StoreError;

#[derive(Debug)]
pub(super) struct ProcessLock {
    _file: File,
}

impl ProcessLock {
    pub(super) fn acquire(database: &Path) -> Result<Self, StoreError> {
        let mut name = OsString::from(database);
        name.push(".lock");
        let path = PathBuf::from(name);
        let unavailable = |error: std::io::Error| StoreError::Unavailable {
            detail: format!("{}: {error}", path.display()),
        };
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(unavailable)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(StoreError::InUse { path: database.to_owned() }),
            Err(TryLockError::Error(error)) => Err(unavailable(error)),
        }
    }
}
