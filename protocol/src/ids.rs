//! Identifiers as types, so that a session cannot be passed where a tenant is meant.
//!
//! Names (`TenantId`, `BackendId`) are checked when they are made. They therefore always fit into a
//! URI scheme and never contain `__`. The other ids are opaque. A `RequestId` keeps the sender's
//! JSON text, because `1` and `"1"` are different ids and must be echoed as they came.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::json;

/// Longest tenant or backend name.
pub const NAME_CHARS_MAX: usize = 32;

/// A tenant or backend name outside the grammar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "name {name:?} is not allowed: 1 to 32 of a-z, 0-9 and '-', beginning and ending with a letter or digit"
)]
pub struct InvalidName {
    /// The refused name, shortened for the message.
    pub name: String,
}

macro_rules! id_basics {
    ($name:ident) => {
        impl $name {
            /// Returns the id's text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), &self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
    };
}

macro_rules! ids {
    (names { $($(#[$name_doc:meta])* $name:ident;)* } opaque { $($(#[$opaque_doc:meta])* $opaque:ident;)* }) => {
        $(
            $(#[$name_doc])*
            #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
            pub struct $name(Arc<str>);

            impl $name {
                /// Checks the text against `[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?`.
                pub fn parse(text: &str) -> Result<Self, InvalidName> {
                    check_name(text).map(|()| Self(text.into()))
                }
            }

            impl<'de> Deserialize<'de> for $name {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    let text = String::deserialize(deserializer)?;
                    Self::parse(&text).map_err(serde::de::Error::custom)
                }
            }

            id_basics!($name);
        )*
        $(
            $(#[$opaque_doc])*
            #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
            pub struct $opaque(Arc<str>);

            impl $opaque {
                /// Takes the text as it is.
                pub fn new(text: impl Into<Arc<str>>) -> Self {
                    Self(text.into())
                }
            }

            impl<'de> Deserialize<'de> for $opaque {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    String::deserialize(deserializer).map(Self::new)
                }
            }

            id_basics!($opaque);
        )*
    };
}

/// Name of the tenant that always exists.
pub const DEFAULT_TENANT: &str = "default";

impl TenantId {
    /// Returns the tenant that always exists.
    pub fn default_tenant() -> Self {
        Self(DEFAULT_TENANT.into())
    }
}

ids! {
    names {
        /// Owner of configuration, limits and isolation.
        TenantId;
        /// An MCP server the broker connects to, unique within its tenant.
        BackendId;
        /// A bundle of tools, prompts and resources with an endpoint of its own, unique within its
        /// tenant.
        ToolsetId;
    }
    opaque {
        /// The identity that a credential represents, within a tenant.
        PrincipalId;
        /// One client's conversation with the broker.
        SessionId;
        /// A task as clients see it.
        TaskId;
        /// An API key's public half.
        KeyId;
        /// A request for the approval of a call by a person.
        ApprovalId;
    }
}

impl BackendId {
    /// Returns the id under which the broker lists what it hosts itself. No backend can have it.
    pub fn hosted() -> Self {
        Self("_broker".into())
    }

    /// Parses the name of a backend, or that of what the broker hosts itself.
    pub fn parse_or_hosted(text: &str) -> Result<Self, InvalidName> {
        let hosted = Self::hosted();
        if text == hosted.as_str() { Ok(hosted) } else { Self::parse(text) }
    }
}

/// The name of an endpoint for one backend or one toolset: the backend's name, or `t/` and the
/// toolset's name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointName(Arc<str>);

impl EndpointName {
    const TOOLSET: &str = "t/";

    pub fn of_backend(backend: &BackendId) -> Self {
        Self(backend.0.clone())
    }

    pub fn of_toolset(toolset: &ToolsetId) -> Self {
        Self(format!("{}{toolset}", Self::TOOLSET).into())
    }

    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        check_name(text.strip_prefix(Self::TOOLSET).unwrap_or(text)).map(|()| Self(text.into()))
    }

    /// Returns the toolset, or `None` for the endpoint of a backend.
    pub fn toolset(&self) -> Option<ToolsetId> {
        self.0.strip_prefix(Self::TOOLSET).map(|name| ToolsetId(name.into()))
    }

    /// Returns the backend, or `None` for the endpoint of a toolset.
    pub fn backend(&self) -> Option<BackendId> {
        (!self.0.starts_with(Self::TOOLSET)).then(|| BackendId(self.0.clone()))
    }
}

impl<'de> Deserialize<'de> for EndpointName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

id_basics!(EndpointName);

fn check_name(text: &str) -> Result<(), InvalidName> {
    let bytes = text.as_bytes();
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let inner = bytes.iter().all(|&byte| alphanumeric(byte) || byte == b'-');
    let ends = bytes.first().is_some_and(|&byte| alphanumeric(byte))
        && bytes.last().is_some_and(|&byte| alphanumeric(byte));
    if inner && ends && bytes.len() <= NAME_CHARS_MAX {
        return Ok(());
    }
    Err(InvalidName { name: text.chars().take(64).collect() })
}

/// The broker's own id of a request on one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WireId(pub u64);

impl fmt::Display for WireId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A JSON-RPC id exactly as its sender wrote it, so that answers carry the sender's spelling.
///
/// Two ids are equal when their JSON values are: `"a"` equals `"\u0061"`, and `0` equals `-0`. An id
/// that is neither a string with escapes nor `-0` is compared as it is.
#[derive(Clone)]
pub struct RequestId {
    raw: Bytes,
}

impl RequestId {
    /// Creates an id of the broker's own.
    pub fn from_u64(id: u64) -> Self {
        Self { raw: Bytes::from(id.to_string()) }
    }

    /// Takes JSON text that is already known to be an integer or a string. Other JSON text makes an
    /// id that equals no such id.
    pub fn from_raw(raw: Bytes) -> Self {
        Self { raw }
    }

    /// Returns the one spelling of all equal ids.
    fn normalized(&self) -> Cow<'_, [u8]> {
        match self.raw.first() {
            Some(b'"') if memchr::memchr(b'\\', &self.raw).is_some() => json::unquote(&self.raw)
                .map_or(Cow::Borrowed(&*self.raw), |text| {
                    Cow::Owned(json::quote(&text).into_bytes())
                }),
            Some(b'-') if *self.raw == *b"-0" => Cow::Borrowed(b"0"),
            _ => Cow::Borrowed(&self.raw),
        }
    }

    /// Returns the JSON text, quotes included.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// Returns the number, when the text is a plain non-negative integer.
    pub fn as_u64(&self) -> Option<u64> {
        if !self.raw.iter().all(u8::is_ascii_digit) {
            return None;
        }
        std::str::from_utf8(&self.raw).ok()?.parse().ok()
    }

    /// Returns the number of the broker's own request that an answer names. Some servers and
    /// gateways return a number as a string, and the clients of the official SDKs accept it.
    pub fn as_wire_id(&self) -> Option<u64> {
        let Some(quoted) = self.raw.strip_prefix(b"\"") else { return self.as_u64() };
        let digits = quoted.strip_suffix(b"\"")?;
        let has_one_spelling = digits.len() == 1 || digits.first() != Some(&b'0');
        if !has_one_spelling || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        std::str::from_utf8(digits).ok()?.parse().ok()
    }
}

impl PartialEq for RequestId {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw || self.normalized() == other.normalized()
    }
}

impl Eq for RequestId {}

impl Hash for RequestId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.normalized().hash(state);
    }
}

impl From<WireId> for RequestId {
    fn from(id: WireId) -> Self {
        Self::from_u64(id.0)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.raw))
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
