//! Where the program of a stdio backend comes from: its file and the package that a runner starts.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use aws_lc_rs::digest;
use rules::pins::{PinDefinition, PinMode};
use transport::child_process::{self, ChildSpec};

use super::pins::{PinKeeper, PinScope};

/// Programs that fetch the package that they start.
const RUNNERS: [&str; 7] = ["npx", "bunx", "pnpx", "uvx", "uv", "pipx", "deno"];
/// Arguments of a runner's command line before the package.
const SUBCOMMANDS: [&str; 4] = ["run", "tool", "exec", "dlx"];

/// Pins the program of a child, as it is started now. `command` is the command of the backend.
pub async fn record_command(pins: &PinKeeper, command: &str, child: &ChildSpec) {
    if pins.mode == PinMode::Off {
        return;
    }
    let started = child.clone();
    let found = tokio::task::spawn_blocking(move || program_of(&started)).await;
    let Ok(Some((path, sha256))) = found else {
        tracing::warn!(tenant = %pins.tenant, backend = %pins.backend, command, "the broker cannot read the program of a backend and does not pin it");
        return;
    };
    let package = package(command, &child.args);
    let path = path.display().to_string();
    let definition = PinDefinition::of_command(command, &path, &sha256, package);
    pins.record(vec![definition], PinScope::Single).await;
}

/// Returns the file of the program that a child starts, without links, and its SHA-256.
fn program_of(child: &ChildSpec) -> Option<(PathBuf, String)> {
    let path = child_process::find_command(child).ok()?.canonicalize().ok()?;
    let sha256 = digest_of(&path).ok()?;
    Some((path, sha256))
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
    use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};

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
    fn the_pinned_program_is_the_one_that_the_child_starts() {
        const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let mut child = ChildSpec::new("sh");
        let (system, sha256) = program_of(&child).unwrap();
        assert!(system.is_absolute() && system.is_file() && sha256.len() == 64);
        let named = ChildSpec::new(system.to_str().unwrap());
        assert_eq!(program_of(&named), Some((system, sha256)));
        assert_eq!(program_of(&ChildSpec::new("no-such-program-of-this-test")), None);
        // The variable `PATH` of the child decides, and not that of the broker.
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("sh");
        std::fs::write(&program, b"").unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        child.env.insert("PATH".to_owned(), folder.path().display().to_string());
        let own = program.canonicalize().unwrap();
        assert_eq!(program_of(&child), Some((own, EMPTY.to_owned())));
        // A file that cannot be executed is not the program.
        std::fs::set_permissions(&program, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(program_of(&child), None);
    }
}
