//! A user of its own for a child: identifiers, groups and capabilities.
//!
//! Called in the launcher, which has one thread: the kernel changes these by thread.

use std::{fs::DirBuilder, io, os::unix::fs::DirBuilderExt as _, path::Path};

use rustix::{
    process::{Gid, Uid},
    thread::{
        CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities,
        set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    },
};

/// Becomes the user and the group of this number, for good.
pub(super) fn become_user(number: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(number), Gid::from_raw(number));
    // The groups first: the right to change them goes with the user.
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

/// Gives up every capability. A process without new privileges does not get them back, not even as root.
pub(super) fn drop_capabilities() -> io::Result<()> {
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    Ok(())
}

/// Makes a folder that only this user enters.
pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}
