//! The person at the browser: signed in by a one-time link, or without a credential where the
//! broker demands none.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
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
};

const PLACE: &str = "connect login";

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
    /// Seconds since 1970.
    until: u64,
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
    if let Some(person) = cookies.login(&broker.shared.durable.seal) {
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
        let sealed = URL_SAFE_NO_PAD.decode(self.get("login")?).ok()?;
        let login: Login = serde_json::from_slice(&seal.open(PLACE, &sealed).ok()?).ok()?;
        let tenant = TenantId::parse(&login.tenant).ok()?;
        (login.until > now()).then(|| Person::new(tenant, &login.principal))
    }

    pub(super) fn set_login(&self, seal: &SealKey, person: &Person) -> Option<HeaderValue> {
        let login = Login {
            tenant: person.tenant.to_string(),
            principal: person.principal.as_str().to_owned(),
            until: now() + CONNECT_LOGIN_LIFE.as_secs(),
        };
        let sealed = seal.seal(PLACE, &serde_json::to_vec(&login).ok()?).ok()?;
        let text = URL_SAFE_NO_PAD.encode(sealed);
        Some(self.set("login", &text, CONNECT_LOGIN_LIFE.as_secs()))
    }
}

fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}
