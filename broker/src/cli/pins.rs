//! Commands about pins: the definitions that backends show, and what operators approved of them.

use std::{collections::BTreeMap, io::Write as _, path::Path};

use http::Method;
use protocol::ids::BackendId;
use records::PinKind;
use rules::pins::LockFile;
use serde_json::{Value, json};

use super::{
    client::{AdminClient, ClientError, escape},
    common_args::{OutputOptions, TenantArg},
    input_files::read_file,
    key_args::PinCommand,
    output::{CommandOutput, escaped, render},
    table::{self, Column},
};

const PINS: &[Column] = &[
    ("backend", "backend"),
    ("kind", "kind"),
    ("name", "name"),
    ("state", "state"),
    ("held", "held"),
    ("findings", "rules"),
    ("decided by", "decided_by"),
];
const CHANGES: &[Column] =
    &[("member", "pointer"), ("before", "before"), ("after", "after"), ("text", "text")];
const FINDINGS: &[Column] =
    &[("rule", "rule"), ("severity", "severity"), ("member", "pointer"), ("excerpt", "excerpt")];
const DIFF: &[Column] = &[("kind", "kind"), ("name", "name"), ("state", "state"), ("hash", "hash")];

pub(super) async fn pins(
    client: &AdminClient,
    command: PinCommand,
) -> Result<CommandOutput, ClientError> {
    match command {
        PinCommand::List { backend, state, of, output } => {
            let wanted = |pin: &Value| state.as_deref().is_none_or(|state| pin["state"] == state);
            let pins: Vec<Value> =
                all_pins(client, &of, backend.as_ref()).await?.into_iter().filter(wanted).collect();
            let answer = json!({"pins": pins});
            Ok(render(&answer, &output, |answer| table::rows(&with_rules(answer), PINS)))
        }
        PinCommand::Diff { object, of, output } => {
            let (backend, kind, name) = named(&object)?;
            let path = format!("{}/{}/{}/diff", path(&of, &backend), kind.name(), escape(&name));
            let answer = client.request(Method::GET, &path, None).await?;
            Ok(render(&answer, &output, explained))
        }
        PinCommand::Approve { object, hash, all, backend, locked, of, output } => {
            let decisions = match (object, backend) {
                (Some(object), None) => {
                    let (backend, kind, name) = named(&object)?;
                    let hash = match hash {
                        Some(hash) => hash,
                        None => seen_hash(client, &of, &backend, kind, &name).await?,
                    };
                    let item = json!({"kind": kind.name(), "name": name, "hash": hash});
                    vec![(backend, json!({"items": [item]}))]
                }
                (None, Some(backend)) if all => vec![(backend, json!({"all": true}))],
                (None, backend) => match locked {
                    Some(file) => {
                        let mut lock = read_lock_of(&file, &of)?;
                        check_has(&lock, &file, backend.as_ref())?;
                        keep_backend(&mut lock, backend.as_ref());
                        let decisions = locked_items(&lock)?;
                        check_locked(client, &of, &lock, &decisions).await?;
                        decisions
                    }
                    None => return Err(ClientError::Usage(WHAT_TO_APPROVE.to_owned())),
                },
                (Some(_), Some(_)) => return Err(ClientError::Usage(WHAT_TO_APPROVE.to_owned())),
            };
            decide(client, &of, "approve", decisions, &output).await
        }
        PinCommand::Block { object, of, output } => {
            let (backend, kind, name) = named(&object)?;
            let item = json!({"kind": kind.name(), "name": name});
            decide(client, &of, "block", vec![(backend, json!({"items": [item]}))], &output).await
        }
        PinCommand::Export { backend, of } => {
            let pins = all_pins(client, &of, backend.as_ref()).await?;
            let text = escaped(&lock_of(&of, &pins, accepted).to_text());
            Ok(CommandOutput { out: text, note: String::new() })
        }
        PinCommand::Verify { file, backend, of } => {
            let mut locked = read_lock_of(&file, &of)?;
            keep_backend(&mut locked, backend.as_ref());
            let pins = all_pins(client, &of, backend.as_ref()).await?;
            verified(&locked, &lock_of(&of, &pins, seen))
        }
    }
}

const WHAT_TO_APPROVE: &str =
    "give BACKEND/KIND/NAME, or --all with --backend, or --locked with a lock file";

