//! Sign-in of the admin plane, checked for every request before any route.
//!
//! With an admin token, its bearer is an operator with every permission. Bearers of other operators'
//! tokens have the permissions of their roles ([`super::permissions`]). A browser shows the token in
//! the cookie of its login ([`super::console`]). Without an admin token, a loopback listener is open to
//! local users, and any other listener refuses every request. A loopback listener also refuses
//! requests that a web page could have caused. A page can make a browser send to 127.0.0.1, but it
//! cannot choose the `Host` (DNS rebinding) or the `Origin`.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::{
    Extension,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use config::{TokenHash, private_url::is_loopback_host};
use rules::{
    operators::Operator,
    sign_in_failures::{Plane, SignInFailureReason},
};

use super::{
    audit::ClientIp,
    health,
    login_cookie::{self, is_origin_of},
    problem::Problem,
};
use crate::{
    auth::{AuthError, AuthSettings, OperatorTokens},
    control::Control,
};

const NOT_A_TOKEN: &str = "this is neither the admin token nor an operator's token";

/// Access rules of one listener.
pub(super) struct Access {
    token: TokenPolicy,
    loopback: bool,
    /// `allowed_hosts` and `operators` follow a reload.
    auth: AuthSettings,
}

/// Refusal of a request.
pub(super) struct AccessDenied {
    problem: Box<Problem>,
    /// `None`: the refusal does not concern the credential.
    failure: Option<SignInFailureReason>,
}

impl From<Problem> for AccessDenied {
    fn from(problem: Problem) -> Self {
        Self { problem: Box::new(problem), failure: None }
    }
}

enum TokenPolicy {
    Required(TokenHash),
    OpenToLocalUsers,
    /// A public listener without a token refuses every request.
    Missing,
}

impl Access {
    pub(super) fn new(auth: AuthSettings, address: SocketAddr) -> Self {
        let loopback = address.ip().is_loopback();
        let token = match &auth.load().admin_token {
            Some(token) => TokenPolicy::Required(TokenHash::new(token.expose())),
            None if loopback => TokenPolicy::OpenToLocalUsers,
            None => TokenPolicy::Missing,
        };
        Self { token, loopback, auth }
    }

    /// Logs that the listener at `address` has no token, if that is so.
    pub(super) fn announce(&self, address: SocketAddr) {
        match self.token {
            TokenPolicy::Required(_) => {}
            TokenPolicy::OpenToLocalUsers => {
                tracing::warn!(
                    listen = %address,
                    "the admin API is open to every user of this machine; set auth.admin_token to close it"
                );
            }
            TokenPolicy::Missing => {
                tracing::error!(
                    listen = %address,
                    "the admin API accepts only tokens of operators: its address is not loopback and auth.admin_token is not set"
                )
            }
        }
    }

    /// Returns the operator of a request. Returns `None` for a health probe.
    async fn admit(
        &self,
        control: &Control,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Option<Arc<Operator>>, AccessDenied> {
        self.check_foreign(uri, headers)?;
        if uri.path() == health::LIVE || uri.path() == health::READY {
            return Ok(None);
        }
        let shown = headers.get(header::AUTHORIZATION).map(bearer);
        if shown.is_none()
            && let Some(host) = requested_host(uri, headers)
            && let Some(login) =
                login_cookie::login(headers, &host, &control.broker.shared.persistence.seal)?
            && !control.is_login_ended(&login.id).await
        {
            let admitted = self.authenticate(control, Some(Some(&login.token))).await;
            // The token was valid at the login, so its end is not a failed sign-in.
            return admitted.map(Some).map_err(|denied| AccessDenied { failure: None, ..denied });
        }
        self.authenticate(control, shown).await.map(Some)
    }

    /// Returns the operator of a shown token.
    pub(super) async fn authenticate(
        &self,
        control: &Control,
        shown: Option<Option<&str>>,
    ) -> Result<Arc<Operator>, AccessDenied> {
        if let Some(Some(shown)) = shown {
            if let Some(operator) = self.configured_operator(shown) {
                return Ok(operator);
            }
            if control.broker.can_be_operator(shown) {
                return match control.broker.authenticate_operator(shown).await {
                    Ok(operator) => Ok(Arc::new(operator)),
                    Err(denied) => Err(token_denied(denied)),
                };
            }
        }
        self.sign_in(control, shown).await
    }

    /// Refuses requests that a web page of others could have caused, on a loopback listener.
    pub(super) fn check_foreign(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        if self.loopback { self.check_page(uri, headers) } else { Ok(()) }
    }

    /// Returns the operator of a token of the configuration file, the admin token included.
    fn configured_operator(&self, shown: &str) -> Option<Arc<Operator>> {
        let shown = TokenHash::new(shown);
        if matches!(&self.token, TokenPolicy::Required(admin) if admin.matches(&shown)) {
            return Some(Arc::new(Operator::admin()));
        }
        let auth = self.auth.load();
        let declared = auth.operators.iter().find(|declared| declared.token.matches(&shown))?;
        Some(Arc::clone(&declared.operator))
    }

    fn check_page(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let refused = |kind, field, detail: &str| {
            Err(Problem::new(StatusCode::FORBIDDEN, kind, detail).field(field))
        };
        let Some(host) = requested_host(uri, headers) else {
            return Err(Problem::invalid("Host", "the Host header is missing or not a host name"));
        };
        let is_allowed = is_loopback_host(host.host()) || {
            let hosts = &self.auth.load().allowed_hosts;
            hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(host.host()))
        };
        if !is_allowed {
            return refused(
                "host-refused",
                "Host",
                "the Host header is not allowed; allowed are loopback names and the names in auth.allowed_hosts",
            );
        }
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        // Only the listener's own pages. Another port serves other pages, and
        // `auth.allowed_origins` is for the client listeners.
        if is_origin_of(origin, &host) {
            return Ok(());
        }
        refused(
            "origin-refused",
            "Origin",
            "only pages of this listener may use the admin API; auth.allowed_origins applies to listeners of clients",
        )
    }

