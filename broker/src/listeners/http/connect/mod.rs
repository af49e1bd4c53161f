//! Pages on which a person connects accounts at backends, and the documents of the broker as an
//! OAuth client. They use no script.
//!
//! Invariants:
//! - A page leads to an authorization server only for a person who is signed in here. A form of the
//!   broker must have been sent before, from the origin of the pages.
//! - A login counts as long as its tenant is enabled and its principal is not revoked.
//! - The answer of a server counts only in the browser that began the request.
//! - Text of others is escaped.

mod callback;
mod page;
mod person;
mod sign_in;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use config::private_url::is_loopback_host;
use http::{
    HeaderValue, Method as HttpMethod, Request, Response, StatusCode,
    header::{HOST, LOCATION, ORIGIN, RETRY_AFTER, SET_COOKIE},
    request::Parts as HeadParts,
    uri::Authority,
};
use protocol::{
    error::{ErrorKind, Refusal},
    form::form_decoded,
    ids::{BackendId, DEFAULT_TENANT, TenantId},
};
use rules::{
    limits::{LIMIT_RETRY_AFTER, oauth::CONNECT_FORM_BYTES_MAX},
    sign_in_failures::{Plane, SignInFailureReason},
};

use self::{
    page::HtmlPage,
    person::{Cookies, Login, Person},
};
use super::{
    inbound_request::RequestBody,
    request_guard::RequestGuard,
    response::{self, Body},
};
use crate::{
    auth::{RemotePeer, SealKey},
    broker::Broker,
    oauth::{
        CALLBACK_PATH, CLIENT_METADATA_PATH, Connections, KEY_SET_PATH, LoginPermit, OauthError,
        UserTokens, client_metadata, digest_of, random_text, tenant_of_metadata,
    },
    sessions::tenant::Tenant,
};

const CONNECT: &str = "/connect";
/// Prefix of the callback and of the client metadata.
const OAUTH: &str = "/oauth";

