//! Where the program of a stdio backend comes from: its file and the package that a runner starts.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use aws_lc_rs::digest;
use rules::pins::{PinDefinition, PinMode};

use super::pins::{PinKeeper, PinScope};
use crate::config::spec::TransportSpec;

/// Programs that fetch the package that they start.
const RUNNERS: [&str; 7] = ["npx", "bunx", "pnpx", "uvx", "uv", "pipx", "deno"];
/// Arguments of a runner's command line before the package.
const SUBCOMMANDS: [&str; 4] = ["run", "tool", "exec", "dlx"];

/// Pins the program of a stdio backend, as it is started now. Does nothing for other backends.
pub async fn record_command(pins: &PinKeeper, transport: &TransportSpec) {
    let TransportSpec::Stdio { command, args, cwd, .. } = transport else { return };
    if pins.mode == PinMode::Off {
        return;
    }
    let (named, folder) = (command.clone(), cwd.clone());
    let found = tokio::task::spawn_blocking(move || {
        let path = resolve(&named, folder.as_deref())?;
        let sha256 = digest_of(&path).ok()?;
        Some((path, sha256))
    });
    let Ok(Some((path, sha256))) = found.await else {
        tracing::warn!(tenant = %pins.tenant, backend = %pins.backend, command, "the broker cannot read the program of a backend and does not pin it");
        return;
    };
    let package = package(command, args);
    let path = path.display().to_string();
    let definition = PinDefinition::of_command(command, &path, &sha256, package);
    pins.record(vec![definition], PinScope::Single).await;
}

/// Returns the file of a command, as the operating system finds it.
fn resolve(command: &str, folder: Option<&str>) -> Option<PathBuf> {
    let found = if command.contains('/') {
        folder.map_or_else(PathBuf::new, PathBuf::from).join(command)
    } else {
        let paths = std::env::var_os("PATH")?;
        std::env::split_paths(&paths)
            .map(|folder| folder.join(command))
            .find(|path| path.is_file())?
    };
    found.canonicalize().ok()
}

fn digest_of(path: &Path) -> std::io::Result<String> {
    let (mut file, mut buffer) = (File::open(path)?, vec![0; 64 * 1024]);
    let mut hash = digest::Context::new(&digest::SHA256);
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => hash.update(&buffer[..read]),
        }
    }
    Ok(hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the package that a runner starts.
fn package<'a>(command: &str, args: &'a [String]) -> Option<&'a str> {
    let name = command.rsplit('/').next().unwrap_or(command);
    if !RUNNERS.contains(&name) {
        return None;
    }
    let mut args = args.iter().map(String::as_str).peekable();
    while let Some(arg) = args.next() {
        match arg {
            "-p" | "--package" | "--from" => return args.next(),
            _ if arg.starts_with("--package=") || arg.starts_with("--from=") => {
                return arg.split_once('=').map(|(_, package)| package);
            }
            _ if arg.starts_with('-') || SUBCOMMANDS.contains(&arg) => {}
            _ => return Some(arg),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_of_a_runner_is_found() {
        for (line, expected) in [
            ("npx -y @scope/server@1.2.3 /srv", Some("@scope/server@1.2.3")),
            ("/usr/bin/npx --yes --package=a@1 b", Some("a@1")),
            ("npx -p a@1 b", Some("a@1")),
            ("uvx --from git+https://a.example/x b", Some("git+https://a.example/x")),
            ("uvx server==1.0", Some("server==1.0")),
            ("pipx run server", Some("server")),
            ("npx -y", None),
            ("node server.js", None),
        ] {
            let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(package(&arguments[0], &arguments[1..]), expected, "{line}");
        }
    }

    #[test]
    fn a_program_is_found_and_hashed() {
        let path = resolve("sh", None).unwrap();
        assert!(path.is_absolute() && path.is_file());
        assert_eq!(resolve(path.to_str().unwrap(), None), Some(path.clone()));
        assert_eq!(resolve("no-such-program-of-this-test", None), None);
        assert_eq!(digest_of(&path).unwrap().len(), 64);
        let empty = std::env::temp_dir().join(format!("empty-{}", std::process::id()));
        std::fs::write(&empty, b"").unwrap();
        let hash = digest_of(&empty).unwrap();
        std::fs::remove_file(&empty).unwrap();
        assert_eq!(hash, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
