//! Reads the values of [`super::raw_config`] by their keys, with the defaults of absent keys. Used
//! by [`super::validation`] and by the files that read sections of their own.
//!
//! Invariants: every fault is collected, and no fault stops the reading. A refused value is
//! replaced by its default for further checks only, as a configuration with faults is never
//! returned.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde_json::Value;
use transport::egress::Cidr;

use super::{
    Secret,
    config_key::{KeyDefault, KeyKind, SECRET_BYTES_MAX, is_secret},
    field_error::{FieldError, InvalidReason, describe, element, invalid_value},
    raw_config::RawConfig,
    units::{parse_duration, parse_size},
};

pub(super) struct ConfigReader<'r> {
    pub(super) raw: &'r RawConfig,
    pub(super) faults: Vec<FieldError>,
}

impl ConfigReader<'_> {
    /// Reads a secret from a text or a file, but not both.
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
            self.report(file_path, &format!("is set together with {path}"), "one of the two");
        }
        inline.or(file)
    }

    pub(super) fn report(&mut self, path: &str, wrong: &str, allowed: &str) {
        self.faults.push(FieldError::new(self.raw.source_name(path), wrong, allowed));
    }

    /// Adds a fault and returns `None` instead of a value.
    pub(super) fn report_none<T>(&mut self, path: &str, wrong: &str, allowed: &str) -> Option<T> {
        self.report(path, wrong, allowed);
        None
    }

    /// Reads a key with a default.
    pub(super) fn value<T>(
        &mut self,
        path: &str,
        parse: impl Fn(&Value, KeyKind) -> Result<T, InvalidReason>,
    ) -> T {
        self.optional(path, &parse).unwrap_or_else(|| self.default(path, parse))
    }

    /// Returns the default of an absent key.
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

    /// Reads a key that was written. Adds a fault when the value is refused.
    pub(super) fn optional<T>(
        &mut self,
        path: &str,
        parse: impl Fn(&Value, KeyKind) -> Result<T, InvalidReason>,
    ) -> Option<T> {
        let key = self.raw.key(path);
        let parsed = parse(self.raw.value(path)?, key.kind);
        parsed.map_err(|wrong| self.report(path, &wrong, &key.kind.allowed())).ok()
    }

    pub(super) fn address(&mut self, path: &str) -> SocketAddr {
        self.value(path, address)
    }

    pub(super) fn bool(&mut self, path: &str) -> bool {
        self.value(path, |value, _| value.as_bool().ok_or_else(|| invalid_value(value)))
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

    /// Reads a list of texts. Adds a fault for each refused entry.
    pub(super) fn list<T>(&mut self, path: &str, parse: fn(&str) -> Option<T>) -> Vec<T> {
        let entries = self
            .value(path, |value, _| value.as_array().cloned().ok_or_else(|| invalid_value(value)));
        let allowed = self.raw.key(path).kind.entry_allowed();
        self.entries(path, &entries, &allowed, |entry| {
            text(entry).and_then(parse).ok_or_else(|| invalid_value(entry))
        })
    }

    /// Reads the entries of a list. Adds a fault for each refused entry, and leaves it out.
    pub(super) fn entries<T>(
        &mut self,
        path: &str,
        entries: &[Value],
        allowed: &str,
        read: impl Fn(&Value) -> Result<T, InvalidReason>,
    ) -> Vec<T> {
        let mut taken = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            match read(entry) {
                Ok(entry) => taken.push(entry),
                Err(wrong) => self.report(&element(path, at), &wrong, allowed),
            }
        }
        taken
    }

    pub(super) fn networks(&mut self, path: &str) -> Vec<Cidr> {
        self.list(path, |text| text.parse().ok())
    }
}

/// Returns a default as the value that the file would hold.
/// Returns a default as the value that a file would have.
pub(super) fn as_value(kind: KeyKind, text: &str) -> Value {
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
        Value::String(text) => parse_size(text).map_err(|_| invalid_value(value))?,
        // A plain number of bytes needs neither a unit nor quotes.
        value => value
            .as_u64()
            .and_then(|bytes| usize::try_from(bytes).ok())
            .ok_or_else(|| invalid_value(value))?,
    };
    if (min..=max).contains(&size) { Ok(size) } else { Err(invalid_value(value)) }
}

pub(super) fn address(value: &Value, _: KeyKind) -> Result<SocketAddr, InvalidReason> {
    text(value).and_then(|text| text.parse().ok()).ok_or_else(|| invalid_value(value))
}

pub(super) fn path(value: &Value, _: KeyKind) -> Result<PathBuf, InvalidReason> {
    text(value)
        .filter(|text| !text.is_empty() && !text.contains('\0'))
        .map(PathBuf::from)
        .ok_or_else(|| invalid_value(value))
}

pub(super) fn count(value: &Value, kind: KeyKind) -> Result<u32, InvalidReason> {
    let KeyKind::Count { min, max } = kind else {
        unreachable!("a count is read from a key of that kind")
    };
    let count = value.as_u64().filter(|count| (min..=max).contains(count));
    count.and_then(|count| u32::try_from(count).ok()).ok_or_else(|| invalid_value(value))
}

pub(super) fn duration(value: &Value, kind: KeyKind) -> Result<Duration, InvalidReason> {
    let KeyKind::Duration { min, max } = kind else {
        unreachable!("a duration is read from a key of that kind")
    };
    let duration = text(value).and_then(|text| parse_duration(text).ok());
    duration.filter(|duration| (min..=max).contains(duration)).ok_or_else(|| invalid_value(value))
}

pub(super) fn host(text: &str) -> Option<String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    let named = (1..=253).contains(&text.len())
        && text.bytes().all(allowed)
        && !text.starts_with(['.', '-']);
    named.then(|| text.to_ascii_lowercase())
}

pub(crate) fn read_secret_file(path: &str, bytes_min: usize) -> Result<Secret, InvalidReason> {
    use std::io::Read as _;
    let file = std::fs::File::open(path)
        .map_err(|error| format!("\"{path}\" cannot be read ({error})"))?;
    let mut content = String::new();
    // One byte over the limit shows that the file is too long. A device must not be read to its
    // end.
    let bytes_max = SECRET_BYTES_MAX as u64 + 3;
    file.take(bytes_max)
        .read_to_string(&mut content)
        .map_err(|error| format!("\"{path}\" cannot be read ({error})"))?;
    let secret = content.trim_end_matches(['\r', '\n']);
    secret_of(secret, bytes_min)
        .map_err(|wrong| format!("\"{path}\": the text of the file {wrong}"))
}

/// Checks a secret. The fault shows the length of a text that is too short, and nothing else of any
/// text.
pub(crate) fn secret_of(text: &str, bytes_min: usize) -> Result<Secret, InvalidReason> {
    match text.len() {
        length if length < bytes_min => Err(format!(
            "is too short for a secret: it has {length} bytes, and at least {bytes_min} are needed"
        )),
        _ if is_secret(text) => Ok(Secret::new(text)),
        _ => Err(
            "is not a usable secret: it is too long, or has characters other than visible ASCII"
                .to_owned(),
        ),
    }
}
