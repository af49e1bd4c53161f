//! Values out of what was written ([`super::raw_config`]), each by its key: absent ones are the key's default. Used by
//! [`super::validation`] and by the files that read sections of their own.
//!
//! Invariants: every fault is collected, none ends the reading; a value that is refused is replaced by its default only
//! to go on looking, as a configuration with faults is never handed out.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde_json::Value;
use transport::egress::Cidr;

use super::{
    Secret,
    config_key::{KeyDefault, KeyKind, SECRET_BYTES_MAX, is_secret},
    field_error::{FieldError, describe},
    raw_config::RawConfig,
    units::{parse_duration, parse_size},
};

/// Why a value is not accepted; what is allowed comes from the table.
pub(super) type InvalidReason = String;

pub(super) struct ConfigReader<'r> {
    pub(super) raw: &'r RawConfig,
    pub(super) faults: Vec<FieldError>,
}

impl ConfigReader<'_> {
    /// A secret given as text or as a file, not both.
    pub(super) fn secret(&mut self, path: &str, file_path: &str) -> Option<Secret> {
        let inline = self.optional(path, |value, kind| match (text(value), kind) {
            (Some(text), KeyKind::Secret { bytes_min }) => secret_of(text, bytes_min),
            (_, _) => Err(format!("is {}", describe(value))),
        });
        let file = self.optional(file_path, |value, kind| match (text(value), kind) {
            (Some(path), KeyKind::SecretFile { bytes_min }) => read_secret_file(path, bytes_min),
            _ => Err(format!("is {}", describe(value))),
        });
        if self.raw.value(path).is_some() && self.raw.value(file_path).is_some() {
            self.fault(file_path, &format!("stands beside {path}"), "one of the two");
        }
        inline.or(file)
    }

    pub(super) fn fault(&mut self, path: &str, wrong: &str, allowed: &str) {
        self.faults.push(FieldError::new(self.raw.named(path), wrong, allowed));
    }

    /// The same, in the place of a value.
    pub(super) fn fault_in<T>(&mut self, path: &str, wrong: &str, allowed: &str) -> Option<T> {
        self.fault(path, wrong, allowed);
        None
    }

    /// The value of a key with a default.
    pub(super) fn value<T>(
        &mut self,
        path: &str,
        parse: impl Fn(&Value, KeyKind) -> Result<T, InvalidReason>,
    ) -> T {
        self.optional(path, &parse).unwrap_or_else(|| self.default(path, parse))
    }

    /// What an absent key means.
    pub(super) fn default<T>(
        &self,
        path: &str,
        parse: impl Fn(&Value, KeyKind) -> Result<T, InvalidReason>,
    ) -> T {
        let key = self.raw.key(path);
        let KeyDefault::Value(default) = key.default else {
            unreachable!("{path} is read as a key with a default")
        };
        parse(&as_value(key.kind, default), key.kind)
            .expect("defaults are valid, which a test checks")
    }

    /// The value of a key that was written; a fault when it is refused.
    pub(super) fn optional<T>(
        &mut self,
        path: &str,
        parse: impl Fn(&Value, KeyKind) -> Result<T, InvalidReason>,
    ) -> Option<T> {
        let key = self.raw.key(path);
        let parsed = parse(self.raw.value(path)?, key.kind);
        parsed.map_err(|wrong| self.fault(path, &wrong, &key.kind.allowed())).ok()
    }

    pub(super) fn address(&mut self, path: &str) -> SocketAddr {
        self.value(path, address)
    }

    pub(super) fn bool(&mut self, path: &str) -> bool {
        self.value(path, |value, _| value.as_bool().ok_or_else(|| wrong(value)))
    }

    pub(super) fn count(&mut self, path: &str) -> u32 {
        self.value(path, count)
    }

    pub(super) fn duration(&mut self, path: &str) -> Duration {
        self.value(path, duration)
    }

    pub(super) fn size(&mut self, path: &str) -> usize {
        self.value(path, size)
    }

    pub(super) fn list<T>(&mut self, path: &str, parse: fn(&str) -> Option<T>) -> Vec<T> {
        self.value(path, |value, _| {
            let entries = value.as_array().ok_or_else(|| wrong(value))?;
            entries
                .iter()
                .map(|entry| {
                    text(entry)
                        .and_then(parse)
                        .ok_or_else(|| format!("has an entry that {}", wrong(entry)))
                })
                .collect()
        })
    }

    pub(super) fn networks(&mut self, path: &str) -> Vec<Cidr> {
        self.list(path, |text| text.parse().ok())
    }
}

