//! The verdict of one replica about a backend: the state of its breaker. It only gives the receiver
//! a reason to look for itself.

use protocol::ids::{BackendId, TenantId};

/// State of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerdictState {
    Closed,
    HalfOpen,
    Open,
}

impl VerdictState {
    const ALL: [Self; 3] = [Self::Closed, Self::HalfOpen, Self::Open];
}

/// A new state of a backend's breaker on one replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendVerdict {
    pub tenant: TenantId,
    pub backend: BackendId,
    /// The replica whose breaker it is.
    pub node: String,
    pub state: VerdictState,
}

/// Most bytes of each name in a verdict.
const NAME_BYTES_MAX: usize = 255;

impl BackendVerdict {
    /// Returns whether a name does not fit into a message.
    pub(super) fn is_too_long(&self) -> bool {
        self.names().iter().any(|name| name.len() > NAME_BYTES_MAX)
    }

    fn names(&self) -> [&str; 3] {
        [self.tenant.as_str(), self.backend.as_str(), &self.node]
    }

    /// Writes the state, and each name after its length.
    pub(super) fn write(&self, body: &mut Vec<u8>) {
        body.push(self.state as u8);
        for name in self.names() {
            let name = &name.as_bytes()[..name.len().min(NAME_BYTES_MAX)];
            body.push(name.len() as u8);
            body.extend_from_slice(name);
        }
    }

    /// Reads what [`BackendVerdict::write`] wrote.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let (state, mut rest) = body.split_first()?;
        let state = *VerdictState::ALL.get(usize::from(*state))?;
        let mut name = || {
            let (length, after) = rest.split_first()?;
            let (name, after) = after.split_at_checked(usize::from(*length))?;
            rest = after;
            String::from_utf8(name.to_vec()).ok()
        };
        let tenant = TenantId::parse(&name()?).ok()?;
        let backend = BackendId::parse(&name()?).ok()?;
        let node = name()?;
        rest.is_empty().then_some(Self { tenant, backend, node, state })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_read_as_it_was_written_and_other_bytes_are_refused() {
        for state in VerdictState::ALL {
            let verdict = BackendVerdict {
                tenant: TenantId::parse("acme").unwrap(),
                backend: BackendId::parse("files").unwrap(),
                node: "a/1".into(),
                state,
            };
            let mut body = Vec::new();
            verdict.write(&mut body);
            assert_eq!(BackendVerdict::read(&body), Some(verdict));
            for length in 0..body.len() {
                assert_eq!(BackendVerdict::read(&body[..length]), None, "{length} bytes of it");
            }
            body.push(0);
            assert_eq!(BackendVerdict::read(&body), None, "a byte more");
        }
        assert_eq!(BackendVerdict::read(b"\x03\x01a\x01b\x01c"), None, "an unknown state");
        assert_eq!(BackendVerdict::read(b"\x02\x01A\x01b\x01c"), None, "no name of a tenant");
        assert!(BackendVerdict::read(b"\x02\x01a\x01b\x01c").is_some());
    }
}
