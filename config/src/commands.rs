//! Commands that stdio backends may run, and the variables that may be set for each
//! (`stdio.commands`).
//!
//! A variable can select the program as a command can, in too many ways for a list of forbidden
//! names. Invariant: with `stdio.commands`, a variable is set only if the operator permitted it for
//! that command.

use serde_json::Value;

use super::{
    config_key::KeyKind,
    config_reader::{ConfigReader, text},
    field_error::{FieldError, InvalidReason, describe, invalid_value, join},
    transport_spec::TransportSpec,
};

const PATH: &str = "stdio.commands";
const COMMANDS_MAX: usize = 1_000;
const VARIABLES_MAX: usize = 256;

/// One entry of `stdio.commands`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedCommand {
    /// Command as written, or a folder that ends with `/`.
    command: String,
    /// Names of variables that may be set for it.
    env: Vec<String>,
}

impl AllowedCommand {
    /// Returns whether the entry permits this command. The command is equal to the entry, or a
    /// program directly in its folder.
    fn permits(&self, command: &str) -> bool {
        let listed = self.command.as_str();
        let in_folder =
            |name: &str| !name.is_empty() && !name.contains('/') && name != "." && name != "..";
        (listed == command && !listed.ends_with('/'))
            || (listed.ends_with('/') && command.strip_prefix(listed).is_some_and(in_folder))
    }

    fn read(value: &Value) -> Result<Self, InvalidReason> {
        let (command, env) = match value {
            Value::Object(members) => {
                if let Some(name) =
                    members.keys().find(|name| !["command", "env"].contains(&name.as_str()))
                {
                    return Err(format!("has the unknown member {name}"));
                }
                let command = members.get("command").ok_or_else(|| "has no command".to_owned())?;
                (command, members.get("env").filter(|env| !env.is_null()))
            }
            command => (command, None),
        };
        let is_command = |text: &&str| !text.trim().is_empty() && !text.contains('\0');
        let command =
            text(command).filter(is_command).ok_or_else(|| invalid_value(command))?.to_owned();
        let env = env.map_or(Ok(Vec::new()), variables)?;
        Ok(Self { command, env })
    }
}

fn variables(value: &Value) -> Result<Vec<String>, InvalidReason> {
    let names = value.as_array().filter(|names| names.len() <= VARIABLES_MAX);
    let names = names.ok_or_else(|| {
        format!(
            "names its variables in {}, not in a list of at most {VARIABLES_MAX}",
            describe(value)
        )
    })?;
    let is_name = |text: &&str| !text.is_empty() && !text.contains(['=', '\0']);
    let name = |value: &Value| text(value).filter(is_name).map(str::to_owned);
    names
        .iter()
        .map(|value| {
            name(value).ok_or_else(|| format!("names a variable that {}", invalid_value(value)))
        })
        .collect()
}

/// Checks that this backend's command and its variables are permitted.
pub(super) fn check(
    allowed: &[AllowedCommand],
    transport: &TransportSpec,
) -> Result<(), FieldError> {
    let TransportSpec::Stdio { command, env, .. } = transport else { return Ok(()) };
    let entries: Vec<&AllowedCommand> =
        allowed.iter().filter(|entry| entry.permits(command)).collect();
    if entries.is_empty() {
        return Err(FieldError::new(
            "transport.command",
            "is not in stdio.commands",
            "a command that stdio.commands lists",
        ));
    }
    let names: Vec<&str> =
        entries.iter().flat_map(|entry| &entry.env).map(String::as_str).collect();
    let Some(other) = env.keys().find(|name| !names.contains(&name.as_str())) else {
        return Ok(());
    };
    let allowed = match names.is_empty() {
        true => "no variables for this command".to_owned(),
        false => names.join(", "),
    };
    Err(FieldError::new(
        join("transport.env", other),
        "is not a variable that stdio.commands names for this command",
        allowed,
    ))
}