/// A default as it would come out of the file.
fn as_value(kind: KeyKind, text: &str) -> Value {
    if kind.is_text() {
        return Value::String(text.to_owned());
    }
    serde_json::from_str(text).expect("defaults are JSON too, which a test checks")
}

pub(super) fn text(value: &Value) -> Option<&str> {
    value.as_str()
}

pub(super) fn size(value: &Value, kind: KeyKind) -> Result<usize, InvalidReason> {
    let KeyKind::Size { min, max } = kind else { unreachable!("the key is read as a size") };
    let size = match value {
        Value::String(text) => parse_size(text).map_err(|_| wrong(value))?,
        // Plain bytes need no unit and no quotes.
        value => value
            .as_u64()
            .and_then(|bytes| usize::try_from(bytes).ok())
            .ok_or_else(|| wrong(value))?,
    };
    if (min..=max).contains(&size) { Ok(size) } else { Err(wrong(value)) }
}

/// Shows a value that is no secret.
pub(super) fn wrong(value: &Value) -> InvalidReason {
    const SHOWN_CHARS_MAX: usize = 60;
    match value {
        Value::String(text) if text.is_empty() => "is empty".to_owned(),
        Value::String(text) => {
            format!("is \"{}\"", text.chars().take(SHOWN_CHARS_MAX).collect::<String>())
        }
        Value::Number(number) => format!("is {number}"),
        Value::Bool(bool) => format!("is {bool}"),
        other => format!("is {}", describe(other)),
    }
}

pub(super) fn address(value: &Value, _: KeyKind) -> Result<SocketAddr, InvalidReason> {
    text(value).and_then(|text| text.parse().ok()).ok_or_else(|| wrong(value))
}

pub(super) fn path(value: &Value, _: KeyKind) -> Result<PathBuf, InvalidReason> {
    text(value)
        .filter(|text| !text.is_empty() && !text.contains('\0'))
        .map(PathBuf::from)
        .ok_or_else(|| wrong(value))
}

pub(super) fn count(value: &Value, kind: KeyKind) -> Result<u32, InvalidReason> {
    let KeyKind::Count { min, max } = kind else {
        unreachable!("a count is read from a key of that kind")
    };
    let count = value.as_u64().filter(|count| (min..=max).contains(count));
    count.and_then(|count| u32::try_from(count).ok()).ok_or_else(|| wrong(value))
}

pub(super) fn duration(value: &Value, kind: KeyKind) -> Result<Duration, InvalidReason> {
    let KeyKind::Duration { min, max } = kind else {
        unreachable!("a duration is read from a key of that kind")
    };
    let duration = text(value).and_then(|text| parse_duration(text).ok());
    duration.filter(|duration| (min..=max).contains(duration)).ok_or_else(|| wrong(value))
}

pub(super) fn host(text: &str) -> Option<String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    let named = (1..=253).contains(&text.len())
        && text.bytes().all(allowed)
        && !text.starts_with(['.', '-']);
    named.then(|| text.to_ascii_lowercase())
}

pub(super) fn read_secret_file(path: &str, bytes_min: usize) -> Result<Secret, InvalidReason> {
    use std::io::Read as _;
    let file = std::fs::File::open(path)
        .map_err(|error| format!("\"{path}\" can not be read ({error})"))?;
    let mut content = String::new();
    // One byte over the limit tells that the file is too long; a device must not be read to its end.
    let bytes_max = SECRET_BYTES_MAX as u64 + 3;
    file.take(bytes_max)
        .read_to_string(&mut content)
        .map_err(|error| format!("\"{path}\" can not be read ({error})"))?;
    let secret = content.trim_end_matches(['\r', '\n']);
    secret_of(secret, bytes_min).map_err(|wrong| format!("\"{path}\": its text {wrong}"))
}

/// Says nothing of the text but its length, and that only of one that is too short to be kept.
fn secret_of(text: &str, bytes_min: usize) -> Result<Secret, InvalidReason> {
    match text.len() {
        length if length < bytes_min => Err(format!("is too short to be a secret, with {length} of at least {bytes_min} bytes")),
        _ if is_secret(text) => Ok(Secret::new(text)),
        _ => Err("is not a usable secret: it is too long, or holds other characters than visible ASCII ones".to_owned()),
    }
}
