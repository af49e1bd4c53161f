//! The person at the browser: signed in by a one-time link, or without a credential where the
//! broker demands none.

use std::sync::Arc;

use http::{
    HeaderMap, HeaderValue,
    header::{AUTHORIZATION, COOKIE},
    request::Parts as HeadParts,
};
use protocol::ids::{BackendId, PrincipalId, TenantId};
use rules::{
    access::{Subject, SubjectAttributes},
    limits::oauth::{CONNECT_LOGIN_BYTES_MAX, CONNECT_LOGIN_LIFE, CONNECT_REQUEST_LIFE},
};
use serde::{Deserialize, Serialize};

use crate::{
    auth::{ANONYMOUS, RemotePeer, SealKey},
    broker::Broker,
    listeners::http::authenticate::authenticate,
    oauth::PendingSignIn,
    sessions::tenant::Tenant,
};

const SEAL_CONTEXT: &str = "connect login";
const PENDING_SEAL_CONTEXT: &str = "connect sign-in that is pending at an issuer";

/// Tenant and principal of a browser.
pub(super) struct Person {
    pub(super) tenant: TenantId,
    pub(super) principal: PrincipalId,
    /// What access rules see of the person.
    pub(super) subject: Arc<Subject>,
}

/// A login as the cookie holds it, sealed.
#[derive(Serialize, Deserialize)]
pub(super) struct Login {
    tenant: TenantId,
    /// Tells the tenant from a later one of the same name.
    tenant_created_at_us: i64,
    principal: PrincipalId,
    /// `None`: unknown.
    groups: Option<Vec<String>>,
    /// By the clock of the store, as the times of revocations.
    issued_at_us: i64,
    /// The issuer that has named the person. `None`: a one-time link has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
}

impl Login {
    /// Returns the login of a principal of whom nothing more is known.
    pub(super) fn of_principal(tenant: &Tenant, principal: &str, issued_at_us: i64) -> Self {
        Self {
            tenant: tenant.id.clone(),
            tenant_created_at_us: tenant.generation.us(),
            principal: PrincipalId::new(principal),
            groups: None,
            issued_at_us,
            issuer: None,
        }
    }

    /// Returns the login of a person whom an issuer has named.
    pub(super) fn of_subject(
        tenant: &Tenant,
        subject: &Subject,
        issuer: String,
        issued_at_us: i64,
    ) -> Self {
        let groups = SubjectAttributes::of_subject(subject).groups;
        let principal = subject.principal.as_str();
        let issuer = Some(issuer);
        Self { groups, issuer, ..Self::of_principal(tenant, principal, issued_at_us) }
    }

    /// Returns whether the tenant and the principal are still those of the login, and its issuer may
    /// still name people of the tenant.
    pub(super) fn is_valid(&self, broker: &Broker) -> bool {
        let Self { tenant, tenant_created_at_us, principal, issued_at_us, issuer, .. } = self;
        let may_name = |issuer: &String| {
            let issuers = broker.sign_in_issuers();
            issuers.iter().any(|known| known.issuer == *issuer && known.can_name(tenant))
        };
        issuer.as_ref().is_none_or(may_name)
            && broker.accepts_login(tenant, *tenant_created_at_us, principal, *issued_at_us)
    }

    /// Returns the person, if the login is still valid.
    fn person(self, broker: &Broker) -> Option<Person> {
        self.is_valid(broker).then(|| {
            let Self { tenant, principal, groups, .. } = self;
            let attributes = SubjectAttributes { groups, ..SubjectAttributes::default() };
            let subject = Arc::new(attributes.subject(principal.clone(), None));
            Person { tenant, principal, subject }
        })
    }
}

impl Person {
    /// Returns whether the policy permits the person to use a backend. A rule that needs an
    /// attribute which is unknown here denies it, unless an open session of the person has it.
    pub(super) fn may_use(&self, tenant: &Tenant, backend: &BackendId) -> bool {
        let sessions = || tenant.sessions_of(&self.principal).into_iter();
        tenant.may_use_backend(&self.subject, backend)
            || sessions().any(|session| tenant.may_use_backend(&session.subject(), backend))
    }

    /// Returns a sentence that shows who is signed in.
    pub(super) fn introduction(&self) -> String {
        match self.principal.as_str() {
            ANONYMOUS => {
                "This broker has no sign-in: all its users share one connection.".to_owned()
            }
            principal => format!("You are signed in as {principal}."),
        }
    }
}

/// Returns the person of a request, by its cookie. Without one, a caller whom the broker accepts
/// without a credential.
pub(super) async fn of(
    broker: &Broker,
    cookies: &Cookies<'_>,
    head: &HeadParts,
    remote: RemotePeer,
) -> Option<Person> {
    let login = cookies.login(&broker.shared.persistence.seal);
    if let Some(person) = login.and_then(|login| login.person(broker)) {
        return Some(person);
    }
    if head.headers.contains_key(AUTHORIZATION) {
        return None;
    }
    let caller = authenticate(broker, head, remote).await.ok()?.caller;
    let is_nameless = caller.principal.as_str() == ANONYMOUS;
    is_nameless.then_some(Person {
        tenant: caller.tenant,
        principal: caller.principal,
        subject: caller.subject,
    })
}

