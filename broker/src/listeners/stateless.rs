//! Checks and starts a stateless request (MCP 2026-07-28) of any wire, after the wire has
//! identified the caller.

use std::time::{Duration, Instant};

use bytes::Bytes;
use protocol::{
    envelope::{Kind, Message},
    error::{ErrorKind, Refusal},
    handshake, json,
    method::Method,
    stateless::{
        is_request, may_require_input,
        request::{RequestMeta, unsupported_version},
    },
    version::Version,
};
use rules::{catalog::ListKind, endpoint_info::EndpointInfo, limits::CLIENT_TEXT_BYTES_MAX};

use crate::{
    broker::Broker,
    metrics::RequestOutcome,
    sessions::{
        loop_guard, request_observer,
        stateless::{
            ReturnedState, StatelessClient, StatelessRequest, SuspensionId,
            exchange::{Exchange, RequestRefusal},
            is_about_tasks,
            notification_stream::NotificationStream,
        },
    },
    telemetry::request,
};

/// Outcome of a request.
pub(super) enum StatelessOutcome {
    /// The complete answer.
    Answer(Bytes),
    Exchange(Box<Exchange>),
    Notifications(Box<NotificationStream>),
    /// The request waits at another replica for the client's input.
    OtherReplica(SuspensionId),
}

/// Checks the request. Returns a refusal if this broker does not serve it.
pub(super) fn parse_request(
    broker: &Broker,
    message: Message,
) -> Result<Box<StatelessRequest>, Refusal> {
    let meta = read_meta(broker, &message)?;
    StatelessRequest::read(message, meta)
}

/// Returns the metadata of a request. Returns a refusal if this broker does not serve it.
pub(super) fn read_meta(broker: &Broker, message: &Message) -> Result<RequestMeta, Refusal> {
    let compat = &broker.shared.config.compat;
    if !compat.eras.has_stateless() {
        return Err(Refusal::new(
            ErrorKind::UnsupportedEra,
            "this endpoint speaks MCP up to 2025-11-25: open a session with initialize",
        ));
    }
    if message.kind != Kind::Request {
        let text = "clients of 2026-07-28 must not send responses: send the request again with inputResponses";
        return Err(Refusal::new(ErrorKind::InvalidRequest, text));
    }
    check_client_text(message)?;
    let meta = RequestMeta::read(message, compat.versions())?;
    if !is_request(message.method) {
        let method = json::quote(&message.method_text().chars().take(100).collect::<String>());
        return Err(Refusal::new(
            ErrorKind::MethodNotFound,
            format!("{method} is not a method of 2026-07-28 that the broker serves"),
        ));
    }
    Ok(meta)
}

/// Refuses a client whose capabilities and name are too long. Pooled sessions and links keep the
/// capabilities, as sessions do.
fn check_client_text(message: &Message) -> Result<(), Refusal> {
    let fields = &message.fields;
    let texts = [fields.meta_client_capabilities, fields.meta_client_info];
    let bytes: usize = texts.iter().flatten().map(json::Span::len).sum();
    if bytes <= CLIENT_TEXT_BYTES_MAX {
        return Ok(());
    }
    let text = format!(
        "clientCapabilities and clientInfo in _meta must have at most {CLIENT_TEXT_BYTES_MAX} bytes together"
    );
    Err(Refusal::new(ErrorKind::InvalidParams, text))
}

/// Starts the request. An `Err` is the answer, and nothing was started.
pub(super) async fn dispatch(
    broker: &Broker,
    client: &StatelessClient,
    request: Box<StatelessRequest>,
) -> Result<StatelessOutcome, Refusal> {
    let (since, method) = (Instant::now(), request.message.method);
    if !is_answered_here(method) {
        // The pooled session of the request observes and counts it.
        let frame = request.message.frame.clone();
        return start(broker, client, request).await.map_err(|refused| {
            if !refused.is_counted {
                record_refused(client, &frame, since, refused.refusal.kind);
            }
            refused.refusal
        });
    }
    let watched = client.watch().start(&request.message, since);
    // Boxed, because it would double the future of every call.
    let work = Box::pin(start(broker, client, request));
    let reaction = request::scope(watched.clone(), work).await.map_err(|refused| refused.refusal);
    let outcome = if reaction.is_ok() { RequestOutcome::Ok } else { RequestOutcome::Refused };
    if let Err(refusal) = &reaction {
        watched.refuse(refusal.kind);
    }
    request::enter(watched, || {
        request_observer::end_request(&broker.shared, &client.caller, outcome)
    });
    count(client, method, outcome, since.elapsed());
    reaction
}

