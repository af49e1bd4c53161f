//! Profiles of message sizes: named limits of the message size on each wire. `limits` selects the
//! profile for all. The bodies of tenants and backends may select others.
//!
//! Invariant: no profile permits more than `limits.message_bytes`, the limit of the listeners.

use std::collections::BTreeMap;

use protocol::ids::DEFAULT_TENANT;
use rules::client_transport::Transport;
use serde_json::Value;

use super::{
    Config,
    config_key::{KIB, MIB},
    config_reader::ConfigReader,
    field_error::{FieldError, describe},
    units::{format_size, parse_size},
};

/// Transport of a message. HTTP+SSE of 2024-11-05 counts as HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MessageWire {
    Http,
    WebSocket,
    Tcp,
    Quic,
    Stdio,
}

impl MessageWire {
    pub const ALL: [Self; 5] = [Self::Http, Self::WebSocket, Self::Tcp, Self::Quic, Self::Stdio];

    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::WebSocket => "websocket",
            Self::Tcp => "tcp",
            Self::Quic => "quic",
            Self::Stdio => "stdio",
        }
    }

    /// Returns the wire of a client's messages.
    pub fn of_client(transport: Transport) -> Self {
        match transport {
            Transport::Http | Transport::HttpSse => Self::Http,
            Transport::WebSocket => Self::WebSocket,
            Transport::Tcp => Self::Tcp,
            Transport::Quic => Self::Quic,
        }
    }
}

/// Profile with `limits.message_bytes` on every wire.
const STANDARD: &str = "standard";
/// Profiles that exist in every configuration: name, size on all wires, size on WebSockets.
const BUILT_IN: [(&str, Option<usize>, Option<usize>); 3] =
    [(STANDARD, None, None), ("1MB", Some(MIB), None), ("ws-64k", None, Some(64 * KIB))];
const DEFAULT: &str = "default";
const SIZE_MIN: usize = KIB;
const NAME_CHARS_MAX: usize = 64;
const PROFILES_MAX: usize = 100;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct MessageSizeProfile {
    all: Option<usize>,
    by_wire: BTreeMap<MessageWire, usize>,
}

/// All profiles, and the selected default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageSizes {
    max: usize,
    profiles: BTreeMap<String, MessageSizeProfile>,
    chosen: String,
}

impl MessageSizes {
    /// Returns the largest message on this wire for the profile `own`, or for the default without
    /// one. A profile that is no longer configured counts as the default.
    pub fn of(&self, own: Option<&str>, wire: MessageWire) -> usize {
        let profile =
            own.and_then(|own| self.profiles.get(own)).or_else(|| self.profiles.get(&self.chosen));
        let size = profile.and_then(|profile| profile.by_wire.get(&wire).copied().or(profile.all));
        size.unwrap_or(self.max).min(self.max)
    }

    fn knows(&self, name: &str) -> bool {
        self.profiles.contains_key(name)
    }

    fn names(&self) -> String {
        self.profiles.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// Checks that the profile of a tenant's or a backend's body exists.
    pub fn check(&self, own: Option<&str>) -> Result<(), FieldError> {
        match own {
            Some(name) if !self.knows(name) => Err(FieldError::new(
                "limits.message_profile",
                format!("is {name}, which is not a profile"),
                format!("one of {}", self.names()),
            )),
            _ => Ok(()),
        }
    }

    /// Returns the faults of tenants and backends of the file whose profile does not exist here.
    pub fn unknown_profiles(&self, config: &Config) -> Vec<FieldError> {
        let tenants = config
            .tenants
            .iter()
            .map(|(id, spec)| (format!("tenants.{id}"), &spec.limits.message_profile));
        let backends = config.backends.iter().map(|backend| {
            let path = if backend.tenant.as_str() == DEFAULT_TENANT {
                backend.backend.to_string()
            } else {
                format!("{}/{}", backend.tenant, backend.backend)
            };
            (format!("backends.{path}"), &backend.spec.limits.message_profile)
        });
        let fault = |(path, own): (String, &Option<String>)| {
            self.check(own.as_deref()).err().map(|fault| fault.nested_in(&path))
        };
        tenants.chain(backends).filter_map(fault).collect()
    }
}

impl ConfigReader<'_> {
    /// Reads the profiles. No message is larger than `max` bytes.
    pub(super) fn message_sizes(&mut self, max: usize) -> MessageSizes {
        let own = self.value("limits.message_profiles", |value, _| profiles(value, max));
        let mut profiles: BTreeMap<String, MessageSizeProfile> = BUILT_IN
            .into_iter()
            .map(|(name, all, websocket)| {
                let by_wire =
                    websocket.map(|bytes| (MessageWire::WebSocket, bytes)).into_iter().collect();
                (name.to_owned(), MessageSizeProfile { all, by_wire })
            })
            .collect();
        profiles.extend(own);
        let chosen = self.value("limits.message_profile", |value, _| {
            value.as_str().map(str::to_owned).ok_or_else(|| format!("is {}", describe(value)))
        });
        let sizes = MessageSizes { max, profiles, chosen };
        if !sizes.knows(&sizes.chosen) {
            self.report(
                "limits.message_profile",
                "is not a profile",
                &format!("one of {}", sizes.names()),
            );
        }
        sizes
    }

