//! Decisions of operators about pins, and what they need to decide.

use std::{collections::HashMap, sync::Arc};

use protocol::ids::{BackendId, TenantId};
use records::{AdminChange, PinApproval, PinBlock, PinKey, PinKind, StoredPin};
use rules::pins::{
    self, DefinitionChange, Finding, FindingSeverity, Fingerprint, Pin, PinMode, PinState,
};
use serde::{Deserialize, Serialize};
use storage::StoreError;
use utoipa::ToSchema;

use super::{
    Author, Control, ControlError,
    resource_views::moment,
    validation::{no_backend, now_us},
};

/// A pinned object of a backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PinView {
    /// `tool`, `prompt`, `resource`, `template`, `instructions`, `command` or `app`.
    pub kind: String,
    /// The backend's own name, URI or URI template.
    pub name: String,
    /// `trusted`, `pending`, `changed`, `blocked` or `gone`.
    pub state: String,
    /// Hash of the definition that was seen last.
    pub hash: String,
    /// Hashes that operators approved, the newest first.
    pub approved: Vec<String>,
    /// Hash of the first definition.
    pub first: String,
    /// True if clients neither see nor use the object.
    pub held: bool,
    pub findings: Vec<Finding>,
    /// Operator of the last decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<String>,
    pub first_seen_at: String,
    /// Time of the last change that was seen.
    pub seen_at: String,
}

/// The difference between the accepted definition of an object and the one that was seen last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PinDiffView {
    pub kind: String,
    pub name: String,
    pub state: String,
    pub hash: String,
    pub changes: Vec<DefinitionChange>,
    pub findings: Vec<Finding>,
    /// The definition that was seen last, as JSON text with names for invisible characters.
    pub definition: String,
}

/// Definitions to approve.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PinApprovalRequest {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<PinApprovalItem>,
    /// True for everything that is listed now and not blocked. Pins of objects that are gone, and
    /// about which no operator decided, are removed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub all: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PinApprovalItem {
    pub kind: String,
    pub name: String,
    /// Hash of the definition that the operator looked at.
    pub hash: String,
}

