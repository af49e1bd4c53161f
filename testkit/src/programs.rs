//! Programs of this build, at a path where every user of the machine can execute them.
//!
//! A child with a user of its own cannot enter the home of the user that built it, where a build
//! may be.

use std::{
    fs::{self, DirBuilder, Metadata, Permissions},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// Returns the program itself if every user can execute it. Otherwise returns a link to it, or a
/// copy, below the folder for temporary files.
pub fn executable_by_all(program: &Path) -> PathBuf {
    let about =
        fs::metadata(program).unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    if is_open(program, &about) {
        return program.to_owned();
    }
    shared(program, &about)
        .unwrap_or_else(|error| panic!("{} for every user: {error}", program.display()))
}

fn is_open(program: &Path, about: &Metadata) -> bool {
    let passable =
        |folder: &Path| fs::metadata(folder).is_ok_and(|about| about.mode() & 0o001 != 0);
    about.mode() & 0o005 == 0o005 && program.ancestors().skip(1).all(passable)
}

/// Returns a path in a folder for each program and each build of it. Test processes make the same
/// one at the same time.
fn shared(program: &Path, about: &Metadata) -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    program.hash(&mut hasher);
    let all = folder(
        std::env::temp_dir().join(format!("mcp-broker-test-programs-{:x}", hasher.finish())),
    )?;
    let build = all.join(format!("{}-{}.{}", about.ino(), about.mtime(), about.mtime_nsec()));
    let path = build.join(program.file_name().expect("a program has a name"));
    if path.exists() {
        return Ok(path);
    }
    let before: Vec<PathBuf> = fs::read_dir(&all)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|other| *other != build)
        .collect();
    let unfinished = all.join(format!("unfinished-{}", std::process::id()));
    fs::hard_link(program, &unfinished).or_else(|_| fs::copy(program, &unfinished).map(drop))?;
    fs::rename(&unfinished, folder(build)?.join(path.file_name().unwrap_or_default()))?;
    // The folders belong to replaced builds. An unfinished build of another process is a file and
    // stays.
    before.iter().for_each(|other| drop(fs::remove_dir_all(other)));
    Ok(path)
}

fn folder(path: PathBuf) -> io::Result<PathBuf> {
    match DirBuilder::new().mode(0o755).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::set_permissions(&path, Permissions::from_mode(0o755))?; // of the owner only: somebody else's folder is an error
    Ok(path)
}