    /// Checks the profiles that tenants and backends of the file have selected.
    pub(super) fn profiles(&mut self, config: &Config) {
        self.faults.extend(config.limits.message_sizes.unknown_profiles(config));
    }
}

fn profiles(value: &Value, max: usize) -> Result<BTreeMap<String, MessageSizeProfile>, String> {
    let entries = value.as_object().ok_or_else(|| format!("is {}", describe(value)))?;
    if entries.len() > PROFILES_MAX {
        return Err(format!("has more than {PROFILES_MAX} entries"));
    }
    entries.iter().map(|(name, value)| Ok((name.clone(), profile(name, value, max)?))).collect()
}

fn profile(name: &str, value: &Value, max: usize) -> Result<MessageSizeProfile, String> {
    if BUILT_IN.iter().any(|(known, ..)| *known == name) {
        return Err(format!("names {name:?}, which is a built-in profile"));
    }
    if !is_profile_name(name) {
        return Err(format!("names {name:?}, which is not a name for a profile"));
    }
    let sizes = value
        .as_object()
        .ok_or_else(|| format!("has a value for {name} that is {}", describe(value)))?;
    let mut profile = MessageSizeProfile::default();
    for (wire, value) in sizes {
        let size = value
            .as_str()
            .and_then(|text| parse_size(text).ok())
            .filter(|size| *size >= SIZE_MIN && *size <= max);
        let allowed = || {
            format!(
                "needs a size for {name}.{wire} from {} to limits.message_bytes, {}",
                format_size(SIZE_MIN),
                format_size(max)
            )
        };
        let size = size.ok_or_else(allowed)?;
        match MessageWire::ALL.into_iter().find(|known| known.name() == wire) {
            Some(wire) => drop(profile.by_wire.insert(wire, size)),
            None if wire == DEFAULT => profile.all = Some(size),
            None => {
                return Err(format!(
                    "has a size in {name} for {wire:?}, which is not a known wire"
                ));
            }
        }
    }
    Ok(profile)
}

/// Returns whether the text is a valid profile name, in any configuration.
pub(super) fn is_profile_name(name: &str) -> bool {
    let is_plain =
        |character: char| character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '-');
    !name.is_empty() && name.len() <= NAME_CHARS_MAX && name.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_from;

    fn sizes(limits: &str) -> MessageSizes {
        load_from(&format!("limits: {limits}"), []).unwrap().limits.message_sizes
    }

    #[test]
    fn a_profile_sets_the_message_size_of_each_wire() {
        let all = |sizes: &MessageSizes, own: Option<&str>| {
            MessageWire::ALL.map(|wire| sizes.of(own, wire) / KIB)
        };
        let usual = sizes("{}");
        assert_eq!(all(&usual, None), [16 * KIB; 5]);
        assert_eq!(all(&usual, Some("1MB")), [KIB; 5]);
        assert_eq!(all(&usual, Some("ws-64k")), [16 * KIB, 64, 16 * KIB, 16 * KIB, 16 * KIB]);
        assert_eq!(all(&usual, Some("gone")), [16 * KIB; 5]);
        let chosen = sizes(
            "{message_profile: small, message_profiles: {small: {default: 256KiB, quic: 8KiB, stdio: 1MiB}}}",
        );
        assert_eq!(all(&chosen, None), [256, 256, 256, 8, KIB]);
        assert_eq!(all(&chosen, Some("gone")), [256, 256, 256, 8, KIB], "no more than all have");
        assert_eq!(all(&chosen, Some(STANDARD)), [16 * KIB; 5]);
        assert_eq!(
            all(&sizes("{message_bytes: 512KiB}"), Some("1MB")),
            [512; 5],
            "never more than what listeners are made for"
        );
        assert_eq!(
            (
                MessageWire::of_client(Transport::HttpSse),
                MessageWire::of_client(Transport::WebSocket)
            ),
            (MessageWire::Http, MessageWire::WebSocket)
        );
    }

    #[test]
    fn faults_contain_the_allowed_values() {
        for (limits, expected) in [
            (
                "{message_profile: tiny}",
                "limits.message_profile: is not a profile; allowed: one of 1MB, standard, ws-64k",
            ),
            (
                "{message_profiles: {a: {default: 17MiB}}}",
                "needs a size for a.default from 1KiB to limits.message_bytes, 16MiB",
            ),
            ("{message_profiles: {a: {default: 1}}}", "needs a size for a.default"),
            ("{message_profiles: {a: {carrier: 1MiB}}}", "which is not a known wire"),
            ("{message_profiles: {1MB: {default: 2MiB}}}", "is a built-in profile"),
            ("{message_profiles: {'a b': {}}}", "not a name for a profile"),
            ("{message_profiles: [a]}", "limits.message_profiles: is a list"),
            ("{message_profiles: {a: 1}}", "has a value for a that is"),
            (
                "{}\ntenants: {acme: {limits: {message_profile: tiny}}}",
                "tenants.acme.limits.message_profile: is tiny, which is not a profile",
            ),
        ] {
            let faults = load_from(&format!("limits: {limits}"), []).unwrap_err().to_string();
            assert!(faults.contains(expected), "{limits}: {faults}");
        }
    }
}