/// Returns what the backends show now, compared with a lock file.
fn verified(locked: &LockFile, now: &LockFile) -> Result<CommandOutput, ClientError> {
    let differences = locked.differences(now);
    if differences.is_empty() {
        let count: usize =
            locked.backends.values().flat_map(|kinds| kinds.values().map(BTreeMap::len)).sum();
        return Ok(CommandOutput {
            out: format!("ok: {count} definitions\n"),
            note: String::new(),
        });
    }
    let mut lines = String::new();
    for difference in &differences {
        lines += &format!("{}: {}\n", table::clean(&difference.object), difference.problem);
    }
    let _closed = std::io::stdout().lock().write_all(lines.as_bytes());
    let detail = format!("{} definitions differ from the lock file", differences.len());
    Err(ClientError::refused(detail))
}

async fn decide(
    client: &AdminClient,
    of: &TenantArg,
    verb: &str,
    decisions: Vec<(BackendId, Value)>,
    output: &OutputOptions,
) -> Result<CommandOutput, ClientError> {
    let mut pins = Vec::new();
    for (at, (backend, body)) in decisions.iter().enumerate() {
        let path = format!("{}/{verb}", path(of, backend));
        let answer = client.request(Method::POST, &path, Some(body)).await;
        let answer = answer.map_err(|cause| partial(cause, &decisions, at))?;
        pins.extend(of_backend(answer, backend));
    }
    let answer = json!({"pins": pins});
    Ok(render(&answer, output, |answer| table::rows(&with_rules(answer), PINS)))
}

