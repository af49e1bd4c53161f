//! The person at the browser: signed in by a one-time link, or without a credential where the
//! broker demands none.

use http::{
    HeaderMap, HeaderValue,
    header::{AUTHORIZATION, COOKIE},
    request::Parts as HeadParts,
};
use protocol::ids::{PrincipalId, TenantId};
use rules::limits::oauth::{CONNECT_LOGIN_LIFE, CONNECT_REQUEST_LIFE};
use serde::{Deserialize, Serialize};

use crate::{
    auth::{ANONYMOUS, RemotePeer, SealKey},
    broker::Broker,
    listeners::http::authenticate::authenticate,
    oauth::PendingSignIn,
};

const SEAL_CONTEXT: &str = "connect login";
const PENDING_SEAL_CONTEXT: &str = "connect sign-in that is pending at an issuer";

/// Tenant and principal of a browser.
pub(super) struct Person {
    pub(super) tenant: TenantId,
    pub(super) principal: PrincipalId,
}

/// A login as the cookie holds it, sealed.
#[derive(Serialize, Deserialize)]
struct Login {
    tenant: String,
    principal: String,
}

impl Person {
    pub(super) fn new(tenant: TenantId, principal: &str) -> Self {
        Self { tenant, principal: PrincipalId::new(principal) }
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
    if let Some(person) = cookies.login(&broker.shared.persistence.seal) {
        return Some(person);
    }
    if head.headers.contains_key(AUTHORIZATION) {
        return None;
    }
    let caller = authenticate(broker, head, remote).await.ok()?.caller;
    let is_nameless = caller.principal.as_str() == ANONYMOUS;
    is_nameless.then_some(Person { tenant: caller.tenant, principal: caller.principal })
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

    fn login(&self, seal: &SealKey) -> Option<Person> {
        let login: Login = seal.open_unexpired(SEAL_CONTEXT, self.get("login")?)?;
        Some(Person::new(TenantId::parse(&login.tenant).ok()?, &login.principal))
    }

    pub(super) fn set_login(&self, seal: &SealKey, person: &Person) -> Option<HeaderValue> {
        let login = Login {
            tenant: person.tenant.to_string(),
            principal: person.principal.as_str().to_owned(),
        };
        let text = seal.seal_for_a_while(SEAL_CONTEXT, &login, CONNECT_LOGIN_LIFE).ok()?;
        Some(self.set("login", &text, CONNECT_LOGIN_LIFE.as_secs()))
    }

    /// Returns the sign-in of this browser that an answer with this `state` belongs to.
    pub(super) fn sign_in(&self, seal: &SealKey, state: &str) -> Option<PendingSignIn> {
        let sealed = self.get(&pending_name(state))?;
        let pending: PendingSignIn = seal.open_unexpired(PENDING_SEAL_CONTEXT, sealed)?;
        (pending.state() == state).then_some(pending)
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

    fn ann() -> Person {
        Person::new(TenantId::parse("acme").unwrap(), "ann")
    }

    /// Returns the person that a request with this cookie comes from.
    fn person(base: &str, cookie: &str, seal: &SealKey) -> Option<(String, String)> {
        let headers = HeaderMap::from_iter([(COOKIE, cookie.parse().unwrap())]);
        let person = Cookies { base, headers: &headers }.login(seal)?;
        Some((person.tenant.to_string(), person.principal.as_str().to_owned()))
    }

    #[test]
    fn every_cookie_is_for_this_host_and_hidden_from_scripts() {
        let seal = Keys::from_root(b"root").seal;
        for (base, is_tls) in [(SECURE, true), (LOOPBACK, false)] {
            let cookies = Cookies { base, headers: &HeaderMap::new() };
            for set in [
                cookies.set_browser("x"),
                cookies.set_login(&seal, &ann()).unwrap(),
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
        let set = cookies.set_login(&seal, &ann()).unwrap();
        let sent = set.to_str().unwrap().split(';').next().unwrap();
        let known = Some(("acme".to_owned(), "ann".to_owned()));
        assert_eq!(person(SECURE, sent, &seal), known);
        assert_eq!(person(SECURE, sent, &Keys::from_root(b"toor").seal), None);
        assert_eq!(person(SECURE, &sent.replace("__Host-", ""), &seal), None);
        let ended = |until: u64| {
            let login = Login { tenant: "acme".to_owned(), principal: "ann".to_owned() };
            let text = serde_json::to_vec(&(until, login)).unwrap();
            let sealed = seal.seal_for_client(SEAL_CONTEXT, &text).unwrap();
            person(SECURE, &format!("__Host-mcp-broker-login={sealed}"), &seal)
        };
        assert_eq!((ended(unix_seconds() + 60), ended(unix_seconds() - 1)), (known, None));
    }
}