/// Observes and counts a request that was refused before a pooled session had it. It is decoded
/// again, because only a refused request needs that.
pub(super) fn record_refused(
    client: &StatelessClient,
    frame: &Bytes,
    since: Instant,
    kind: ErrorKind,
) {
    let limits = json::Limits::with_bytes_max(frame.len());
    let Ok(message) = Message::decode(frame.clone(), &limits) else { return };
    let watched = client.watch().start(&message, since);
    watched.refuse(kind);
    request::enter(watched, || {
        request_observer::end_request(&client.shared, &client.caller, RequestOutcome::Refused)
    });
    count(client, message.method, RequestOutcome::Refused, since.elapsed());
}

fn count(client: &StatelessClient, method: Method, outcome: RequestOutcome, took: Duration) {
    let metrics = &client.shared.metrics;
    metrics.request_finished(method, outcome, client.transport, took.as_secs_f64());
    client.tenant.counts.request_finished(method, outcome, took);
}

/// Returns whether the broker itself answers the method. A notification stream counts as answered
/// when it is open.
fn is_answered_here(method: Method) -> bool {
    ListKind::of_method(method).is_some()
        || is_about_tasks(method)
        || matches!(method, Method::ServerDiscover | Method::SubscriptionsListen)
}

/// Begins a request. The rare kinds are boxed, because they would enlarge the future of a call.
async fn start(
    broker: &Broker,
    client: &StatelessClient,
    request: Box<StatelessRequest>,
) -> Result<StatelessOutcome, RequestRefusal> {
    broker.shared.limiters.overload.admits()?;
    let method = request.message.method;
    // Before the offer, for which backends may have to be reached. The pooled session of any other
    // request takes it from the rate.
    if is_answered_here(method) {
        client.tenant.take_budget(&client.caller.principal)?;
    }
    if is_about_tasks(method) {
        return Ok(StatelessOutcome::Answer(Box::pin(client.answer_about_task(&request)).await?));
    }
    if method == Method::ServerDiscover {
        loop_guard::refuse_own_request(&client.tenant, &request.message)?;
    }
    let offer = broker.offer_to(client).await?;
    if let Some(kind) = ListKind::of_method(method) {
        let list = client.list(kind, &request.message, &offer)?;
        let behind = || client.visible_catalog().marks(&client.endpoint);
        let result = loop_guard::with_marks(&client.tenant, &request.message, list, behind);
        return Ok(StatelessOutcome::Answer(handshake::success(&request.id, &result)));
    }
    match method {
        Method::ServerDiscover => {
            Ok(StatelessOutcome::Answer(client.discover(&request.id, &offer)))
        }
        Method::SubscriptionsListen => {
            let listening = Box::pin(client.listen(&request, &offer)).await?;
            Ok(StatelessOutcome::Notifications(Box::new(listening)))
        }
        _ if has_request_state(&request.message) => {
            Box::pin(start_with_state(client, request, &offer)).await
        }
        _ => Ok(StatelessOutcome::Exchange(client.start(request, &offer, None).await?)),
    }
}

/// Returns whether the client sends back a request state that the broker reads.
fn has_request_state(message: &Message) -> bool {
    may_require_input(message.method) && message.text(message.fields.request_state).is_some()
}

/// Continues the exchange that the request state names, or starts the call whose approval it names.
async fn start_with_state(
    client: &StatelessClient,
    request: Box<StatelessRequest>,
    offer: &EndpointInfo,
) -> Result<StatelessOutcome, RequestRefusal> {
    let message = &request.message;
    let state = message.text(message.fields.request_state).unwrap_or_default();
    let returned = match client.returned_state(&state, message) {
        Ok(returned) => returned,
        Err(error) => {
            client.tenant.take_budget(&client.caller.principal)?;
            return Err(error.refusal().into());
        }
    };
    drop(state);
    let exchange = match returned {
        ReturnedState::Approval(approval) => client.start(request, offer, Some(approval)).await?,
        ReturnedState::Suspension(suspension) => {
            let names = client.shared.persistence.names();
            if !names.iter().any(|own| own.as_str() == suspension.node) {
                return Ok(StatelessOutcome::OtherReplica(suspension));
            }
            client.resume(request, &suspension, offer).await?
        }
    };
    Ok(StatelessOutcome::Exchange(exchange))
}