/// Returns whether a path belongs to the connect pages or to the broker as an OAuth client.
pub(super) fn matches_path(path: &str) -> bool {
    [CONNECT, OAUTH].iter().any(|prefix| {
        path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// Returns whether a path is one of the pages for people.
fn is_page(path: &str) -> bool {
    path.strip_prefix(CONNECT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns whether a path is that of a redirect URI of the broker.
pub(super) fn is_callback(path: &str) -> bool {
    path.strip_prefix(CALLBACK_PATH).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns whether an origin is that of the pages: the address that browsers know, or the loopback
/// name and port that the request itself is for.
fn is_own_origin(origin: &HeaderValue, base: Option<&str>, head: &HeadParts) -> bool {
    let origin = origin.as_bytes();
    let named = head.headers.get(HOST).and_then(|host| host.to_str().ok()?.parse().ok());
    let host: Option<Authority> = head.uri.authority().cloned().or(named);
    let is_host = host.is_some_and(|host| {
        let rest = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
        is_loopback_host(host.host())
            && rest.is_some_and(|rest| rest.eq_ignore_ascii_case(host.as_str().as_bytes()))
    });
    is_host || base.is_some_and(|base| base.as_bytes() == origin)
}

/// Serves one request.
pub(super) async fn handle<B: RequestBody>(
    broker: &Arc<Broker>,
    guard: &RequestGuard,
    request: Request<B>,
    remote: RemotePeer,
) -> Response<Body> {
    let (mut head, body) = request.into_parts();
    let base = broker.shared.oauth.address.base();
    if is_page(head.uri.path()) {
        // A form of another page would sign the browser in as someone else, so the origins of MCP
        // clients do not count here.
        let mut origins = head.headers.get_all(ORIGIN).iter();
        if !origins.all(|origin| is_own_origin(origin, base.as_deref(), &head)) {
            let refusal = Refusal::new(
                ErrorKind::OriginRefused,
                "the connect pages accept only forms of their own",
            );
            return response::refusal_response(&broker.shared, &refusal, None);
        }
        head.headers.remove(ORIGIN);
    }
    if let Err(refusal) = guard.check_origin_and_host(&head.headers, &head.uri) {
        return response::refusal_response(&broker.shared, &refusal, None);
    }
    let Some(base) = base else {
        let text = "The broker does not know its address. Set auth.resource.";
        return HtmlPage::new("Not available").text(text).respond(StatusCode::NOT_FOUND);
    };
    let visit = Visit { broker, base: &base, head: &head, remote };
    let answer = match (head.method.clone(), head.uri.path()) {
        (HttpMethod::GET, CLIENT_METADATA_PATH) => {
            response::json(StatusCode::OK, client_metadata(&base, None).to_string().into())
        }
        (HttpMethod::GET, KEY_SET_PATH) => visit.key_set().await,
        (HttpMethod::GET, path) if is_callback(path) => visit.callback(path).await,
        (_, path) if is_callback(path) => not_allowed(),
        (_, CLIENT_METADATA_PATH | KEY_SET_PATH) => not_allowed(),
        (HttpMethod::GET, path) if path.starts_with(OAUTH) => visit.client_with_keys(path),
        (HttpMethod::GET, path) => visit.show(path).await,
        (HttpMethod::POST, path) => {
            let time = broker.shared.config.timeouts.request_read;
            match super::body::read_body(body, CONNECT_FORM_BYTES_MAX, time).await {
                Ok(form) => visit.submit(path, &form).await,
                Err(refusal) => response::refusal_response(&broker.shared, &refusal, None),
            }
        }
        _ => not_allowed(),
    };
    page::protect(answer)
}

fn not_allowed() -> Response<Body> {
    HtmlPage::new("Not available")
        .text("This page does not support this request method.")
        .respond(StatusCode::METHOD_NOT_ALLOWED)
}

/// Returns a parameter in the encoding of forms.
fn parameter(text: &str, name: &str) -> Option<String> {
    let mut pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(found, _)| *found == name).and_then(|(_, value)| form_decoded(value))
}

/// One request of a browser.
struct Visit<'v> {
    broker: &'v Arc<Broker>,
    base: &'v str,
    head: &'v HeadParts,
    remote: RemotePeer,
}

impl Visit<'_> {
    fn cookies(&self) -> Cookies<'_> {
        Cookies { base: self.base, headers: &self.head.headers }
    }

    fn seal(&self) -> &SealKey {
        &self.broker.shared.persistence.seal
    }

    /// Returns the right to sign a browser in. `None`: the process is overloaded, or too many
    /// browsers sign in at the same time.
    fn login_permit(&self, issuer: &str) -> Option<LoginPermit> {
        self.broker.shared.limiters.overload.admits().ok()?;
        self.broker.login_permit(issuer)
    }

    /// Counts a failed sign-in of a browser. Returns `Some` wait if its address has failed too often.
    fn login_failed(&self) -> Option<Duration> {
        let (plane, reason) = (Plane::Data, SignInFailureReason::Login);
        self.broker.sign_in_failed(plane, reason, self.remote.address)
    }

    async fn person(&self) -> Option<Person> {
        person::of(self.broker, &self.cookies(), self.head, self.remote).await
    }

    /// Returns the tokens of a backend that the person may use.
    fn tokens(&self, person: &Person, backend: &str) -> Option<Arc<UserTokens>> {
        let backend = BackendId::parse(backend).ok()?;
        let tenant = self.broker.tenant(&person.tenant)?;
        let backend = tenant.backend(&backend).filter(|one| person.may_use(&tenant, &one.id))?;
        backend.tokens.as_ref()?.user().cloned()
    }

    /// Serves the metadata of the client that signs with a tenant's keys.
    fn client_with_keys(&self, path: &str) -> Response<Body> {
        match tenant_of_metadata(path).and_then(|name| self.tenant_with_keys(&name)) {
            Some(tenant) => {
                let metadata = client_metadata(self.base, Some(&tenant.id));
                response::json(StatusCode::OK, metadata.to_string().into())
            }
            None => unknown(),
        }
    }

    /// Returns a tenant whose backends use keys of the broker.
    fn tenant_with_keys(&self, name: &TenantId) -> Option<Arc<Tenant>> {
        let uses_keys = |tenant: &Arc<Tenant>| {
            tenant.enabled() && tenant.backends().iter().any(|one| one.spec.auth.has_own_key())
        };
        self.broker.tenant(name).filter(uses_keys)
    }

    /// Serves the public keys of a tenant. One whose backends use none looks like an unknown one.
    async fn key_set(&self) -> Response<Body> {
        let query = self.head.uri.query().unwrap_or_default();
        let name = parameter(query, "tenant").unwrap_or_else(|| DEFAULT_TENANT.to_owned());
        let tenant = TenantId::parse(&name).ok().and_then(|name| self.tenant_with_keys(&name));
        let Some(tenant) = tenant else { return unknown() };
        match self.broker.shared.oauth.client_keys.key_set(&tenant.id).await {
            Ok(keys) => response::json(StatusCode::OK, keys.to_string().into()),
            Err(error) => {
                tracing::warn!(%error, "the broker cannot read its client keys");
                response::empty(StatusCode::SERVICE_UNAVAILABLE)
            }
        }
    }

    async fn show(&self, path: &str) -> Response<Body> {
        let query = self.head.uri.query().unwrap_or_default();
        if let Some(link) = parameter(query, "link") {
            let text = "Continue only if you asked for this link yourself.";
            return HtmlPage::new("Sign in")
                .text(text)
                .form(CONNECT, &[("link", &link)], "Sign in")
                .respond(StatusCode::OK);
        }
        let Some(person) = self.person().await else { return self.signed_out(path) };
        match path.strip_prefix(CONNECT).unwrap_or_default().trim_start_matches('/') {
            "" => self.overview(&person).await,
            backend => self.consent(&person, backend).await,
        }
    }

    async fn overview(&self, person: &Person) -> Response<Body> {
        let tenant = self.broker.tenant(&person.tenant);
        let mut page = HtmlPage::new("Your connections").text(&person.introduction());
        let mut backends = tenant.as_ref().map(|tenant| tenant.backends()).unwrap_or_default();
        backends
            .retain(|one| tenant.as_ref().is_some_and(|tenant| person.may_use(tenant, &one.id)));
        backends.sort_by(|one, other| one.id.cmp(&other.id));
        for backend in backends {
            let Some(tokens) = backend.tokens.as_ref().and_then(|tokens| tokens.user()) else {
                continue;
            };
            let state = match tokens.connection(&person.principal).await {
                Ok(Some(grant)) => grant.record.state.name(),
                Ok(None) => "not connected",
                Err(_) => "unknown",
            };
            let name = backend.id.as_str();
            page = page.link(&format!("{CONNECT}/{name}"), &format!("{name}: {state}"));
        }
        page.respond(StatusCode::OK)
    }

    async fn consent(&self, person: &Person, backend: &str) -> Response<Body> {
        let Some(tokens) = self.tokens(person, backend) else { return unknown() };
        let (issuer, scopes) = match tokens.consent(&person.principal).await {
            Ok(found) => found,
            Err(error) => return self.failed(&person.tenant, backend, &error),
        };
        let browser = self.cookies().browser().unwrap_or_else(random_text);
        let proof = form_proof(&browser, Some(person));
        let path = format!("{CONNECT}/{backend}");
        let mut page = HtmlPage::new(&format!("Connect {backend}"))
            .text(&person.introduction())
            .text(&format!("The broker will use your account at {issuer} when you use {backend}."));
        if !scopes.is_empty() {
            page = page.text(&format!("It asks for: {}", scopes.join(", ")));
        }
        let text = "Continue only if you came here from your own client.";
        page = page.text(text).form(&path, &[("proof", &proof), ("server", &issuer)], "Connect");
        if let Ok(Some(_)) = tokens.connection(&person.principal).await {
            page = page.form(&path, &[("proof", &proof), ("action", "end")], "End the connection");
        }
        let mut answer = page.respond(StatusCode::OK);
        answer.headers_mut().append(SET_COOKIE, self.cookies().set_browser(&browser));
        answer
    }

    async fn submit(&self, path: &str, form: &Bytes) -> Response<Body> {
        let form = String::from_utf8_lossy(form);
        if let Some(link) = parameter(&form, "link") {
            return self.sign_in(&link).await;
        }
        if let Some(issuer) = parameter(&form, "issuer") {
            return self.start_sign_in(&issuer, &form).await;
        }
        let Some(person) = self.person().await else { return self.signed_out(path) };
        let backend = path.strip_prefix(CONNECT).unwrap_or_default().trim_start_matches('/');
        let Some(tokens) = self.tokens(&person, backend) else { return unknown() };
        let browser = self.cookies().browser();
        let proven = browser.filter(|browser| {
            let proof = form_proof(browser, Some(&person));
            parameter(&form, "proof").is_some_and(|given| given == proof)
        });
        let Some(browser) = proven else {
            let text = "The form has expired or belongs to another page. Open the page again.";
            return HtmlPage::new("Not accepted").text(text).respond(StatusCode::FORBIDDEN);
        };
        let tenant = self.broker.tenant(&person.tenant);
        if let Some(Err(refusal)) = tenant.map(|tenant| tenant.take_budget(&person.principal)) {
            let text = "Your client and you sent too many requests. Try again later.";
            let page = HtmlPage::new("Not now").text(text).respond(StatusCode::TOO_MANY_REQUESTS);
            return retry_after(page, refusal.retry_after.unwrap_or_default());
        }
        if parameter(&form, "action").as_deref() == Some("end") {
            return match tokens.disconnect(&person.principal).await {
                Ok(_) => {
                    HtmlPage::new("The connection has ended").text(backend).respond(StatusCode::OK)
                }
                Err(error) => self.failed(&person.tenant, backend, &error),
            };
        }
        let shown = parameter(&form, "server");
        match tokens.start(&person.principal, &browser, shown.as_deref()).await {
            Ok(Some(address)) => redirect(&address),
            // The person has to see the other server first.
            Ok(None) => self.consent(&person, backend).await,
            Err(error) => self.failed(&person.tenant, backend, &error),
        }
    }

    /// Signs the browser in with a one-time link.
    async fn sign_in(&self, link: &str) -> Response<Body> {
        if self.broker.shared.limiters.overload.admits().is_err() {
            return busy();
        }
        let connections = Connections::new(self.broker.shared.persistence.clone());
        // A link of the broker always works. With other texts, an address that failed too often
        // causes no further reads of the database.
        if !connections.is_own_link(link)
            && let Err(refusal) = self.broker.check_address(self.remote)
        {
            return too_many(refusal.retry_after);
        }
        match connections.take_link(link).await {
            Ok(link) => {
                if let Some((login, backend)) = link.and_then(|(tenant, link)| {
                    let tenant = self.broker.tenant(&tenant)?;
                    let login = Login::of_principal(&tenant, &link.principal, link.created_at_us);
                    Some((login, link.backend))
                }) && login.is_valid(self.broker)
                {
                    let cookie = self.cookies().set_login(self.seal(), login);
                    return with_cookie(redirect(&format!("{CONNECT}/{backend}")), cookie);
                }
                let text =
                    "The link was already used or has expired. Ask your operator for another link.";
                let page = HtmlPage::new("The link is not valid").text(text);
                let wait = self.login_failed();
                wait.map_or_else(
                    || page.respond(StatusCode::FORBIDDEN),
                    |wait| too_many(Some(wait)),
                )
            }
            Err(error) => self.failed_login(&error),
        }
    }

    /// Answers a failed login at the broker.
    fn failed_login(&self, error: &OauthError) -> Response<Body> {
        if let Some(left_out) = self.broker.attempt_line() {
            tracing::warn!(%error, left_out, "a person could not log in at the connect page");
        }
        not_connected(error)
    }

    /// Answers a failed step of a connection to a tenant's backend. The error may have text of the
    /// authorization server.
    fn failed(&self, tenant: &TenantId, backend: &str, error: &OauthError) -> Response<Body> {
        let known = BackendId::parse(backend).ok();
        let found = self.broker.tenant(tenant).zip(known).and_then(|(of, id)| of.backend(&id));
        let redactor = found.map(|found| found.redactor.clone()).unwrap_or_default();
        if *error == OauthError::Declined {
            tracing::info!(%tenant, backend, "a person declined to connect an account");
        } else {
            let redacted = redactor.redact(error);
            tracing::warn!(%tenant, backend, error = redacted, "an account could not be connected");
        }
        not_connected(error)
    }
}

/// Returns the proof that a form came from a page of this browser. A form of one person counts for
/// this person alone.
fn form_proof(browser: &str, person: Option<&Person>) -> String {
    let of = person.map(|Person { tenant, principal, .. }| (tenant.as_str(), principal.as_str()));
    let (tenant, principal) = of.unwrap_or_default();
    digest_of(&format!("form {browser} {tenant} {principal}"))
}

fn redirect(address: &str) -> Response<Body> {
    let mut answer = response::empty(StatusCode::SEE_OTHER);
    match address.parse() {
        Ok(address) => {
            answer.headers_mut().insert(LOCATION, address);
            answer
        }
        Err(_) => unknown(),
    }
}

fn with_cookie(mut answer: Response<Body>, cookie: Option<HeaderValue>) -> Response<Body> {
    if let Some(cookie) = cookie {
        answer.headers_mut().append(SET_COOKIE, cookie);
    }
    answer
}

/// Returns the page for a browser that has to come back in a moment.
fn busy() -> Response<Body> {
    let text = "Too many people sign in at the moment. Try again in a few seconds.";
    let page = HtmlPage::new("Busy").text(text).respond(StatusCode::SERVICE_UNAVAILABLE);
    retry_after(page, LIMIT_RETRY_AFTER)
}

/// Returns the page for an address with too many failed sign-ins.
fn too_many(wait: Option<Duration>) -> Response<Body> {
    let text = "Too many sign-ins of your address have failed within a minute. Try again later.";
    let page = HtmlPage::new("Not signed in").text(text).respond(StatusCode::TOO_MANY_REQUESTS);
    retry_after(page, wait.unwrap_or_default())
}

fn retry_after(mut page: Response<Body>, wait: Duration) -> Response<Body> {
    page.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait.as_secs() + 1));
    page
}

fn unknown() -> Response<Body> {
    HtmlPage::new("Nothing here")
        .text("No backend with accounts has this name.")
        .respond(StatusCode::NOT_FOUND)
}

fn not_connected(error: &OauthError) -> Response<Body> {
    let (title, text, status) = match error {
        OauthError::StoreUnavailable(_) => {
            let text = "The database of the broker does not answer. Try again in a few seconds.";
            let page = HtmlPage::new("Not now").text(text).respond(StatusCode::SERVICE_UNAVAILABLE);
            return retry_after(page, LIMIT_RETRY_AFTER);
        }
        OauthError::Declined => (
            "Not connected",
            "The request was declined at the authorization server. Nothing was changed.",
            StatusCode::FORBIDDEN,
        ),
        _ => (
            "Not connected",
            "The authorization server did not let the broker connect the account. Nothing was changed. The log of the broker has the reason.",
            StatusCode::BAD_GATEWAY,
        ),
    };
    HtmlPage::new(title).text(text).respond(status)
}