    async fn sign_in(
        &self,
        control: &Control,
        shown: Option<Option<&str>>,
    ) -> Result<Arc<Operator>, AccessDenied> {
        let refused = |detail: &str, failure| {
            let problem = Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
                .field("Authorization");
            Err(AccessDenied { problem: Box::new(problem), failure })
        };
        let admin = || Ok(Arc::new(Operator::admin()));
        let missing = "send an operator's token as Authorization: Bearer …";
        if let Some(Some(shown)) = shown
            && OperatorTokens::has_form(shown)
        {
            return match control.operator_of_token(shown).await {
                Some(operator) => Ok(operator),
                None => refused(NOT_A_TOKEN, Some(SignInFailureReason::AdminToken)),
            };
        }
        match (&self.token, shown) {
            (TokenPolicy::OpenToLocalUsers, _) => admin(),
            (TokenPolicy::Missing, _) => refused(
                "no admin token is configured; set auth.admin_token to use the admin plane from other machines, or send an operator's token",
                None,
            ),
            (TokenPolicy::Required(_), None) => {
                refused(missing, Some(SignInFailureReason::Missing))
            }
            (TokenPolicy::Required(_), Some(None)) => {
                refused(missing, Some(SignInFailureReason::Malformed))
            }
            (TokenPolicy::Required(_), Some(Some(_))) => {
                refused(NOT_A_TOKEN, Some(SignInFailureReason::AdminToken))
            }
        }
    }
}

/// Returns the answer to a token of an issuer whose holder is not an operator.
fn token_denied(denied: AuthError) -> AccessDenied {
    let (refusal, failure) = denied.into_parts();
    let problem = match failure {
        Some(_) => Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", NOT_A_TOKEN),
        None => {
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "issuer-unavailable", refusal.to_string())
        }
    };
    AccessDenied { problem: Box::new(problem.field("Authorization")), failure }
}

/// Middleware around every route.
pub(super) async fn check(
    State((control, access)): State<(Arc<Control>, Arc<Access>)>,
    peer: Option<Extension<ClientIp>>,
    mut request: Request,
    next: Next,
) -> Response {
    let admitted = access.admit(&control, request.uri(), request.headers()).await;
    let mut response = match admitted {
        Ok(operator) => {
            if let Some(operator) = operator {
                request.extensions_mut().insert(operator);
            }
            next.run(request).await
        }
        Err(refused) => answer(&control, refused, peer.map(|Extension(ClientIp(address))| address)),
    };
    let headers = response.headers_mut();
    // Answers hold keys and settings. Caches must not store them, and browsers must not guess their
    // type and run them.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Returns the answer to a refused request. The token was checked before, so the rate limit never
/// delays a valid one.
pub(super) fn answer(
    control: &Control,
    AccessDenied { problem, failure }: AccessDenied,
    address: Option<IpAddr>,
) -> Response {
    let Some(wait) =
        failure.and_then(|reason| control.broker.sign_in_failed(Plane::Admin, reason, address))
    else {
        return (*problem).into_response();
    };
    let detail = "too many sign-ins from this address failed within a minute, and this token is not an operator's token";
    let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-sign-ins", detail)
        .field("Authorization");
    let mut response = problem.into_response();
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(wait.as_secs() + 1));
    response
}

fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start_matches(' '))
}

pub(super) fn requested_host(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    if let Some(authority) = uri.authority() {
        return Some(authority.clone());
    }
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => Authority::try_from(host.as_bytes())
            .ok()
            .filter(|authority| !authority.as_str().contains('@')),
        _ => None,
    }
}
