//! Paths that every child may read: the files that programs, interpreters and libraries need to
//! start.
//!
//! Invariant: below a user's home the list contains only package caches and program folders. It
//! contains single files of `/etc`, and not the whole folder.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Programs, libraries, and descriptions of this machine.
const READ: &[&str] = &[
    "/bin",
    "/gnu/store",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/opt",
    "/sbin",
    "/usr",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/crypto-policies",
    "/etc/fonts",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hostname",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/locale.alias",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/terminfo",
    "/etc/timezone",
    "/var/lib/ca-certificates",
    // Other mechanisms protect the memory and environment of other processes.
    "/proc",
    "/sys/devices/system",
    "/sys/fs/cgroup",
    "/sys/kernel/mm",
];
/// Package caches below the broker's home.
const CACHES: &[&str] =
    &[".npm", ".cache/uv", ".local/share/uv", ".local/share/pnpm", ".bun/install", ".deno"];
const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// Names of program folders. The folder above them holds the files that the programs need.
const PROGRAM_FOLDERS: [&str; 2] = ["bin", "sbin"];
const BESIDE_PROGRAMS: [&str; 4] = ["lib", "lib64", "libexec", "pyvenv.cfg"];
const NODE_MODULES: &str = "node_modules";

#[derive(Debug)]
pub(super) struct SystemPaths {
    pub(super) read: Vec<PathBuf>,
    pub(super) devices: Vec<PathBuf>,
}

impl SystemPaths {
    /// Returns the existing paths, without links.
    pub(super) fn find() -> Self {
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let caches = CACHES.iter().filter(|_| home.is_absolute()).map(|name| home.join(name));
        let existing = |paths: &mut dyn Iterator<Item = PathBuf>| -> Vec<PathBuf> {
            let canonical: BTreeSet<PathBuf> =
                paths.filter_map(|path| path.canonicalize().ok()).collect();
            canonical.into_iter().collect()
        };
        Self {
            read: existing(&mut READ.iter().map(PathBuf::from).chain(caches)),
            devices: existing(&mut DEVICES.iter().map(PathBuf::from)),
        }
    }

    /// Returns a program, the folders in which it finds others, and the files next to those
    /// folders.
    pub(super) fn of_program(&self, program: &Path, path: &[PathBuf]) -> Vec<PathBuf> {
        let mut found = BTreeSet::new();
        for step in links_of(program) {
            if let Some(packages) = packages_of(&step) {
                found.insert(packages.to_owned());
            }
            add_program_folder(step.parent(), &mut found);
            found.insert(step);
        }
        for folder in path.iter().filter(|folder| folder.is_absolute() && folder.is_dir()) {
            found.insert(folder.clone());
            add_program_folder(Some(folder), &mut found);
        }
        let canonical: BTreeSet<PathBuf> =
            found.into_iter().filter_map(|path| path.canonicalize().ok()).collect();
        canonical
            .into_iter()
            .filter(|path| !self.read.iter().any(|known| path.starts_with(known)))
            .collect()
    }
}

fn add_program_folder(folder: Option<&Path>, found: &mut BTreeSet<PathBuf>) {
    let Some(folder) = folder.filter(|folder| {
        folder.file_name().is_some_and(|name| PROGRAM_FOLDERS.iter().any(|known| name == *known))
    }) else {
        return;
    };
    found.insert(folder.to_owned());
    if let Some(prefix) = folder.parent().filter(|prefix| prefix.parent().is_some()) {
        found.extend(
            BESIDE_PROGRAMS.iter().map(|name| prefix.join(name)).filter(|path| path.exists()),
        );
    }
}

/// Returns the file and the targets of its links, one by one.
fn links_of(program: &Path) -> Vec<PathBuf> {
    const LINKS_MAX: usize = 40;
    let mut steps = vec![program.to_owned()];
    while let Some(target) =
        steps.last().and_then(|step| Some(step.parent()?.join(fs::read_link(step).ok()?)))
    {
        if steps.len() == LINKS_MAX {
            break;
        }
        // Folders may be links too, and `..` would follow them.
        let folder = target.parent().and_then(|folder| folder.canonicalize().ok());
        let Some((folder, name)) = folder.zip(target.file_name()) else { break };
        steps.push(folder.join(name));
    }
    steps
}

/// Returns the outermost package folder that contains the file.
fn packages_of(program: &Path) -> Option<&Path> {
    program
        .ancestors()
        .filter(|folder| folder.file_name().is_some_and(|name| name == NODE_MODULES))
        .last()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn touch(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn s03_a_virtual_environment_includes_its_linked_interpreter() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for path in [
            "python/bin/python3.11",
            "python/lib/os.py",
            "venv/lib/server.py",
            "venv/pyvenv.cfg",
            "venv/secret",
            "python/secret",
        ] {
            touch(&root.join(path));
        }
        fs::create_dir_all(root.join("venv/bin")).unwrap();
        symlink(root.join("python/bin/python3.11"), root.join("venv/bin/python3")).unwrap();
        symlink("python3", root.join("venv/bin/python")).unwrap();
        let paths = SystemPaths { read: vec![], devices: vec![] };
        let found = paths.of_program(&root.join("venv/bin/python"), &[]);
        let opens = |path: &str| found.iter().any(|rule| root.join(path).starts_with(rule));
        for path in
            ["python/bin/python3.11", "python/lib/os.py", "venv/lib/server.py", "venv/pyvenv.cfg"]
        {
            assert!(opens(path), "{path}: {found:?}");
        }
        assert!(!opens("venv/secret") && !opens("python/secret"), "{found:?}");
    }

    #[test]
    fn s03_a_package_includes_its_siblings_and_a_program_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for path in [
            "app/node_modules/a/dist/index.js",
            "app/node_modules/b/index.js",
            "app/.env",
            "tools/server",
            "tools/other",
        ] {
            touch(&root.join(path));
        }
        fs::create_dir_all(root.join("app/node_modules/.bin")).unwrap();
        symlink("../a/dist/index.js", root.join("app/node_modules/.bin/a")).unwrap();
        let paths = SystemPaths { read: vec![PathBuf::from("/usr")], devices: vec![] };
        let found = paths.of_program(
            &root.join("app/node_modules/.bin/a"),
            &[PathBuf::from("/usr/bin"), PathBuf::from("relative")],
        );
        assert!(
            found.contains(&root.join("app/node_modules"))
                && !found.iter().any(|rule| root.join("app/.env").starts_with(rule)),
            "{found:?}"
        );
        assert_eq!(paths.of_program(&root.join("tools/server"), &[]), [root.join("tools/server")]);
    }
}