/// Adds to the error of one backend of several what was approved at the others.
fn partial(cause: ClientError, decisions: &[(BackendId, Value)], at: usize) -> ClientError {
    let names = |decisions: &[(BackendId, Value)]| {
        let names: Vec<&str> = decisions.iter().map(|(backend, _)| backend.as_str()).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    if decisions.len() < 2 {
        return cause;
    }
    let (before, failed, after) =
        (names(&decisions[..at]), &decisions[at].0, names(&decisions[at + 1..]));
    let done = format!("approved: {before}; failed: {failed}; not tried: {after}");
    ClientError::Partial { cause: Box::new(cause), done }
}

/// Refuses a lock file before anything of it is approved, unless each of its definitions is the one
/// that was seen last.
async fn check_locked(
    client: &AdminClient,
    of: &TenantArg,
    lock: &LockFile,
    decisions: &[(BackendId, Value)],
) -> Result<(), ClientError> {
    let mut pins = Vec::new();
    for (backend, _) in decisions {
        pins.extend(all_pins(client, of, Some(backend)).await?);
    }
    let unmatched = lock.unmatched(&lock_of(of, &pins, |pin| pin["hash"].as_str()));
    if unmatched.is_empty() {
        return Ok(());
    }
    let title = "nothing is approved, because the lock file differs from what the backends show:";
    let lines = unmatched.iter().map(|one| format!("{}: {}", one.object, one.problem));
    Err(ClientError::Refused([title.to_owned()].into_iter().chain(lines).collect()))
}

/// Returns the pins of one backend, or of all backends of the tenant.
async fn all_pins(
    client: &AdminClient,
    of: &TenantArg,
    backend: Option<&BackendId>,
) -> Result<Vec<Value>, ClientError> {
    let backends = match backend {
        Some(backend) => vec![backend.clone()],
        None => {
            let path = format!("tenants/{}/backends", of.tenant);
            let answer = client.request(Method::GET, &path, None).await?;
            let names = answer["backends"].as_array().into_iter().flatten();
            names.filter_map(|one| BackendId::parse(one["backend"].as_str()?).ok()).collect()
        }
    };
    let mut pins = Vec::new();
    for backend in backends {
        let answer = client.request(Method::GET, &path(of, &backend), None).await?;
        pins.extend(of_backend(answer, &backend));
    }
    Ok(pins)
}

/// Returns the pins of an answer, each with its backend.
fn of_backend(mut answer: Value, backend: &BackendId) -> Vec<Value> {
    let Value::Array(mut pins) = answer["pins"].take() else { return Vec::new() };
    pins.iter_mut().for_each(|pin| pin["backend"] = backend.as_str().into());
    pins
}

/// Returns the pins of an answer, each with the rules of its findings.
fn with_rules(answer: &Value) -> Value {
    let mut pins = answer["pins"].clone();
    for pin in pins.as_array_mut().into_iter().flatten() {
        let findings = pin["findings"].as_array().into_iter().flatten();
        pin["rules"] = findings.map(|finding| finding["rule"].clone()).collect();
    }
    pins
}

async fn seen_hash(
    client: &AdminClient,
    of: &TenantArg,
    backend: &BackendId,
    kind: PinKind,
    name: &str,
) -> Result<String, ClientError> {
    let path = format!("{}/{}/{}/diff", path(of, backend), kind.name(), escape(name));
    let answer = client.request(Method::GET, &path, None).await?;
    Ok(answer["hash"].as_str().unwrap_or_default().to_owned())
}

/// Returns a difference for people: the members, then the findings.
fn explained(answer: &Value) -> String {
    let mut text = table::facts(answer, DIFF);
    for change in answer["changes"].as_array().into_iter().flatten() {
        text += "\n";
        text += &table::facts(change, CHANGES);
    }
    if answer["changes"].as_array().is_some_and(Vec::is_empty) {
        text += "no difference from the accepted definition\n";
    }
    if answer["findings"].as_array().is_some_and(|findings| !findings.is_empty()) {
        text += "\n";
        text += &table::rows(&answer["findings"], FINDINGS);
    }
    text
}

fn path(of: &TenantArg, backend: &BackendId) -> String {
    format!("tenants/{}/backends/{backend}/pins", of.tenant)
}

/// Splits `BACKEND/NAME` of a tool, or `BACKEND/KIND/NAME`.
fn named(object: &str) -> Result<(BackendId, PinKind, String), ClientError> {
    let usage = || {
        let kinds = PinKind::ALL.map(PinKind::name).join(", ");
        ClientError::Usage(format!(
            "{object} is not BACKEND/KIND/NAME, or BACKEND/NAME of a tool; kinds: {kinds}"
        ))
    };
    let (backend, rest) = object.split_once('/').ok_or_else(usage)?;
    let backend = BackendId::parse(backend).map_err(|_| usage())?;
    if let Some((kind, name)) = rest.split_once('/')
        && let Some(kind) = PinKind::parse(kind)
    {
        return Ok((backend, kind, name.to_owned()));
    }
    match PinKind::parse(rest) {
        Some(kind @ (PinKind::Instructions | PinKind::Command)) => {
            Ok((backend, kind, kind.name().to_owned()))
        }
        _ => Ok((backend, PinKind::Tool, rest.to_owned())),
    }
}

/// Returns the hash of a pin that a lock file holds: what an operator approved last, or else the
/// first definition.
fn accepted(pin: &Value) -> Option<&str> {
    let approved = pin["approved"].as_array().and_then(|approved| approved.first());
    let is_out = pin["state"] == "blocked" || pin["state"] == "gone";
    approved.unwrap_or(&pin["first"]).as_str().filter(|_| !is_out)
}

/// Returns the hash that a backend shows now.
fn seen(pin: &Value) -> Option<&str> {
    pin["hash"].as_str().filter(|_| pin["state"] != "gone" && pin["state"] != "blocked")
}

fn lock_of(of: &TenantArg, pins: &[Value], hash: fn(&Value) -> Option<&str>) -> LockFile {
    let mut lock = LockFile::new(of.tenant.as_str());
    for pin in pins {
        let text = |member: &str| pin[member].as_str().unwrap_or_default();
        if let (Some(kind), Some(hash)) = (PinKind::parse(text("kind")), hash(pin)) {
            lock.add(text("backend"), kind, text("name"), hash);
        }
    }
    lock
}

/// Returns one approval for each backend of a lock file.
fn locked_items(lock: &LockFile) -> Result<Vec<(BackendId, Value)>, ClientError> {
    let mut decisions = Vec::new();
    for (backend, kinds) in &lock.backends {
        let name = BackendId::parse(backend)
            .map_err(|error| ClientError::Usage(format!("backends.{backend}: {error}")))?;
        let items = kinds.iter().flat_map(|(kind, names)| {
            names.iter().map(move |(name, hash)| json!({"kind": kind, "name": name, "hash": hash}))
        });
        decisions.push((name, json!({"items": items.collect::<Vec<_>>()})));
    }
    Ok(decisions)
}

/// Reads the lock file of a tenant. Refuses one of another tenant.
fn read_lock_of(file: &Path, of: &TenantArg) -> Result<LockFile, ClientError> {
    let lock = read_lock(file)?;
    if lock.tenant == of.tenant.as_str() {
        return Ok(lock);
    }
    let (file, tenant) = (file.display(), &lock.tenant);
    Err(ClientError::refused(format!("{file} is a lock file of another tenant: {tenant}")))
}

/// Refuses a backend that a lock file does not have. Without a backend, the whole file is meant.
fn check_has(lock: &LockFile, file: &Path, only: Option<&BackendId>) -> Result<(), ClientError> {
    let absent = only.filter(|only| !lock.backends.contains_key(only.as_str()));
    let Some(absent) = absent else { return Ok(()) };
    let names: Vec<&str> = lock.backends.keys().map(String::as_str).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let file = file.display();
    Err(ClientError::Usage(format!("{file} does not have the backend {absent}; it has: {names}")))
}

/// Keeps only the part of a lock file about one backend, if one is named.
fn keep_backend(lock: &mut LockFile, only: Option<&BackendId>) {
    lock.backends.retain(|name, _| only.is_none_or(|only| only.as_str() == name));
}

/// Reads a lock file. An error names every fault with its path.
pub(super) fn read_lock(file: &Path) -> Result<LockFile, ClientError> {
    LockFile::parse(&read_file(file)?).map_err(|faults| {
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        ClientError::Usage(format!("{}: {}", file.display(), faults.join("; ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_named_by_backend_kind_and_name() {
        for (object, expected) in [
            ("files/read_file", ("files", PinKind::Tool, "read_file")),
            ("files/tool/a/b", ("files", PinKind::Tool, "a/b")),
            ("files/resource/file:///a/b", ("files", PinKind::Resource, "file:///a/b")),
            ("files/instructions", ("files", PinKind::Instructions, "instructions")),
            ("files/command", ("files", PinKind::Command, "command")),
            ("files/thing/x", ("files", PinKind::Tool, "thing/x")),
        ] {
            let (backend, kind, name) = named(object).unwrap();
            assert_eq!((backend.as_str(), kind, name.as_str()), expected, "{object}");
        }
        assert!(named("files").is_err() && named("Not_A_Name/x").is_err());
    }

    #[test]
    fn a_lock_file_contains_the_accepted_definitions() {
        let of = TenantArg { tenant: protocol::ids::TenantId::parse("acme").unwrap() };
        let hash = |number: u8| format!("v1:{number:064x}");
        let pin = |name: &str, state: &str, approved: &[u8]| {
            let approved: Vec<String> = approved.iter().copied().map(hash).collect();
            json!({"backend": "b", "kind": "tool", "name": name, "state": state, "hash": hash(9), "first": hash(0), "approved": approved})
        };
        let pins = [
            pin("new", "pending", &[]),
            pin("old", "changed", &[2, 1]),
            pin("out", "blocked", &[1]),
            pin("gone", "gone", &[1]),
        ];
        let lock = lock_of(&of, &pins, accepted);
        let tools = &lock.backends["b"]["tool"];
        assert_eq!(
            tools.iter().map(|(name, hash)| (name.as_str(), hash.clone())).collect::<Vec<_>>(),
            [("new", hash(0)), ("old", hash(2)),]
        );
        assert_eq!(lock.differences(&lock_of(&of, &pins, seen)).len(), 2);
    }

    #[test]
    fn a_lock_file_of_another_tenant_or_without_the_backend_is_refused() {
        let of = |name: &str| TenantArg { tenant: protocol::ids::TenantId::parse(name).unwrap() };
        let backend = |name: &str| BackendId::parse(name).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mcp-broker.lock");
        let (mut lock, hash) = (LockFile::new("acme"), format!("v1:{:064x}", 1));
        for name in ["files", "mail"] {
            lock.add(name, PinKind::Tool, "read", &hash);
        }
        std::fs::write(&file, lock.to_text()).unwrap();
        let other = read_lock_of(&file, &of("other")).unwrap_err();
        assert!(matches!(other, ClientError::Refused(_)), "{other:?}");
        assert!(other.to_string().ends_with(" is a lock file of another tenant: acme"), "{other}");
        let mut lock = read_lock_of(&file, &of("acme")).unwrap();
        check_has(&lock, &file, None).unwrap();
        check_has(&lock, &file, Some(&backend("mail"))).unwrap();
        let absent = check_has(&lock, &file, Some(&backend("ghost"))).unwrap_err();
        assert!(matches!(absent, ClientError::Usage(_)), "{absent:?}");
        let reason = " does not have the backend ghost; it has: files, mail";
        assert!(absent.to_string().ends_with(reason), "{absent}");
        keep_backend(&mut lock, Some(&backend("mail")));
        assert_eq!(lock.backends.into_keys().collect::<Vec<_>>(), ["mail"]);
    }
}
