//! Routes of the audit log (pages, and export as JSON lines), and the middleware that records
//! operators' changes and their reads of the log.

use std::{convert::Infallible, net::IpAddr, sync::Arc};

use axum::{
    body::Body,
    extract::{
        Extension, FromRequestParts, MatchedPath, RawPathParams, Request, State,
        rejection::RawPathParamsRejection,
    },
    http::{Method, StatusCode, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use config::units::parse_duration;
use futures_util::stream;
use http_body_util::BodyExt as _;
use protocol::ids::TenantId;
use records::{AuditFilter, AuditKind, AuditOrder};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{input::QueryParams, page::LIMIT_MAX, permissions::SignedIn, problem::Problem};
use crate::{
    control::{AuditedAction, Author, Control},
    listeners::trusted_proxies::ClientAddress,
    telemetry::request::{self, RequestName},
    views::AuditEntry,
};

/// Number of records on a page without a `limit`.
const LIMIT_USUAL: u32 = 100;

/// Reads that are recorded: those of the records themselves.
const READS_RECORDED: [(&Method, &str); 2] =
    [(&Method::GET, "/admin/v1/audit"), (&Method::GET, "/admin/v1/audit/export")];
/// Characters of a recorded read's path and query.
const READ_TARGET_CHARS_MAX: usize = 300;

/// Address from which a request to the admin plane came.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientIp(pub(super) IpAddr);

/// Stores the client's address in the request, from its connection and from the headers of trusted
/// proxies.
pub(super) async fn record_client(
    State(client): State<ClientAddress>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = ClientIp(client.request_address(request.headers()));
    request.extensions_mut().insert(peer);
    next.run(request).await
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct AuditList {
    pub records: Vec<AuditEntry>,
    /// Value of `after` for the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<i64>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditParams {
    /// Only this tenant, even if it no longer exists.
    tenant: Option<String>,
    /// `admin` or `call`.
    #[param(pattern = "^(admin|call)$")]
    kind: Option<String>,
    /// Start time: a time such as 2026-01-31T12:00:00Z, or an age such as 24h.
    since: Option<String>,
    /// End time (exclusive), in the format of `since`.
    until: Option<String>,
    /// `oldest` or `newest`: the records that come first; `oldest` by default.
    #[param(pattern = "^(oldest|newest)$")]
    order: Option<String>,
    /// Number of the record after which the page begins, in this order.
    after: Option<i64>,
    /// Maximum number of records on a page; absent: 100, and for an export 1000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

impl AuditParams {
    /// Returns the filter of the records that the operator may read. An operator of tenants reads no
    /// record of an earlier tenant of a name.
    fn visible_filter(
        &self,
        signed_in: &SignedIn,
        control: &Control,
    ) -> Result<AuditFilter, Problem> {
        let tenant = signed_in.audited_tenant(self.tenant.clone())?;
        let filter = AuditFilter { tenant, ..self.filter()? };
        Ok(match signed_in.0.is_broker_wide() {
            true => filter,
            false => control.of_present_tenant(filter),
        })
    }

    fn filter(&self) -> Result<AuditFilter, Problem> {
        let kind = |name: &str| {
            let allowed = AuditKind::ALL.map(AuditKind::name).join(", ");
            AuditKind::parse(name).ok_or_else(|| {
                Problem::invalid(
                    "kind",
                    format!("{name:?} is not a kind of record; allowed: {allowed}"),
                )
            })
        };
        let order = |name: &str| {
            let allowed = AuditOrder::ALL.map(AuditOrder::name).join(", ");
            AuditOrder::parse(name).ok_or_else(|| {
                Problem::invalid(
                    "order",
                    format!("{name:?} is not an order of records; allowed: {allowed}"),
                )
            })
        };
        Ok(AuditFilter {
            tenant: self.tenant.clone(),
            kind: self.kind.as_deref().map(kind).transpose()?,
            since_us: self.since.as_deref().map(|text| moment("since", text)).transpose()?,
            until_us: self.until.as_deref().map(|text| moment("until", text)).transpose()?,
            order: self.order.as_deref().map(order).transpose()?.unwrap_or_default(),
        })
    }

    fn limit(&self) -> Result<u32, Problem> {
        match self.limit {
            None => Ok(LIMIT_USUAL),
            Some(limit) if (1..=LIMIT_MAX).contains(&limit) => Ok(limit),
            Some(limit) => Err(Problem::invalid(
                "limit",
                format!("{limit} is not a usable limit; allowed: 1 to {LIMIT_MAX}"),
            )),
        }
    }
}

/// Parses a time, or an age.
pub(super) fn moment(field: &str, text: &str) -> Result<i64, Problem> {
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return Ok(at.as_microsecond());
    }
    let ago = parse_duration(text).ok().and_then(|ago| i64::try_from(ago.as_micros()).ok());
    let ago = ago.ok_or_else(|| {
        Problem::invalid(
            field,
            format!("{text:?} is not a time; allowed: 2026-01-31T12:00:00Z, or how long ago: 24h"),
        )
    })?;
    Ok(jiff::Timestamp::now().as_microsecond().saturating_sub(ago))
}

/// Lists audit records, oldest first by default.
#[utoipa::path(get, operation_id = "list_audit_records", path = "/admin/v1/audit", tag = "audit", params(AuditParams), responses(
    (status = 200, body = AuditList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(control): State<Arc<Control>>,
    signed_in: SignedIn,
    QueryParams(query): QueryParams<AuditParams>,
) -> Result<impl IntoResponse, Problem> {
    let filter = query.visible_filter(&signed_in, &control)?;
    let (records, next) = control.audit(&filter, query.after, query.limit()?).await?;
    Ok(axum::Json(AuditList { records, next }))
}

/// Exports audit records as JSON lines, to the end of the log.
/// `limit` is the number of records per database read.
#[utoipa::path(get, operation_id = "export_audit_records", path = "/admin/v1/audit/export", tag = "audit", params(AuditParams), responses(
    (status = 200, description = "A record per line", body = String, content_type = "application/x-ndjson"),
    (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn export(
    State(control): State<Arc<Control>>,
    signed_in: SignedIn,
    QueryParams(query): QueryParams<AuditParams>,
) -> Result<Response, Problem> {
    let filter = query.visible_filter(&signed_in, &control)?;
    let limit = query.limit.map_or(Ok(LIMIT_MAX), |_| query.limit())?;
    // The first page is read before the head of the answer, so that an unreachable database becomes
    // a problem response.
    let first = control.audit(&filter, query.after, limit).await?;
    let pages = stream::try_unfold(Some(first), move |page| {
        let (control, filter) = (Arc::clone(&control), filter.clone());
        async move {
            let Some((records, next)) = page else {
                return Ok::<_, crate::control::ControlError>(None);
            };
            let mut lines = Vec::new();
            for record in &records {
                let _into_memory = serde_json::to_writer(&mut lines, record);
                lines.push(b'\n');
            }
            let following = match next {
                Some(after) => Some(control.audit(&filter, Some(after), limit).await?),
                None => None,
            };
            Ok(Some((Bytes::from(lines), following)))
        }
    });
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(pages)).into_response())
}

/// Records every request that may change something or reads the audit log, before its answer is
/// sent.
///
/// Runs inside [`super::access`]: a refused request changes nothing and fills no log. A change of
/// stored data is recorded at its commit ([`Author`]), even if the client disconnects. This
/// middleware records refusals and changes of the process.
pub(super) async fn record(
    State(control): State<Arc<Control>>,
    peer: Option<Extension<ClientIp>>,
    path: Option<MatchedPath>,
    names: Result<RawPathParams, RawPathParamsRejection>,
    SignedIn(operator): SignedIn,
    mut request: Request,
    next: Next,
) -> Response {
    let changes =
        [Method::PUT, Method::POST, Method::DELETE, Method::PATCH].contains(request.method());
    let reads = path
        .as_ref()
        .is_some_and(|path| READS_RECORDED.contains(&(request.method(), path.as_str())));
    let Some(route) = path.filter(|_| changes || reads) else { return next.run(request).await };
    let target = match changes {
        true => request.uri().path().to_owned(),
        // What was read is in the query.
        false => {
            let target = request.uri().path_and_query().map_or("", |target| target.as_str());
            target.chars().take(READ_TARGET_CHARS_MAX).collect()
        }
    };
    let author = Author::of(AuditedAction {
        who: operator.name.clone(),
        tenant: names.ok().and_then(|names| tenant_of(&names)),
        action: format!("{} {}", request.method(), route.as_str()),
        target: Some(target),
        address: peer.map(|Extension(ClientIp(address))| address.to_string()),
        request: request::current_name().unwrap_or_else(RequestName::random),
    });
    request.extensions_mut().insert(author.clone());
    let reading = author.clone();
    request = request.map(|body| {
        Body::new(body.map_frame(move |frame| {
            if let Some(data) = frame.data_ref() {
                reading.read(data);
            }
            frame
        }))
    });
    // Runs to its end, even if the client disconnects, so that every attempt is recorded.
    let recorded = tokio::spawn(request::in_current_request(async move {
        let response = next.run(request).await;
        let status = response.status();
        control.record(&author, (!status.is_success()).then(|| status.as_str().to_owned())).await;
        response
    }));
    recorded.await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

impl<S: Send + Sync> FromRequestParts<S> for Author {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

/// Returns the tenant of the route, as the handler reads it.
fn tenant_of(names: &RawPathParams) -> Option<String> {
    let (_, name) = names.iter().find(|(parameter, _)| *parameter == "tenant")?;
    TenantId::parse(name).is_ok().then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_timestamp_or_an_age() {
        assert_eq!(moment("since", "1970-01-01T00:00:01Z").ok(), Some(1_000_000));
        let now = jiff::Timestamp::now().as_microsecond();
        let hour_ago = moment("since", "1h").unwrap();
        assert!((now - hour_ago - 3_600_000_000).abs() < 10_000_000);
        assert_eq!(moment("since", "yesterday").unwrap_err().field.as_deref(), Some("since"));
    }
}