/// Returns the refusal of `initialize` where sessions are not supported.
pub(super) fn sessions_unsupported(message: &Message) -> Refusal {
    let requested = message.bytes(message.params).and_then(|params| {
        let params: serde_json::Value = serde_json::from_slice(params).ok()?;
        Some(params.get("protocolVersion")?.as_str()?.to_owned())
    });
    unsupported_version(&requested.unwrap_or_default(), &[Version::V2026_07_28])
}

#[cfg(test)]
mod tests {
    use config::spec::{TenantLimits, TenantSpec};
    use protocol::{
        ids::{BackendId, RequestId},
        stateless::request::meta_members,
    };
    use rules::{client_transport::Transport, endpoint::Endpoint};

    use super::*;
    use crate::{auth::Caller, persistence::Stores};

    /// Backends may have to be reached for an offer.
    #[tokio::test]
    async fn a_list_request_over_the_rate_is_refused_before_the_offer_is_made() {
        let broker = Broker::over(Stores::in_memory().await);
        let caller = Caller::anonymous();
        let limits = TenantLimits {
            requests_per_second: Some(1),
            burst: Some(1),
            ..TenantLimits::default()
        };
        broker.put_tenant(&caller.tenant, TenantSpec { limits, ..TenantSpec::default() }, 0);
        let tenant = broker.tenant(&caller.tenant).unwrap();
        // The endpoint has no offer.
        let endpoint = Endpoint::Single(BackendId::parse("gone").unwrap());
        let client = broker.stateless_client_of(tenant, caller, endpoint, Transport::Http);
        let params = format!("{{\"_meta\":{{{}}}}}", meta());
        let id = RequestId::from_u64(1);
        let frame = handshake::request(&id, Method::ToolsList, Some(params.as_bytes()));
        let mut kinds = Vec::new();
        for _ in 0..10 {
            let message = Message::decode(frame.clone(), &json::Limits::default()).unwrap();
            let request = parse_request(&broker, message).unwrap();
            kinds.push(dispatch(&broker, &client, request).await.err().unwrap().kind);
        }
        assert_ne!(kinds[0], ErrorKind::RateLimited);
        assert!(kinds.contains(&ErrorKind::RateLimited), "{kinds:?}");
    }

    /// Returns the members of `_meta` that each request has.
    fn meta() -> String {
        let members = meta_members(b"{}", None, None);
        let members = members
            .iter()
            .map(|(name, value)| format!("\"{name}\":{}", String::from_utf8_lossy(value)));
        members.collect::<Vec<_>>().join(",")
    }

    #[tokio::test]
    async fn a_request_refused_before_its_call_starts_is_recorded_and_counted_once() {
        let broker = Broker::over(Stores::in_memory().await);
        let caller = Caller::anonymous();
        let tenant = broker.tenant(&caller.tenant).unwrap();
        let client =
            broker.stateless_client_of(tenant, caller, Endpoint::Aggregated, Transport::Http);
        let params =
            format!(r#"{{"name":"b__pay","requestState":"forged","_meta":{{{}}}}}"#, meta());
        let frame =
            handshake::request(&RequestId::from_u64(1), Method::ToolsCall, Some(params.as_bytes()));
        let message = Message::decode(frame, &json::Limits::default()).unwrap();
        let request = parse_request(&broker, message).unwrap();
        let refusal = dispatch(&broker, &client, request).await.err().unwrap();
        assert_eq!(refusal.kind, ErrorKind::InvalidParams);
        let recorded = broker.shared.activity.newest(0, 10, |_| true);
        assert_eq!(recorded.len(), 1);
        let entry = &recorded[0];
        assert_eq!((entry.outcome.as_str(), entry.target.as_deref()), ("refused", Some("b__pay")));
        assert_eq!(entry.error.as_deref(), Some(ErrorKind::InvalidParams.name()));
        let line =
            r#"mcp_requests_total{method="tools/call",outcome="refused",transport="http"} 1"#;
        assert!(broker.shared.metrics.render().contains(line));
    }
}
