//! Stateless clients (MCP 2026-07-28). Each of their requests stands alone: the broker stores
//! nothing for them, and they have no session.
//!
//! Backend links belong to sessions. Requests of one principal, at one endpoint and with the same
//! capabilities, therefore go through a *pooled session* ([`session_pool`]), which no client knows.
//! An [`exchange::Exchange`] is one request and its answer. If a backend requests input meanwhile,
//! the question is the answer to the request. The exchange is then *suspended* ([`suspended`])
//! until the client sends the request again with its input.

mod approval;
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
    ids::{RequestId, TenantId},
    stateless::{
        request::RequestMeta,
        results::{self, CacheHint},
    },
    version::Version,
};
use rules::{
    catalog::{Catalog, ListKind},
    client_transport::Transport,
    endpoint::Endpoint,
    endpoint_info::{BROKER_INFO, EndpointInfo},
    limits::{STATELESS_LISTS_CACHED_BYTES_MAX, STATELESS_LISTS_CACHED_MAX},
    log_level::LogLevel,
    stateless,
};

pub use self::{
    pending_exchange::PendingExchange,
    suspended::{RequestStateError, ReturnedState, SuspensionId},
    tasks::is_about_tasks,
};
use self::{session_pool::SessionPools, suspended::SuspensionTable};
use super::{
    access_checks, request_observer::RequestObserver, shared::Shared, tasks::TaskManager,
    tenant::Tenant,
};
use crate::{auth::Caller, maps::SharedMap};

/// State that this process holds for stateless clients. All of it may be lost.
#[derive(Debug, Default)]
pub struct StatelessState {
    session_pools: SessionPools,
    suspensions: SuspensionTable,
    offers: SharedMap<OfferCacheKey, (Weak<Catalog>, Arc<EndpointInfo>)>,
    /// Cached pages of lists, made of catalogs that this map does not keep alive.
    lists: DashMap<ListCacheKey, (Weak<Catalog>, Bytes)>,
}

type OfferCacheKey = (TenantId, Endpoint, CatalogAddress);
type ListCacheKey = (TenantId, Endpoint, ListKind, Option<String>, CatalogAddress);

/// Address of a catalog: subjects with different rights have different ones.
type CatalogAddress = usize;

fn address(catalog: &Arc<Catalog>) -> CatalogAddress {
    Arc::as_ptr(catalog) as usize
}

/// A stateless caller, with its endpoint and transport.
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

/// One stateless request, which carries everything that is needed to serve it.
#[derive(Debug, Clone)]
pub struct StatelessRequest {
    pub message: Message,
    pub id: RequestId,
    pub meta: RequestMeta,
    pub log_level: Option<LogLevel>,
    /// Headers that repeat arguments which no schema known here names. The backend gets them
    /// unchanged.
    pub passed: HeaderMap,
}

impl StatelessRequest {
    /// Reads a request and its metadata. It is boxed because it is moved often.
    pub fn read(message: Message, meta: RequestMeta) -> Result<Box<Self>, Refusal> {
        let id = message
            .id
            .clone()
            .ok_or_else(|| Refusal::new(ErrorKind::InvalidRequest, "a request must have an id"))?;
        let level = |name: &String| {
            LogLevel::parse(name)
                .ok_or_else(|| Refusal::new(ErrorKind::MetaInvalid, "the log level is unknown"))
        };
        let log_level = meta.log_level.as_ref().map(level).transpose()?;
        Ok(Box::new(Self { message, id, meta, log_level, passed: HeaderMap::new() }))
    }
}

impl StatelessState {
    /// Returns the endpoint's cached offer, unless the catalog has changed.
    pub fn offer(&self, client: &StatelessClient) -> Option<Arc<EndpointInfo>> {
        let visible = client.visible_catalog();
        let key = (client.tenant.id.clone(), client.endpoint.clone(), address(&visible));
        let known = self.offers.get(&key)?;
        let (catalog, offer) = known.value();
        is_of(catalog, &visible).then(|| offer.clone())
    }