/// Cookies of a request.
pub(super) struct Cookies<'c> {
    pub(super) base: &'c str,
    pub(super) headers: &'c HeaderMap,
}

impl Cookies<'_> {
    fn is_secure(&self) -> bool {
        self.base.starts_with("https://")
    }

    /// Returns the name of a cookie, which binds it to this host where browsers support that.
    fn name(&self, name: &str) -> String {
        let prefix = if self.is_secure() { "__Host-" } else { "" };
        format!("{prefix}mcp-broker-{name}")
    }

    fn get(&self, name: &str) -> Option<&str> {
        let name = self.name(name);
        let texts = self.headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs =
            texts.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    fn set(&self, name: &str, value: &str, seconds: u64) -> HeaderValue {
        let secure = if self.is_secure() { "; Secure" } else { "" };
        let name = self.name(name);
        let text =
            format!("{name}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={seconds}{secure}");
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
    }

    /// Returns the random text that names the browser.
    pub(super) fn browser(&self) -> Option<String> {
        self.get("browser").filter(|text| text.len() >= 32).map(str::to_owned)
    }

    pub(super) fn set_browser(&self, text: &str) -> HeaderValue {
        self.set("browser", text, CONNECT_REQUEST_LIFE.as_secs())
    }

    fn login(&self, seal: &SealKey) -> Option<Login> {
        seal.open_unexpired(SEAL_CONTEXT, self.get("login")?)
    }

    /// Returns the cookie of a login. Groups that a cookie cannot hold become unknown.
    pub(super) fn set_login(&self, seal: &SealKey, login: Login) -> Option<HeaderValue> {
        let sealed =
            |login: &Login| seal.seal_for_a_while(SEAL_CONTEXT, login, CONNECT_LOGIN_LIFE).ok();
        let mut text = sealed(&login)?;
        if text.len() > CONNECT_LOGIN_BYTES_MAX {
            text = sealed(&Login { groups: None, ..login })?;
        }
        Some(self.set("login", &text, CONNECT_LOGIN_LIFE.as_secs()))
    }

    /// Returns the sign-in of this browser that an answer with this `state` belongs to.
    pub(super) fn sign_in(&self, seal: &SealKey, state: &str) -> Option<PendingSignIn> {
        let sealed = self.get(&pending_name(state))?;
        let pending: PendingSignIn = seal.open_unexpired(PENDING_SEAL_CONTEXT, sealed)?;
        (pending.state() == state).then_some(pending)
    }

    /// Returns whether a sign-in has the cookie that one with this `state` would have.
    pub(super) fn has_sign_in(&self, state: &str) -> bool {
        self.get(&pending_name(state)).is_some_and(|cookie| !cookie.is_empty())
    }

    pub(super) fn set_sign_in(
        &self,
        seal: &SealKey,
        pending: &PendingSignIn,
    ) -> Option<HeaderValue> {
        let life = CONNECT_REQUEST_LIFE;
        let text = seal.seal_for_a_while(PENDING_SEAL_CONTEXT, pending, life).ok()?;
        Some(self.set(&pending_name(pending.state()), &text, life.as_secs()))
    }

    /// Returns the cookie that removes a sign-in.
    pub(super) fn forget_sign_in(&self, state: &str) -> HeaderValue {
        self.set(&pending_name(state), "", 0)
    }
}

