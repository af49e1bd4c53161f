//! Clients of 2026-07-28, whose requests stand alone: nothing of them is stored, and no session is theirs.
//!
//! What is behind the broker knows sessions. So requests of one principal, at one endpoint and with the same capabilities,
//! go through a *stand-in* ([`session_pool`]): a session that no client knows of. An [`exchange::Exchange`] is one request on its
//! way there and back. Where a backend asks something meanwhile the request is answered with the question, and the exchange
//! is *parked* ([`suspended`]) until the client sends the request again with what was asked for.

pub mod exchange;
pub mod notification_stream;
mod pending_exchange;
mod session_pool;
mod suspended;
mod task_subscription;
mod tasks;

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use bytes::Bytes;
use dashmap::DashMap;
use http::HeaderMap;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::{KeyId, RequestId, TenantId},
    method::Method,
    stateless::{
        request::RequestMeta,
        results::{self, CacheHint},
    },
    version::Version,
};

pub use self::{
    pending_exchange::PendingExchange,
    suspended::{RequestStateError, SuspensionId},
    tasks::is_about_tasks,
};
use self::{session_pool::SessionPools, suspended::SuspensionTable};
use super::{
    request_observer::RequestObserver, shared::Shared, tasks::TaskManager, tenant::Tenant,
};
use crate::{
    BROKER_INFO,
    auth::Caller,
    limits::STATELESS_LISTS_CACHED_MAX,
    maps::SharedMap,
    rules::{
        catalog::{Catalog, ListKind},
        client_transport::Transport,
        endpoint::Endpoint,
        endpoint_info::EndpointInfo,
        log_level::LogLevel,
        stateless,
    },
};

/// What this process holds for such clients. All of it may be lost.
#[derive(Debug, Default)]
pub struct StatelessState {
    stand_ins: SessionPools,
    parking: SuspensionTable,
    offers: SharedMap<(TenantId, Endpoint), (Weak<Catalog>, Arc<EndpointInfo>)>,
    /// Made of catalogs that nothing here keeps alive.
    lists: DashMap<ListCacheKey, (Weak<Catalog>, Bytes)>,
}

type ListCacheKey = (TenantId, Endpoint, ListKind, Option<String>);

/// Who asks, and where.
#[derive(Debug, Clone)]
pub struct StatelessClient {
    pub tenant: Arc<Tenant>,
    pub caller: Caller,
    pub endpoint: Endpoint,
    pub transport: Transport,
    pub shared: Arc<Shared>,
    pub stateless: Arc<StatelessState>,
    pub tasks: Arc<TaskManager>,
}

/// One request that says all there is to know about it.
#[derive(Debug, Clone)]
pub struct StatelessRequest {
    pub message: Message,
    pub id: RequestId,
    pub meta: RequestMeta,
    pub log_level: Option<LogLevel>,
    /// Headers that repeat arguments no schema known here names: the backend gets them as they came.
    pub passed: HeaderMap,
}

impl StatelessRequest {
    /// Reads what a request of this revision says of itself. On the heap, as it is moved often.
    pub fn read(message: Message, meta: RequestMeta) -> Result<Box<Self>, Refusal> {
        let id = message
            .id
            .clone()
            .ok_or_else(|| Refusal::new(ErrorKind::InvalidRequest, "a request has an id"))?;
        let level = |name: &String| {
            LogLevel::parse(name)
                .ok_or_else(|| Refusal::new(ErrorKind::MetaInvalid, "the log level is unknown"))
        };
        let log_level = meta.log_level.as_ref().map(level).transpose()?;
        Ok(Box::new(Self { message, id, meta, log_level, passed: HeaderMap::new() }))
    }
}

impl StatelessState {
    /// What the endpoint offers, if that is known and has not changed.
    pub fn offer(&self, tenant: &Tenant, endpoint: &Endpoint) -> Option<Arc<EndpointInfo>> {
        let known = self.offers.get(&(tenant.id.clone(), endpoint.clone()))?;
        let (catalog, offer) = known.value();
        is_of(catalog, &tenant.catalog()).then(|| offer.clone())
    }

    /// Who answers, where tasks are offered. That does not wait for a backend: tasks are in the store.
    pub fn tasks_offered_by(&self, visitor: &StatelessClient) -> Option<Bytes> {
        match self.offer(&visitor.tenant, &visitor.endpoint) {
            Some(offer) => offer.capabilities.tasks_tools_call.then(|| offer.server_info.clone()),
            None => visitor
                .shared
                .task_settings()
                .enabled
                .then(|| Bytes::from_static(BROKER_INFO.as_bytes())),
        }
    }

    pub fn note_offer(
        &self,
        tenant: &Tenant,
        endpoint: &Endpoint,
        catalog: &Arc<Catalog>,
        offer: &Arc<EndpointInfo>,
    ) {
        self.offers.insert(
            (tenant.id.clone(), endpoint.clone()),
            (Arc::downgrade(catalog), offer.clone()),
        );
    }

