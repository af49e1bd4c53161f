//! Tools that are not listed, for hostile output and for children that take too much.
//!
//! - `say` writes lines of the test's own, and `drip` writes them a byte at a time.
//! - `repeat` writes without end.
//! - `last` leaves out the end of its line and exits.
//! - `sized` returns an answer of so many bytes.
//! - `mute` closes standard output and reads on.
//! - `state` returns the descriptors, environment and limits of this process.
//! - `hog`, `open` and `fork` take as much as their arguments name.
//! - `run` runs another program.

use std::{
    collections::BTreeMap, fs, io::Write, os::unix::process::CommandExt, process::Command,
    time::Duration,
};

use serde_json::{Value, json};

/// Returns the test's text with the ids of this call in it.
fn filled(text: &str, id: &Value, token: &Value) -> String {
    text.replace("@ID@", &id.to_string()).replace("@TOKEN@", &token.to_string())
}

fn write(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    let _gone = out.write_all(bytes).and_then(|()| out.flush());
}

/// Runs one of these tools. `None`: the tool is another. `Some(None)`: it has answered by itself.
pub(super) async fn call(
    name: &str,
    arguments: &Value,
    id: &Value,
    token: &Value,
) -> Option<Option<Value>> {
    let count = || arguments["count"].as_u64().unwrap_or(1);
    let result = match name {
        "say" => {
            for line in arguments["lines"].as_array().into_iter().flatten() {
                let line = filled(line.as_str().unwrap_or_default(), id, token) + "\n";
                write(line.as_bytes());
            }
            None
        }
        "repeat" => {
            let unit = arguments["text"].as_str().unwrap_or("x").repeat(1 << 10);
            for _ in 0..count() {
                write(unit.as_bytes());
            }
            None
        }
        "last" => {
            write(filled(arguments["text"].as_str().unwrap_or_default(), id, token).as_bytes());
            std::process::exit(0)
        }
        "sized" => {
            let with = |text: &str| {
                format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":"{text}"}}]}}}}"#
                )
            };
            let bytes = arguments["bytes"].as_u64().unwrap_or(0) as usize;
            tokio::time::sleep(Duration::from_millis(arguments["pause_ms"].as_u64().unwrap_or(0)))
                .await;
            write(
                format!("{}\n", with(&"x".repeat(bytes.saturating_sub(with("").len())))).as_bytes(),
            );
            None
        }
        "mute" => {
            // The process becomes another program, which reads everything and writes nothing.
            let _only_if_there_is_no_shell =
                Command::new("sh").args(["-c", "exec >&-; exec cat > /dev/null"]).exec();
            None
        }
        "drip" => {
            let line = filled(arguments["line"].as_str().unwrap_or_default(), id, token) + "\n";
            for drop in line
                .as_bytes()
                .chunks(arguments["bytes"].as_u64().map_or(1, |bytes| bytes as usize))
            {
                write(drop);
                tokio::time::sleep(Duration::from_millis(
                    arguments["pause_ms"].as_u64().unwrap_or(1),
                ))
                .await;
            }
            None
        }
        "stderr" => {
            let line = arguments["text"].as_str().unwrap_or_default().repeat(1 << 10);
            for _ in 0..count() {
                eprintln!("{line}");
            }
            Some(json!("said"))
        }
        "state" => Some(state()),
        "run" => Some(run(arguments)),
        "hog" => {
            let mut taken: Vec<u8> = Vec::new();
            let got =
                taken.try_reserve_exact(arguments["bytes"].as_u64().unwrap_or(0) as usize).is_ok();
            Some(json!(if got { "got" } else { "refused" }))
        }
        "open" => {
            let files: Vec<_> =
                (0..count()).map_while(|_| fs::File::open("/dev/null").ok()).collect();
            Some(json!(files.len()))
        }
        _ => return None,
    };
    Some(result.map(|result| json!({"content": [{"type": "text", "text": result.to_string()}]})))
}

/// Runs another program to its end; returns its status and its output.
fn run(arguments: &Value) -> Value {
    let command: Vec<&str> =
        arguments["command"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let Some((program, rest)) = command.split_first() else { return json!({"status": null}) };
    match Command::new(program).args(rest).stdin(std::process::Stdio::null()).output() {
        Ok(ended) => json!({
            "status": ended.status.code(),
            "out": String::from_utf8_lossy(&ended.stdout),
            "err": String::from_utf8_lossy(&ended.stderr),
        }),
        Err(error) => json!({"status": null, "err": error.to_string()}),
    }
}

/// Returns the state of this process: descriptors, environment, limits, privileges, folder.
fn state() -> Value {
    let descriptors: BTreeMap<String, String> = fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let target = fs::read_link(entry.path()).ok()?;
            Some((entry.file_name().to_string_lossy().into_owned(), target.display().to_string()))
        })
        .collect();
    let limits: BTreeMap<String, String> = fs::read_to_string("/proc/self/limits")
        .unwrap_or_default()
        .lines()
        .filter_map(|line| {
            Some((
                line.get(..25)?.trim().to_owned(),
                line.get(25..)?.split_whitespace().next()?.to_owned(),
            ))
        })
        .collect();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let no_new_privs = status
        .lines()
        .find_map(|line| line.strip_prefix("NoNewPrivs:"))
        .unwrap_or_default()
        .trim()
        .to_owned();
    let shell = Command::new("true").status().is_ok();
    json!({
        "descriptors": descriptors, "limits": limits, "no_new_privs": no_new_privs, "can_start_processes": shell,
        "environment": std::env::vars().collect::<BTreeMap<_, _>>(),
        "arguments": std::env::args().collect::<Vec<_>>(),
        "folder": std::env::current_dir().map(|folder| folder.display().to_string()).unwrap_or_default(),
    })
}