/// Returns the name of the cookie of a sign-in. Pages in several tabs of a browser can sign in at the
/// same time, and all their cookies fit into a request.
fn pending_name(state: &str) -> String {
    let slot = state.chars().find(char::is_ascii_alphanumeric).unwrap_or('0');
    format!("sign-in-{}", slot.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Keys, unix_seconds};

    const SECURE: &str = "https://mcp.example.com";
    const LOOPBACK: &str = "http://127.0.0.1:8080";

    fn ann() -> Login {
        Login {
            tenant: TenantId::parse("acme").unwrap(),
            tenant_created_at_us: 1,
            principal: PrincipalId::new("ann"),
            groups: Some(vec!["staff".to_owned()]),
            issued_at_us: 2,
            issuer: Some("https://login.example".to_owned()),
        }
    }

    fn opened(base: &str, cookie: &str, seal: &SealKey) -> Option<Login> {
        let headers = HeaderMap::from_iter([(COOKIE, cookie.parse().unwrap())]);
        Cookies { base, headers: &headers }.login(seal)
    }

    /// Returns the person that a request with this cookie comes from.
    fn person(base: &str, cookie: &str, seal: &SealKey) -> Option<(String, String)> {
        let login = opened(base, cookie, seal)?;
        Some((login.tenant.to_string(), login.principal.as_str().to_owned()))
    }

    #[test]
    fn groups_that_do_not_fit_into_a_cookie_are_unknown() {
        let seal = Keys::from_root(b"root").seal;
        let cookies = Cookies { base: SECURE, headers: &HeaderMap::new() };
        let groups = |groups: Vec<String>| {
            let login = Login { groups: Some(groups), ..ann() };
            let set = cookies.set_login(&seal, login).unwrap();
            let sent = set.to_str().unwrap().split(';').next().unwrap();
            assert!(sent.len() < 4096, "{}", sent.len());
            opened(SECURE, sent, &seal).unwrap().groups
        };
        assert_eq!(groups(vec!["staff".to_owned()]), Some(vec!["staff".to_owned()]));
        assert_eq!(groups(vec!["x".repeat(40); 100]), None);
    }

    #[test]
    fn every_cookie_is_for_this_host_and_hidden_from_scripts() {
        let seal = Keys::from_root(b"root").seal;
        for (base, is_tls) in [(SECURE, true), (LOOPBACK, false)] {
            let cookies = Cookies { base, headers: &HeaderMap::new() };
            for set in [
                cookies.set_browser("x"),
                cookies.set_login(&seal, ann()).unwrap(),
                cookies.set_sign_in(&seal, &pending("~.s")).unwrap(),
                cookies.forget_sign_in("~.s"),
            ] {
                let text = set.to_str().unwrap();
                let parts: Vec<&str> = text.split("; ").skip(1).collect();
                // The page of an authorization server leads the browser back.
                for part in ["Path=/", "HttpOnly", "SameSite=Lax"] {
                    assert!(parts.contains(&part), "{text} has no {part}");
                }
                assert_eq!(parts.contains(&"Secure"), is_tls, "{text}");
                assert_eq!(text.starts_with("__Host-"), is_tls, "{text}");
                assert!(!text.contains("Domain"), "{text}");
            }
        }
    }

    fn pending(state: &str) -> PendingSignIn {
        let pending = serde_json::json!({
            "issuer": "i", "state": state, "redirect_uri": "r", "nonce": "n", "verifier": "v", "sends_issuer": false, "backend": "b",
        });
        serde_json::from_value(pending).unwrap()
    }

    #[test]
    fn a_pending_sign_in_opens_for_its_state_until_it_expires() {
        let seal = Keys::from_root(b"root").seal;
        let opens = |cookie: &str, state: &str, seal: &SealKey| {
            let headers = HeaderMap::from_iter([(COOKIE, cookie.parse().unwrap())]);
            Cookies { base: SECURE, headers: &headers }.sign_in(seal, state).is_some()
        };
        let none = HeaderMap::new();
        let set = Cookies { base: SECURE, headers: &none }.set_sign_in(&seal, &pending("~.sA"));
        let set = set.unwrap();
        let sent = set.to_str().unwrap().split(';').next().unwrap();
        assert!(opens(sent, "~.sA", &seal));
        assert!(
            !opens(sent, "~.sB", &seal) && !opens(sent, "~.xA", &seal) && !opens(sent, "", &seal)
        );
        assert!(!opens(sent, "~.sA", &Keys::from_root(b"toor").seal));
        assert!(!opens(&sent.replace("__Host-", ""), "~.sA", &seal));
        let until = |until: u64, context: &str| {
            let text = serde_json::to_vec(&(until, pending("~.sA"))).unwrap();
            let sealed = seal.seal_for_client(context, &text).unwrap();
            opens(&format!("__Host-mcp-broker-sign-in-s={sealed}"), "~.sA", &seal)
        };
        assert!(
            until(unix_seconds() + 60, PENDING_SEAL_CONTEXT)
                && !until(unix_seconds() - 1, PENDING_SEAL_CONTEXT)
        );
        assert!(!until(unix_seconds() + 60, SEAL_CONTEXT));
    }

    #[test]
    fn a_login_opens_only_with_its_secret_and_name_until_it_expires() {
        let seal = Keys::from_root(b"root").seal;
        let cookies = Cookies { base: SECURE, headers: &HeaderMap::new() };
        let set = cookies.set_login(&seal, ann()).unwrap();
        let sent = set.to_str().unwrap().split(';').next().unwrap();
        let known = Some(("acme".to_owned(), "ann".to_owned()));
        assert_eq!(person(SECURE, sent, &seal), known);
        assert_eq!(person(SECURE, sent, &Keys::from_root(b"toor").seal), None);
        assert_eq!(person(SECURE, &sent.replace("__Host-", ""), &seal), None);
        let ended = |until: u64| {
            let text = serde_json::to_vec(&(until, ann())).unwrap();
            let sealed = seal.seal_for_client(SEAL_CONTEXT, &text).unwrap();
            person(SECURE, &format!("__Host-mcp-broker-login={sealed}"), &seal)
        };
        assert_eq!((ended(unix_seconds() + 60), ended(unix_seconds() - 1)), (known, None));
    }
}