/// Objects to block.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PinBlockRequest {
    pub items: Vec<PinBlockItem>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PinBlockItem {
    pub kind: String,
    pub name: String,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl Control {
    /// Returns the pins of a backend, by kind and name, and the mode that applies to them.
    pub async fn pins(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
    ) -> Result<(PinMode, Vec<PinView>), ControlError> {
        let mode = self.pin_mode(tenant, backend)?;
        let stored = self.query_store("list_pins", self.store().pins_of(tenant, backend)).await?;
        Ok((mode, stored.iter().map(|pin| pin_view(mode, pin)).collect()))
    }

    /// Returns what is new in an object since an operator accepted it.
    pub async fn pin_diff(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
        key: PinKey,
    ) -> Result<PinDiffView, ControlError> {
        let (_, pins) = self.pins(tenant, backend).await?;
        let is_wanted = |pin: &PinView| pin.kind == key.kind.name() && pin.name == key.name;
        let definitions = self.store().pin_definitions(tenant, backend, &key);
        let definitions = self.query_store("get_pin_definitions", definitions).await?;
        let (Some(pin), Some(definitions)) = (pins.into_iter().find(is_wanted), definitions) else {
            return Err(no_pin(backend, &key));
        };
        Ok(PinDiffView {
            changes: pins::diff(&definitions.accepted, &definitions.seen),
            definition: pins::visible(&definitions.seen),
            kind: pin.kind,
            name: pin.name,
            state: pin.state,
            hash: pin.hash,
            findings: pin.findings,
        })
    }

    /// Approves definitions on every replica, all of them or none.
    pub async fn approve_pins(
        self: &Arc<Self>,
        tenant: TenantId,
        backend: BackendId,
        wanted: PinApprovalRequest,
        author: Author,
    ) -> Result<Vec<PinView>, ControlError> {
        self.change(
            (tenant, backend, wanted, author),
            |attempt, (tenant, backend, wanted, author)| async move {
                let (_, pins) = attempt.pins(&tenant, &backend).await?;
                if wanted.all && !wanted.items.is_empty() {
                    return Err(fault("items", "is given together with all", "one of the two"));
                }
                let items = match wanted.all {
                    true => open_items(&pins),
                    false => named_items(wanted.items)?,
                };
                let approval = PinApproval {
                    tenant: tenant.clone(),
                    backend: backend.clone(),
                    items,
                    forgets_gone: wanted.all,
                    by: author.name().to_owned(),
                    at_us: now_us(),
                };
                record(&author, approval.items.iter().map(|(key, hash)| (key, hash.as_str())));
                if !attempt.commit(AdminChange::ApprovePins(&approval), &author).await? {
                    return Err(attempt.moved(&approval).await?);
                }
                let count = approval.items.len();
                tracing::info!(%tenant, %backend, count, by = approval.by, "definitions approved");
                attempt.apply_pins(&tenant, &backend).await?;
                Ok(attempt.pins(&tenant, &backend).await?.1)
            },
        )
        .await
    }

    /// Blocks objects on every replica, whatever their definitions, all of them or none.
    pub async fn block_pins(
        self: &Arc<Self>,
        tenant: TenantId,
        backend: BackendId,
        wanted: PinBlockRequest,
        author: Author,
    ) -> Result<Vec<PinView>, ControlError> {
        self.change(
            (tenant, backend, wanted, author),
            |attempt, (tenant, backend, wanted, author)| async move {
                attempt.pin_mode(&tenant, &backend)?;
                if wanted.items.is_empty() {
                    return Err(fault("items", "is missing or empty", "one object or more"));
                }
                let named = wanted.items.iter().enumerate();
                let keys = named.map(|(at, item)| key(at, &item.kind, &item.name));
                let block = PinBlock {
                    tenant: tenant.clone(),
                    backend: backend.clone(),
                    keys: keys.collect::<Result<_, _>>()?,
                    by: author.name().to_owned(),
                    at_us: now_us(),
                };
                record(&author, block.keys.iter().map(|key| (key, "")));
                if !attempt.commit(AdminChange::BlockPins(&block), &author).await? {
                    return Err(attempt.unknown(&block).await?);
                }
                let count = block.keys.len();
                tracing::info!(%tenant, %backend, count, by = block.by, "objects blocked");
                attempt.apply_pins(&tenant, &backend).await?;
                Ok(attempt.pins(&tenant, &backend).await?.1)
            },
        )
        .await
    }

    /// Applies decisions that another replica stored.
    pub(super) async fn apply_pin_decisions(&self) -> Result<(), StoreError> {
        let decided = self.query_store("count_pin_decisions", self.store().pin_decisions()).await?;
        let decided: HashMap<_, _> = decided
            .into_iter()
            .map(|(tenant, backend, decisions)| ((tenant, backend), decisions))
            .collect();
        for (tenant, backend, known) in self.broker.pin_decisions() {
            let name = (tenant, backend);
            // Without a row: the pins were removed with an earlier backend of the name.
            if decided.get(&name).copied().unwrap_or_default() != known {
                self.apply_pins(&name.0, &name.1).await?;
            }
        }
        Ok(())
    }

    async fn apply_pins(&self, tenant: &TenantId, backend: &BackendId) -> Result<(), StoreError> {
        self.broker.reload_pins(tenant, backend).await
    }

    fn pin_mode(&self, tenant: &TenantId, backend: &BackendId) -> Result<PinMode, ControlError> {
        let registry = self.registry.load();
        let entry = registry.backends.get(&(tenant.clone(), backend.clone()));
        Ok(entry.ok_or_else(|| no_backend(backend))?.spec.pins.rules().0)
    }

    /// Returns why an approval was not carried out.
    async fn moved(&self, approval: &PinApproval) -> Result<ControlError, ControlError> {
        let (_, pins) = self.pins(&approval.tenant, &approval.backend).await?;
        for (key, hash) in &approval.items {
            let known = pins.iter().find(|pin| pin.kind == key.kind.name() && pin.name == key.name);
            match known {
                None => return Ok(no_pin(&approval.backend, key)),
                Some(pin) if pin.hash != *hash => {
                    let object = object_name(&approval.backend, key);
                    return Ok(ControlError::PinMoved { object, hash: pin.hash.clone() });
                }
                Some(_) => {}
            }
        }
        let object = format!("one of the objects of {}", approval.backend);
        Ok(ControlError::PinMoved { object, hash: String::new() })
    }

    /// Returns which object of a block was never seen.
    async fn unknown(&self, block: &PinBlock) -> Result<ControlError, ControlError> {
        let (_, pins) = self.pins(&block.tenant, &block.backend).await?;
        let is_known = |key: &&PinKey| {
            pins.iter().any(|pin| pin.kind == key.kind.name() && pin.name == key.name)
        };
        let unknown = block.keys.iter().find(|key| !is_known(key));
        Ok(unknown.map_or(ControlError::Internal, |key| no_pin(&block.backend, key)))
    }
}

/// Adds the decision to the audit record.
fn record<'a>(author: &Author, items: impl Iterator<Item = (&'a PinKey, &'a str)>) {
    let named = items.map(
        |(key, hash)| serde_json::json!({"kind": key.kind.name(), "name": key.name, "hash": hash}),
    );
    let text = serde_json::Value::Array(named.collect()).to_string();
    author.record_values(None, Some(&text));
}