    /// Requests that are on their way.
    pub fn calls_in_flight(&self) -> usize {
        self.stand_ins
            .all()
            .iter()
            .map(|session| session.calls_in_flight())
            .sum::<usize>()
            .saturating_sub(self.parking.count())
    }

    /// What passes with time.
    pub fn tick(&self, now: Instant) {
        self.parking.expire(now);
        self.stand_ins.tick(now);
    }

    /// A key is good no longer: what was begun with it ends.
    pub fn end_of_key(&self, key: &KeyId) {
        self.end(|caller, _| caller.key.as_ref() == Some(key));
    }

    pub fn end_of_tenant(&self, tenant: &TenantId) {
        self.end(|caller, _| caller.tenant == *tenant);
        self.offers.retain(|(known, _), _| known != tenant);
        self.lists.retain(|(known, ..), _| known != tenant);
    }

    /// A backend is gone, and with it its own endpoint.
    pub fn end_at(&self, tenant: &TenantId, endpoint: &Endpoint) {
        self.end(|caller, at| caller.tenant == *tenant && at == endpoint);
        self.offers.remove(&(tenant.clone(), endpoint.clone()));
        self.lists.retain(|(known, at, ..), _| (known, at) != (tenant, endpoint));
    }

    /// The process goes away: what waits for its client waits in vain.
    pub fn end_all(&self) {
        self.end(|_, _| true);
    }

    fn end(&self, is_meant: impl Fn(&Caller, &Endpoint) -> bool) {
        self.parking.end(&is_meant);
        self.stand_ins.end(&is_meant);
    }
}

impl StatelessClient {
    /// Notes what is asked without a session.
    pub fn watch(&self) -> RequestObserver<'_> {
        RequestObserver {
            shared: &self.shared,
            caller: &self.caller,
            session: None,
            version: Version::V2026_07_28,
            transport: self.transport,
        }
    }

    /// The result of a list request.
    pub fn list(
        &self,
        kind: ListKind,
        message: &Message,
        offer: &EndpointInfo,
    ) -> Result<Bytes, Refusal> {
        offer.permits_list(kind)?;
        let cursor = message.text(message.fields.cursor);
        if message.fields.cursor.is_some() && cursor.is_none() {
            return Err(Refusal::new(ErrorKind::InvalidParams, "params.cursor must be a string"));
        }
        let (catalog, lists) = (self.tenant.catalog(), &self.stateless.lists);
        let place = (
            self.tenant.id.clone(),
            self.endpoint.clone(),
            kind,
            cursor.as_deref().map(str::to_owned),
        );
        if let Some(known) = lists.get(&place).filter(|known| is_of(&known.value().0, &catalog)) {
            return Ok(known.value().1.clone());
        }
        let page = catalog.list(&self.endpoint, kind, cursor.as_deref())?;
        let unreadable = || Refusal::new(ErrorKind::Internal, "the list can not be read");
        let result = stateless::list_result(kind, &page, self.list_hint(), &offer.server_info)
            .ok_or_else(unreadable)?;
        if lists.len() >= STATELESS_LISTS_CACHED_MAX {
            lists.clear();
        }
        // What was made of the tenant's catalogs before this one is asked for by nobody.
        lists.retain(|(tenant, ..), (of, _)| *tenant != self.tenant.id || is_of(of, &catalog));
        lists.insert(place, (Arc::downgrade(&catalog), result.clone()));
        Ok(result)
    }

    /// The whole answer to `server/discover`.
    pub fn discover(&self, id: &RequestId, offer: &EndpointInfo) -> Bytes {
        let capabilities =
            results::modern_capabilities(&offer.capabilities, offer.capabilities.tasks_tools_call);
        let members = results::discover_members(
            self.shared.config.compat.versions(),
            &capabilities,
            offer.instructions.as_deref(),
        );
        results::complete_response(id, &members, Some(self.list_hint()), &offer.server_info)
    }

    fn list_hint(&self) -> CacheHint {
        self.shared.config.compat.list_hint()
    }
}

/// Whether something was made of this very catalog.
fn is_of(known: &Weak<Catalog>, catalog: &Arc<Catalog>) -> bool {
    std::ptr::eq(known.as_ptr(), Arc::as_ptr(catalog))
}

/// The list that is asked for.
pub fn list_kind(method: Method) -> Option<ListKind> {
    match method {
        Method::ToolsList => Some(ListKind::Tools),
        Method::PromptsList => Some(ListKind::Prompts),
        Method::ResourcesList => Some(ListKind::Resources),
        Method::ResourcesTemplatesList => Some(ListKind::ResourceTemplates),
        _ => None,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