    /// Returns the server info if tasks are offered. This does not wait for a backend, because
    /// tasks are in the store.
    pub fn tasks_offered_by(&self, client: &StatelessClient) -> Option<Bytes> {
        match self.offer(client) {
            Some(offer) => offer.capabilities.tasks_tools_call.then(|| offer.server_info.clone()),
            None => client
                .shared
                .task_settings()
                .enabled
                .then(|| Bytes::from_static(BROKER_INFO.as_bytes())),
        }
    }

    pub fn record_offer(
        &self,
        tenant: &Tenant,
        endpoint: &Endpoint,
        catalog: &Arc<Catalog>,
        offer: &Arc<EndpointInfo>,
    ) {
        self.offers.retain(|_, (of, _)| of.strong_count() > 0);
        self.offers.insert(
            (tenant.id.clone(), endpoint.clone(), address(catalog)),
            (Arc::downgrade(catalog), offer.clone()),
        );
    }

    /// Keeps a page for later requests.
    fn record_page(&self, key: ListCacheKey, catalog: &Arc<Catalog>, page: &Bytes) {
        if page.len() > STATELESS_LISTS_CACHED_BYTES_MAX {
            return;
        }
        let mut bytes = page.len();
        // Pages of earlier catalogs are not used any more.
        self.lists.retain(|_, (of, known)| {
            let is_used = of.strong_count() > 0;
            bytes += if is_used { known.len() } else { 0 };
            is_used
        });
        if self.lists.len() >= STATELESS_LISTS_CACHED_MAX
            || bytes > STATELESS_LISTS_CACHED_BYTES_MAX
        {
            self.lists.clear();
        }
        self.lists.insert(key, (Arc::downgrade(catalog), page.clone()));
    }

    /// Returns the number of requests in flight. A suspended request counts while the call of its
    /// backend is in flight.
    pub fn calls_in_flight(&self) -> usize {
        self.session_pools.all().iter().map(|session| session.calls_in_flight()).sum()
    }

    /// Expires suspended requests and idle pooled sessions.
    pub fn tick(&self, now: Instant) {
        self.suspensions.expire(now);
        self.session_pools.tick(now);
    }

    /// Ends what these callers began, because their credential was revoked.
    pub fn end_of_callers(&self, is_meant: impl Fn(&Caller) -> bool) {
        self.suspensions.end(|caller, _| is_meant(caller));
        self.session_pools.end_of_callers(is_meant);
    }

    pub fn end_of_tenant(&self, tenant: &TenantId) {
        self.end(|caller, _| caller.tenant == *tenant);
        self.offers.retain(|(known, ..), _| known != tenant);
        self.lists.retain(|(known, ..), _| known != tenant);
    }

    /// Ends what was started at an endpoint, because its backend was removed.
    pub fn end_at(&self, tenant: &TenantId, endpoint: &Endpoint) {
        self.end(|caller, at| caller.tenant == *tenant && at == endpoint);
        self.offers.retain(|(of, at, _), _| of != tenant || at != endpoint);
        self.lists.retain(|(known, at, ..), _| (known, at) != (tenant, endpoint));
    }

    /// Ends all suspended requests and pooled sessions, because the process ends.
    pub fn end_all(&self) {
        self.end(|_, _| true);
    }

    fn end(&self, is_meant: impl Fn(&Caller, &Endpoint) -> bool) {
        self.suspensions.end(&is_meant);
        self.session_pools.end(&is_meant);
    }
}

