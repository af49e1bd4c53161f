//! The overview of the broker and the catalog of a tenant, as operators see them. Both read the
//! state of this process only.

use std::{collections::BTreeMap, env};

use protocol::ids::{BackendId, TenantId};
use records::WeakGrants;
use rules::{
    catalog::{CatalogEntry, ListKind},
    limits::console::OVERVIEW_TROUBLED_MAX,
    operators::Operator,
};
use serde_json::Value;

use super::{Control, ControlError, Readiness};
use crate::views::{
    ActivityEntry, BackendStatus, CatalogItemView, HoldingBackend, OverviewView, TroubledBackend,
    WaitingTenant, WaitingView,
};

/// Entries of a catalog that a caller asks for.
#[derive(Debug, Default)]
pub struct CatalogFilter {
    pub kind: Option<ListKind>,
    pub backend: Option<BackendId>,
    /// Name or URI at the backend.
    pub name: Option<String>,
    /// Whether the entries show their definitions.
    pub with_definitions: bool,
}

impl Control {
    /// Returns the state of what an operator sees.
    pub async fn overview(&self, operator: &Operator) -> OverviewView {
        let mut view = OverviewView {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            replica: self.persistence().node().to_string(),
            readiness: readiness_name(self.readiness()).to_owned(),
            uptime_seconds: self.broker.shared.uptime().as_secs(),
            address: self.broker.shared.oauth.address.base(),
            tenants: 0,
            backends: BTreeMap::new(),
            breakers: BTreeMap::new(),
            tools: 0,
            prompts: 0,
            resources: 0,
            sessions: 0,
            calls_in_flight: 0,
            calls_queued: 0,
            held: 0,
            holding: Vec::new(),
            waiting: self.waiting(operator).await,
            troubled: Vec::new(),
        };
        for tenant in self.registry.load().tenants.keys() {
            if !operator.covers_tenant(tenant.as_str()) {
                continue;
            }
            view.tenants += 1;
            let running = self.broker.tenant(tenant);
            if operator.covers_whole_tenant(tenant.as_str()) {
                view.sessions += running.as_ref().map_or(0, |tenant| tenant.session_count());
            }
            for status in self.backend_statuses(tenant, operator) {
                add_backend(&mut view, status);
            }
            for backend in running.iter().flat_map(|tenant| tenant.backends()) {
                if operator.covers_backend(tenant.as_str(), backend.id.as_str()) {
                    let held = backend.lists.load().as_ref().map_or(0, |lists| lists.held_count());
                    add_held(&mut view, tenant, &backend.id, held);
                }
            }
        }
        view
    }

    /// Returns what waits for people in the tenants that an operator sees as a whole. `None`: the
    /// database does not answer.
    async fn waiting(&self, operator: &Operator) -> Option<WaitingView> {
        let approvals =
            self.query_store("count_pending_approvals", self.store().pending_approvals());
        let grants = self.query_store("count_weak_grants", self.store().weak_grants());
        let (approvals, grants) = tokio::try_join!(approvals, grants).ok()?;
        let mut tenants = BTreeMap::<TenantId, WaitingTenant>::new();
        for (tenant, count) in approvals {
            tenants.entry(tenant).or_default().approvals = count;
        }
        for (tenant, WeakGrants { reconnect, ended }) in grants {
            let waiting = tenants.entry(tenant).or_default();
            (waiting.reconnect, waiting.ended) = (reconnect, ended);
        }
        let mut view = WaitingView::default();
        for (tenant, waiting) in tenants {
            if operator.covers_whole_tenant(tenant.as_str()) {
                view.approvals += waiting.approvals;
                view.reconnect += waiting.reconnect;
                view.ended += waiting.ended;
                view.tenants.push(WaitingTenant { tenant: tenant.to_string(), ..waiting });
            }
        }
        Some(view)
    }

    /// Returns the status of each backend that an operator sees, of one tenant or of all.
    pub fn all_backends(
        &self,
        of: Option<&TenantId>,
        operator: &Operator,
    ) -> Result<Vec<BackendStatus>, ControlError> {
        if let Some(tenant) = of {
            self.check_tenant(tenant)?;
        }
        let registry = self.registry.load();
        let tenants = registry.tenants.keys().filter(|tenant| {
            of.is_none_or(|wanted| wanted == *tenant) && operator.covers_tenant(tenant.as_str())
        });
        Ok(tenants.flat_map(|tenant| self.backend_statuses(tenant, operator)).collect())
    }

    fn backend_statuses(&self, tenant: &TenantId, operator: &Operator) -> Vec<BackendStatus> {
        let views = self.backends(tenant).unwrap_or_default();
        let statuses = views.into_iter().map(|view| view.status);
        statuses
            .filter(|status| operator.covers_backend(tenant.as_str(), &status.backend))
            .collect()
    }

