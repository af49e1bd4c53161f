//! Approvals: calls that wait for the decision of a person, and what the decision is bound to.

use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use protocol::ids::{ApprovalId, BackendId, PrincipalId, TenantId};

use crate::named::named;

named! {
    /// State of an approval. Denied, expired and used are final.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum ApprovalState {
        /// No person has decided.
        Pending = "pending",
        /// One call may be executed.
        Approved = "approved",
        Denied = "denied",
        /// No person decided in time, or no call used the approval in time.
        Expired = "expired",
        /// A call used the approval.
        Used = "used",
    }
}

/// The call that an approval is for. A call that differs in one part needs another approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalBinding {
    pub tenant: TenantId,
    pub principal: PrincipalId,
    pub backend: BackendId,
    /// The backend's name of the tool.
    pub tool: String,
    /// Digest of the tool's definition.
    pub definition: [u8; 32],
    /// Hash of the tool's pin. It replaces the definition where the tool is pinned.
    pub pin: Option<String>,
    /// Digest of the arguments in their canonical form.
    pub arguments_hash: [u8; 32],
}

impl ApprovalBinding {
    /// Returns the digest of all parts. Equal calls have equal ones.
    pub fn key(&self) -> [u8; 32] {
        self.digest(&[&self.arguments_hash])
    }

    /// Returns the definition and the pin as they are stored together: the digest, then the hash of
    /// the pin as it is written.
    pub fn definition_column(&self) -> Vec<u8> {
        let pin = self.pin.as_deref().unwrap_or_default();
        [self.definition.as_slice(), pin.as_bytes()].concat()
    }

    /// Reads definition and pin as they are stored together. `None`: they cannot be read.
    pub fn read_definition(column: &[u8]) -> Option<([u8; 32], Option<String>)> {
        let (definition, pin) = column.split_first_chunk::<32>()?;
        let pin = std::str::from_utf8(pin).ok()?;
        Some((*definition, (!pin.is_empty()).then(|| pin.to_owned())))
    }

    /// Hashes each part with its length, so that no two lists of parts are the same bytes.
    fn digest(&self, more: &[&[u8]]) -> [u8; 32] {
        let parts = [
            self.tenant.as_str().as_bytes(),
            self.principal.as_str().as_bytes(),
            self.backend.as_str().as_bytes(),
            self.tool.as_bytes(),
            self.pin.as_ref().map_or(self.definition.as_slice(), |pin| pin.as_bytes()),
        ];
        let mut context = Context::new(&SHA256);
        for part in parts.iter().chain(more) {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        let mut key = [0; 32];
        key.copy_from_slice(context.finish().as_ref());
        key
    }
}

/// An approval as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalRecord {
    pub id: ApprovalId,
    pub binding: ApprovalBinding,
    /// The arguments as the client sent them.
    pub arguments: Vec<u8>,
    /// JSON text: the rule, and who may decide.
    pub terms: String,
    /// Time for the decision, and again for the use of it.
    pub ttl: Duration,
}

impl ApprovalRecord {
    /// Returns the digest of the call and the terms. An equal call on other terms needs another
    /// approval, because other persons may have to decide.
    pub fn key(&self) -> [u8; 32] {
        self.binding.digest(&[&self.binding.arguments_hash, self.terms.as_bytes()])
    }

    /// Returns the digest of all parts but the arguments, which a window is for.
    pub fn window_key(&self) -> [u8; 32] {
        self.binding.digest(&[self.terms.as_bytes()])
    }
}

/// An approval as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredApproval {
    pub record: ApprovalRecord,
    /// The state at the time of the query. An approval whose time is over is expired.
    pub state: ApprovalState,
    /// Name of the operator who decided.
    pub decided_by: Option<String>,
    pub decision_reason: Option<String>,
    pub decided_at_us: Option<i64>,
    /// The call was not executed, because the tool is not the one that was approved.
    pub is_void: bool,
    /// Until then, calls of the tool by the principal need no other approval.
    pub window_until_us: Option<i64>,
    pub created_at_us: i64,
    pub expires_at_us: i64,
    /// Time left by the clock of the store.
    pub remaining_time: Duration,
}