impl ConfigReader<'_> {
    pub(super) fn commands(&mut self) -> Option<Vec<AllowedCommand>> {
        let entries = self.optional(PATH, |value, _| {
            let entries = value.as_array().filter(|entries| entries.len() <= COMMANDS_MAX);
            entries.cloned().ok_or_else(|| invalid_value(value))
        })?;
        let allowed = KeyKind::Commands.entry_allowed();
        Some(self.entries(PATH, &entries, &allowed, AllowedCommand::read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StdioLimits, load_from};

    fn refused(yaml: &str, command: &str, env: &[&str]) -> Option<(String, String)> {
        let stdio = load_from(yaml, []).unwrap_or_else(|faults| panic!("{yaml}: {faults}")).stdio;
        let env = env.iter().map(|name| ((*name).to_owned(), "x".to_owned())).collect();
        let transport = TransportSpec::Stdio {
            command: command.into(),
            args: vec![],
            env,
            cwd: None,
            limits: StdioLimits::default(),
        };
        stdio.check(&transport).err().map(|fault| (fault.path.clone(), fault.to_string()))
    }

    #[test]
    fn a_34_only_listed_commands_are_run() {
        assert_eq!(refused("", "anything", &["LD_PRELOAD"]), None);
        assert!(refused("stdio: {commands: []}", "npx", &[]).is_some());
        let some = "stdio: {commands: [npx, /opt/mcp/, {command: /usr/bin/python3}]}";
        for command in ["npx", "/opt/mcp/files", "/usr/bin/python3"] {
            assert_eq!(refused(some, command, &[]), None, "{command}");
        }
        for command in [
            "sh",
            "./npx",
            "npx ",
            "NPX",
            "/usr/bin/npx",
            "npx;sh",
            "/opt/mcp/",
            "/opt/mcp/..",
            "/opt/mcp/../sh",
            "/opt/mcp/a/b",
            "/opt/mcp",
            "/usr/bin/python3.11",
            "/usr/bin/python3/../sh",
        ] {
            assert_eq!(refused(some, command, &[]).unwrap().0, "transport.command", "{command}");
        }
    }

    #[test]
    fn s04_variables_are_allowed_by_name_for_each_command() {
        let some = "stdio: {commands: [npx, {command: uvx, env: [LOG_LEVEL, TZ]}, {command: /opt/mcp/, env: [A]}, {command: /opt/mcp/b, env: [B]}]}";
        for (command, names) in [
            ("uvx", &["LOG_LEVEL"][..]),
            ("uvx", &["TZ", "LOG_LEVEL"]),
            ("/opt/mcp/a", &["A"]),
            ("/opt/mcp/b", &["A", "B"]),
        ] {
            assert_eq!(refused(some, command, names), None, "{command} {names:?}");
        }
        for name in [
            "LD_PRELOAD",
            "NODE_OPTIONS",
            "PYTHONPATH",
            "PYTHONWARNINGS",
            "BROWSER",
            "BASH_FUNC_x%%",
            "HOME",
            "NODE_EXTRA_CA_CERTS",
            "JAVA_TOOL_OPTIONS",
            "GIT_SSH_COMMAND",
            "log_level",
            "LOG_LEVEL2",
            "B",
        ] {
            for command in ["npx", "uvx", "/opt/mcp/a"] {
                assert_eq!(
                    refused(some, command, &[name]).unwrap().0,
                    format!("transport.env.{name}"),
                    "{command}"
                );
            }
        }
        let (_, fault) = refused(some, "uvx", &["HOME"]).unwrap();
        assert!(fault.ends_with("allowed: LOG_LEVEL, TZ"), "{fault}");
        let (_, fault) = refused(some, "npx", &["HOME"]).unwrap();
        assert!(fault.ends_with("allowed: no variables for this command"), "{fault}");
    }

    #[test]
    fn s04_entries_that_are_not_understood_are_faults() {
        for entry in [
            "{env: [A]}",
            "{command: ''}",
            "{command: npx, env: A}",
            "{command: npx, env: ['A=B']}",
            "{command: npx, vars: [A]}",
            "5",
        ] {
            let faults =
                load_from(&format!("stdio: {{commands: [{entry}]}}"), []).unwrap_err().to_string();
            assert!(faults.starts_with("stdio.commands[0]: "), "{entry}: {faults}");
        }
    }
}
