//! Gives a child its own user: identifiers, groups and capabilities.
//!
//! Called in the launcher, which has one thread, because the kernel changes these per thread.

use std::{fs::DirBuilder, io, os::unix::fs::DirBuilderExt as _, path::Path};

use rustix::{
    process::{Gid, Uid},
    thread::{
        CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities,
        set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    },
};

/// Changes to the user and group with this number. The process cannot change back.
pub(super) fn become_user(number: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(number), Gid::from_raw(number));
    // The groups change first, because the change of the user removes the right to change them.
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

/// Drops every capability. A process without new privileges does not get them back, not even as
/// root.
pub(super) fn drop_capabilities() -> io::Result<()> {
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    Ok(())
}

/// Creates a folder that only this user can enter.
pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}
