//! Authentication of clients and selection of endpoints, from the `_meta` of `initialize` or of
//! each stateless request. Neither the token nor the backend's name leaves this folder.

use std::sync::Arc;

use config::MessageWire;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::EndpointName,
    json,
};
use rules::{endpoint::Endpoint, limits::CLIENT_TEXT_BYTES_MAX};

use super::incoming::{ConnectionParams, IncomingConnection};
use crate::{
    auth::{AuthenticatedCaller, Caller, CredentialExpiry, PresentedCertificate},
    broker::{Broker, tenant_gone},
    listeners::tls_acceptor::CertificateCaller,
    sessions::{stateless::StatelessClient, tenant::SharedPermit},
};

const TOKEN: &str = "dev.mcp-broker/token";

const BACKEND: &str = "dev.mcp-broker/backend";

/// Authenticates the client by the token it shows, or by its certificate.
async fn authenticate_caller(
    broker: &Broker,
    incoming: &IncomingConnection,
    token: Option<&str>,
) -> Result<AuthenticatedCaller, Refusal> {
    let presented = PresentedCertificate {
        caller: incoming.certified.as_ref().map(CertificateCaller::caller),
        thumbprint: incoming.remote.certificate,
    };
    match broker.authenticate_connection(token, presented) {
        Ok(proven) => Ok(proven),
        Err(denied) => {
            Box::pin(broker.retry_authentication(denied, token, presented, incoming.remote)).await
        }
    }
}

/// Returns the endpoint of a backend's name, or of `t/` and a toolset's name. A missing one and one
/// of another tenant get the same refusal.
fn endpoint(broker: &Broker, caller: &Caller, named: Option<&str>) -> Result<Endpoint, Refusal> {
    let Some(name) = named else { return Ok(Endpoint::Aggregated) };
    let Ok(name) = EndpointName::parse(name) else {
        let text =
            format!("{BACKEND} must be the name of a backend, or t/ and the name of a toolset");
        return Err(Refusal::new(ErrorKind::InvalidParams, text));
    };
    let endpoint = Endpoint::named(Some(&name));
    broker.check_endpoint(caller, &endpoint)?;
    Ok(endpoint)
}

/// Authenticates the client of an `initialize`. Returns the client and the requested endpoint.
pub(super) async fn authenticate_initialize(
    broker: &Broker,
    incoming: &IncomingConnection,
    message: &Message,
) -> Result<(AuthenticatedCaller, Endpoint), Refusal> {
    let meta = InitializeMeta::read(message)?;
    let authenticated = authenticate_caller(broker, incoming, meta.token.as_deref()).await?;
    let endpoint = endpoint(broker, &authenticated.caller, meta.backend.as_deref())?;
    Ok((authenticated, endpoint))
}

/// Members of `_meta` in `initialize` that are for the broker itself.
#[derive(Default)]
struct InitializeMeta {
    token: Option<String>,
    backend: Option<String>,
}

impl InitializeMeta {
    fn read(message: &Message) -> Result<Self, Refusal> {
        let Some(params) =
            message.bytes(message.params).filter(|params| params.len() <= CLIENT_TEXT_BYTES_MAX)
        else {
            return Ok(Self::default()); // the opening of the session refuses too much
        };
        let document = json::Document::parse(params, &json::Limits::default());
        let document = document
            .map_err(|_| Refusal::new(ErrorKind::InvalidParams, "the parameters cannot be read"))?;
        let text = |key: &str| match document.root().path(&["_meta", key]) {
            None => Ok(None),
            Some(value) => {
                let text = value.as_str().map(|text| Some(text.into_owned()));
                text.ok_or_else(|| {
                    Refusal::new(
                        ErrorKind::InvalidParams,
                        format!("_meta[\"{key}\"] is not a string"),
                    )
                })
            }
        };
        Ok(Self { token: text(TOKEN)?, backend: text(BACKEND)? })
    }
}

/// Acquires a permit for one more connection of the caller's tenant.
pub(in crate::listeners) async fn acquire_connection(
    broker: &Broker,
    caller: &Caller,
) -> Result<Arc<SharedPermit>, Refusal> {
    let tenant = broker.tenant(&caller.tenant).ok_or_else(tenant_gone)?;
    tenant.acquire_connection().await.map(Arc::new)
}

/// Returns whether the refusal concerns the credential. Such a client must reconnect to show
/// another one.
pub(super) fn is_of_sign_in(refusal: &Refusal) -> bool {
    matches!(refusal.kind, ErrorKind::Unauthorized | ErrorKind::TooManySignIns)
}

/// A client without a session, and the expiry time of its credential.
pub(super) struct AuthenticatedClient {
    pub(super) client: StatelessClient,
    pub(super) until: Option<CredentialExpiry>,
}

/// Authenticates the client of a stateless request, from the connection or from this message.
pub(super) async fn authenticate(
    broker: &Arc<Broker>,
    incoming: &IncomingConnection,
    message: &Message,
) -> Result<AuthenticatedClient, Refusal> {
    let fits = |caller: &Caller| match broker
        .message_bytes(caller, MessageWire::of_client(incoming.transport))
    {
        max if message.frame.len() > max => Err(Refusal::new(
            ErrorKind::MessageTooLarge,
            format!("a message may have at most {max} bytes"),
        )),
        _ => Ok(()),
    };
    if let Some(ConnectionParams { caller, until, endpoint, .. }) = &incoming.known {
        fits(caller)?;
        let client = broker.stateless_client(
            broker.readmit_caller(caller)?,
            endpoint.clone(),
            incoming.transport,
        )?;
        return Ok(AuthenticatedClient { client, until: until.clone() });
    }
    let meta = message.bytes(message.fields.meta).unwrap_or(b"{}");
    let document = json::Document::parse(meta, &json::Limits::with_bytes_max(meta.len()));
    let document = document
        .map_err(|_| Refusal::new(ErrorKind::InvalidParams, "params._meta cannot be read"))?;
    let text = |key: &str| match document.root().get(key).map(|value| value.as_str()) {
        Some(None) => {
            Err(Refusal::new(ErrorKind::InvalidParams, format!("_meta[\"{key}\"] is not a string")))
        }
        text => Ok(text.flatten()),
    };
    let (token, backend) = (text(TOKEN)?, text(BACKEND)?);
    let AuthenticatedCaller { caller, until, .. } =
        authenticate_caller(broker, incoming, token.as_deref()).await?;
    fits(&caller)?;
    let endpoint = endpoint(broker, &caller, backend.as_deref())?;
    Ok(AuthenticatedClient {
        client: broker.stateless_client(caller, endpoint, incoming.transport)?,
        until,
    })
}