    /// Returns the entries of a tenant's catalog that an operator sees, by backend, kind and name.
    pub fn catalog(
        &self,
        tenant: &TenantId,
        operator: &Operator,
        filter: &CatalogFilter,
    ) -> Result<Vec<CatalogItemView>, ControlError> {
        self.check_tenant(tenant)?;
        let Some(running) = self.broker.tenant(tenant) else { return Ok(Vec::new()) };
        let mut backends = running.backends();
        backends.retain(|backend| {
            operator.covers_backend(tenant.as_str(), backend.id.as_str())
                && filter.backend.as_ref().is_none_or(|wanted| *wanted == backend.id)
        });
        backends.sort_by(|one, other| one.id.cmp(&other.id));
        let mut items = Vec::new();
        for backend in backends {
            let Some(lists) = backend.lists.load_full() else { continue };
            let kinds = ListKind::ALL.into_iter();
            for kind in kinds.filter(|kind| filter.kind.is_none_or(|wanted| wanted == *kind)) {
                let wanted = lists
                    .entries(kind)
                    .iter()
                    .filter(|entry| filter.name.as_ref().is_none_or(|wanted| *wanted == entry.key));
                items.extend(wanted.map(|entry| {
                    item(kind, &backend.id, entry, lists.stale, filter.with_definitions)
                }));
            }
        }
        Ok(items)
    }

    /// Returns the newest refusals and errors that an operator sees, after a number.
    pub fn activity(
        &self,
        operator: &Operator,
        tenant: Option<&TenantId>,
        after: u64,
        limit: usize,
    ) -> Vec<ActivityEntry> {
        let log = &self.broker.shared.activity;
        // Entries outlive their tenant, and a later tenant of the name may belong to others.
        let is_of_earlier = |entry: &ActivityEntry| {
            let at = entry.at.parse::<jiff::Timestamp>().map(|at| at.as_microsecond()).ok();
            !operator.is_broker_wide() && at < self.row_created_at_us(&entry.tenant)
        };
        let is_seen = |entry: &ActivityEntry| {
            tenant.is_none_or(|wanted| wanted.as_str() == entry.tenant)
                && operator.covers_whole_tenant(&entry.tenant)
                && !is_of_earlier(entry)
        };
        log.newest(after, limit, is_seen).iter().map(|entry| (**entry).clone()).collect()
    }

    /// Returns the name of this replica.
    pub fn replica(&self) -> String {
        self.persistence().node().to_string()
    }
}

const fn readiness_name(readiness: Readiness) -> &'static str {
    match readiness {
        Readiness::Ready => "ready",
        Readiness::Starting => "starting",
        Readiness::Draining => "draining",
        Readiness::StoreUnavailable => "store_unavailable",
    }
}

fn add_held(view: &mut OverviewView, tenant: &TenantId, backend: &BackendId, held: usize) {
    view.held += held;
    if held > 0 && view.holding.len() < OVERVIEW_TROUBLED_MAX {
        let (tenant, backend) = (tenant.to_string(), backend.to_string());
        view.holding.push(HoldingBackend { tenant, backend, held });
    }
}

fn add_backend(view: &mut OverviewView, status: BackendStatus) {
    let breaker = status.breaker.map(|breaker| breaker.state);
    view.tools += status.tools;
    view.prompts += status.prompts;
    view.resources += status.resources;
    view.calls_in_flight += status.calls_in_flight;
    view.calls_queued += status.calls_queued;
    *view.backends.entry(status.state.clone()).or_default() += 1;
    if let Some(state) = &breaker {
        *view.breakers.entry(state.clone()).or_default() += 1;
    }
    let breaker = breaker.filter(|state| state != "closed");
    let is_well = status.state == "ready" && breaker.is_none();
    if !is_well && view.troubled.len() < OVERVIEW_TROUBLED_MAX {
        view.troubled.push(TroubledBackend {
            tenant: status.tenant,
            backend: status.backend,
            state: status.state,
            breaker,
            last_error: status.last_error,
        });
    }
}

/// Returns the name of a kind of entries in the admin API.
pub(crate) const fn kind_name(kind: ListKind) -> &'static str {
    match kind {
        ListKind::Tools => "tool",
        ListKind::Prompts => "prompt",
        ListKind::Resources => "resource",
        ListKind::ResourceTemplates => "template",
    }
}

fn item(
    kind: ListKind,
    backend: &BackendId,
    entry: &CatalogEntry,
    stale: bool,
    with_definition: bool,
) -> CatalogItemView {
    let definition: Value = serde_json::from_slice(&entry.native).unwrap_or_default();
    let text = |member: &str| definition[member].as_str().map(str::to_owned);
    let digits = entry.definition.iter().map(|byte| format!("{byte:02x}"));
    CatalogItemView {
        kind: kind_name(kind).to_owned(),
        backend: backend.to_string(),
        name: entry.key.clone(),
        exposed_name: entry.exposed_key.clone(),
        title: text("title")
            .or_else(|| definition["annotations"]["title"].as_str().map(str::to_owned)),
        description: text("description"),
        bytes: entry.native.len(),
        hash: format!("sha256:{}", digits.collect::<String>()),
        stale,
        definition: serde_json::from_slice(&entry.native).ok().filter(|_| with_definition),
    }
}