fn no_pin(backend: &BackendId, key: &PinKey) -> ControlError {
    ControlError::NotFound { what: "pin", name: object_name(backend, key) }
}

/// Returns an object as operators write it in commands and lock files.
fn object_name(backend: &BackendId, key: &PinKey) -> String {
    format!("{backend}/{}/{}", key.kind.name(), key.name)
}

/// Returns everything that is listed, not blocked, and not approved as it is.
fn open_items(pins: &[PinView]) -> Vec<(PinKey, String)> {
    let is_open = |pin: &&PinView| {
        [PinState::Pending, PinState::Changed].iter().any(|state| state.name() == pin.state)
    };
    let item = |pin: &PinView| {
        let kind = PinKind::parse(&pin.kind)?;
        Some((PinKey { kind, name: pin.name.clone() }, pin.hash.clone()))
    };
    pins.iter().filter(is_open).filter_map(item).collect()
}

fn named_items(items: Vec<PinApprovalItem>) -> Result<Vec<(PinKey, String)>, ControlError> {
    let mut named = Vec::with_capacity(items.len());
    for (at, item) in items.into_iter().enumerate() {
        if Fingerprint::parse(&item.hash).is_none() {
            return Err(fault(
                &format!("items[{at}].hash"),
                "is not a hash",
                "v1: and 64 hexadecimal digits",
            ));
        }
        let key = key(at, &item.kind, &item.name)?;
        if named.iter().any(|(known, _)| *known == key) {
            return Err(fault(&format!("items[{at}]"), "is named twice", "each object once"));
        }
        named.push((key, item.hash));
    }
    match named.is_empty() {
        true => Err(fault("items", "is missing or empty", "items, or all: true")),
        false => Ok(named),
    }
}

fn key(at: usize, kind: &str, name: &str) -> Result<PinKey, ControlError> {
    let allowed = PinKind::ALL.map(PinKind::name).join(", ");
    let kind = PinKind::parse(kind)
        .ok_or_else(|| fault(&format!("items[{at}].kind"), "is not a kind of pins", &allowed))?;
    Ok(PinKey { kind, name: name.to_owned() })
}

fn fault(path: &str, problem: &str, allowed: &str) -> ControlError {
    ControlError::Invalid(config::FieldError::new(path, problem, allowed))
}

fn pin_view(mode: PinMode, stored: &StoredPin) -> PinView {
    let seen = Fingerprint::parse(&stored.seen_hash).filter(|_| stored.is_listed);
    let pin = Pin::of_stored(stored);
    let findings: Vec<Finding> = serde_json::from_str(&stored.findings).unwrap_or_default();
    let is_serious = findings.iter().any(|found| found.severity == FindingSeverity::Serious);
    // A pin with hashes of a newer build has no approval that this build can compare.
    let state = pin.map_or(PinState::Changed, |pin| pin.state(seen));
    let is_part = stored.key.kind != PinKind::Command && state != PinState::Gone;
    PinView {
        kind: stored.key.kind.name().to_owned(),
        name: stored.key.name.clone(),
        state: state.name().to_owned(),
        hash: stored.seen_hash.clone(),
        approved: stored.approved.clone(),
        first: stored.first_hash.clone(),
        held: is_part && mode.holds(state, is_serious),
        findings,
        decided_by: stored.decided_by.clone(),
        decided_at: stored.decided_at_us.map(moment),
        first_seen_at: moment(stored.first_seen_at_us),
        seen_at: moment(stored.seen_at_us),
    }
}