impl StoredApproval {
    pub fn is_approved(&self) -> bool {
        self.state == ApprovalState::Approved
    }
}

/// Numbers of pending approvals that may not be exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApprovalLimits {
    pub per_principal: u64,
    pub per_tenant: u64,
}

/// The number that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalLimit {
    Principal,
    Tenant,
}

/// Outcome of a request for an approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApprovalOpening {
    /// The approval, which an equal call may have requested earlier.
    Open(Box<StoredApproval>),
    /// A window is open, by this approval.
    Window(ApprovalId),
    LimitReached(ApprovalLimit),
}

/// A person's decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalDecision {
    pub tenant: TenantId,
    pub id: ApprovalId,
    pub approves: bool,
    /// Name of the operator.
    pub by: String,
    pub reason: Option<String>,
    /// Time for which calls of the tool by the principal need no other approval.
    pub window: Option<Duration>,
}

impl ApprovalDecision {
    pub const fn state(&self) -> ApprovalState {
        if self.approves { ApprovalState::Approved } else { ApprovalState::Denied }
    }
}

/// Selection of a tenant's approvals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApprovalFilter {
    pub state: Option<ApprovalState>,
    /// Approvals for these backends. `None`: for all.
    pub backends: Option<Vec<BackendId>>,
}

/// Position in a list of approvals, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalListPosition {
    pub created_at_us: i64,
    pub id: ApprovalId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_call_changes_its_key_except_arguments_in_a_window() {
        let binding = ApprovalBinding {
            tenant: TenantId::parse("acme").unwrap(),
            principal: PrincipalId::new("ann"),
            backend: BackendId::parse("pay").unwrap(),
            tool: "send".to_owned(),
            definition: [1; 32],
            pin: None,
            arguments_hash: [2; 32],
        };
        let others = [
            ApprovalBinding { tenant: TenantId::parse("zoo").unwrap(), ..binding.clone() },
            ApprovalBinding { principal: PrincipalId::new("bob"), ..binding.clone() },
            ApprovalBinding { backend: BackendId::parse("mail").unwrap(), ..binding.clone() },
            ApprovalBinding { tool: "sen".to_owned(), ..binding.clone() },
            ApprovalBinding { definition: [9; 32], ..binding.clone() },
            ApprovalBinding { pin: Some("v1:a".to_owned()), ..binding.clone() },
        ];
        let record = |binding: &ApprovalBinding| ApprovalRecord {
            id: ApprovalId::new("a"),
            binding: binding.clone(),
            arguments: Vec::new(),
            terms: r#"{"rule":"r"}"#.to_owned(),
            ttl: Duration::from_secs(1),
        };
        let first = record(&binding);
        for other in &others {
            assert_ne!(other.key(), binding.key(), "{other:?}");
            assert_ne!(record(other).key(), first.key(), "{other:?}");
            assert_ne!(record(other).window_key(), first.window_key(), "{other:?}");
        }
        let other = ApprovalBinding { arguments_hash: [3; 32], ..binding.clone() };
        assert_ne!(record(&other).key(), first.key());
        assert_eq!(record(&other).window_key(), first.window_key());
        assert_ne!(first.key(), first.window_key());
        let by_others = ApprovalRecord { terms: r#"{"rule":"s"}"#.to_owned(), ..first.clone() };
        assert_ne!(by_others.key(), first.key());
        assert_ne!(by_others.window_key(), first.window_key());
        let pinned = ApprovalBinding { pin: Some("v1:a".to_owned()), ..binding };
        let written_otherwise = ApprovalBinding { definition: [9; 32], ..pinned.clone() };
        assert_eq!(written_otherwise.key(), pinned.key(), "the pin decides");
    }
}