impl StatelessClient {
    /// Returns the observer of requests without a session.
    pub fn watch(&self) -> RequestObserver<'_> {
        RequestObserver {
            context: &self.shared,
            caller: &self.caller,
            session: None,
            version: Version::V2026_07_28,
            transport: self.transport,
        }
    }

    /// Returns the catalog that the caller sees.
    pub fn visible_catalog(&self) -> Arc<Catalog> {
        self.tenant.visible_catalog(&self.endpoint, &self.caller)
    }

    /// Returns the result of a list request.
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
        let catalog = match access_checks::is_disabled("stateless lists") {
            true => self.tenant.full_catalog(),
            false => self.visible_catalog(),
        };
        let lists = &self.stateless.lists;
        let key = (
            self.tenant.id.clone(),
            self.endpoint.clone(),
            kind,
            cursor.as_deref().map(str::to_owned),
            address(&catalog),
        );
        if let Some(known) = lists.get(&key).filter(|known| is_of(&known.value().0, &catalog)) {
            return Ok(known.value().1.clone());
        }
        let page = catalog.list(&self.endpoint, kind, cursor.as_deref())?;
        let unreadable = || Refusal::new(ErrorKind::Internal, "the list cannot be read");
        let result = stateless::list_result(kind, &page, self.list_hint(), &offer.server_info)
            .ok_or_else(unreadable)?;
        self.stateless.record_page(key, &catalog, &result);
        Ok(result)
    }

    /// Returns the whole answer to `server/discover`.
    pub fn discover(&self, id: &RequestId, offer: &EndpointInfo) -> Bytes {
        let capabilities = results::upgrade_server_capabilities(
            &offer.capabilities,
            offer.capabilities.tasks_tools_call,
        );
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

/// Returns whether something was made of this very catalog.
fn is_of(known: &Weak<Catalog>, catalog: &Arc<Catalog>) -> bool {
    std::ptr::eq(known.as_ptr(), Arc::as_ptr(catalog))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use aws_lc_rs::hmac;
    use protocol::capabilities::{ClientCapabilities, ServerCapabilities};

    use super::*;
    use crate::{
        broker::Broker,
        sessions::session::{Session, SessionParams, TaskAcceptance},
    };

    /// Returns a session of the client without a credential, without a handshake.
    pub(in crate::sessions) fn pooled_session(broker: &Broker) -> Arc<Session> {
        let client = anonymous_client(broker);
        let params = SessionParams {
            tenant: client.tenant,
            caller: client.caller,
            endpoint: client.endpoint,
            transport: client.transport,
        };
        let agreement = session_pool::agreement(ClientCapabilities::none(), &empty_offer());
        Session::pooled(params, agreement, TaskAcceptance::Declined, client.shared)
    }

    /// Returns the client without a credential at `/mcp`.
    pub(super) fn anonymous_client(broker: &Broker) -> StatelessClient {
        let caller = Caller::anonymous();
        StatelessClient {
            tenant: broker.tenant(&caller.tenant).expect("every broker of a test has it"),
            caller,
            endpoint: Endpoint::Aggregated,
            transport: Transport::Http,
            shared: broker.shared.clone(),
            stateless: broker.stateless.clone(),
            tasks: broker.tasks.clone(),
        }
    }

    /// Returns the information of an endpoint without capabilities.
    pub(super) fn empty_offer() -> EndpointInfo {
        EndpointInfo {
            capabilities: ServerCapabilities::none(),
            server_info: Bytes::from_static(BROKER_INFO.as_bytes()),
            instructions: None,
        }
    }

    #[test]
    fn cached_pages_are_bounded_by_their_bytes() {
        let (state, tenant) = (StatelessState::default(), TenantId::parse("acme").unwrap());
        let key = hmac::Key::new(hmac::HMAC_SHA256, &[1; 32]);
        let catalog = Arc::new(Catalog::build(tenant.clone(), key, BTreeMap::new()));
        let record = |cursor: &str, bytes: usize| {
            let (at, cursor) = (Endpoint::Aggregated, Some(cursor.to_owned()));
            let key = (tenant.clone(), at, ListKind::Tools, cursor, address(&catalog));
            state.record_page(key, &catalog, &Bytes::from(vec![b' '; bytes]));
            state.lists.iter().map(|page| page.value().1.len()).sum::<usize>()
        };
        const HALF: usize = STATELESS_LISTS_CACHED_BYTES_MAX / 2;
        assert_eq!([record("1", HALF), record("2", HALF)], [HALF, 2 * HALF]);
        assert_eq!(record("3", HALF), HALF, "the first two had to go");
        assert_eq!(record("4", 2 * HALF + 1), HALF, "it does not fit at all");
    }
}
