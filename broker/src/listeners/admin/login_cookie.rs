//! The login of a browser at the console: the operator's token in a cookie, sealed with the root secret.
//!
//! Every replica opens it and verifies the token as one that was sent in `Authorization`. A revoked
//! operator's login ends with the token, and a login that its operator ended is stored as such.
//! Invariants:
//! - A request with the cookie counts only if a page of this origin sent it.
//! - The cookie is sent over TLS only, or to a loopback name.
//! - A cookie reaches every port of its host. It counts only with the key of the page that signed
//!   in, which browsers keep apart by port.
//! - The clocks of replicas may differ by the life of a login. A cookie counts for twice that life at
//!   most, and an ended login counts at no replica again.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, uri::Authority};
use config::private_url::is_loopback_host;
use rules::limits::{
    console::{CONSOLE_COOKIE_BYTES_MAX, CONSOLE_LOGIN_LIFE, PAGE_KEY_BYTES_MIN},
    oauth::CONNECT_REQUEST_LIFE,
};
use serde::{Deserialize, Serialize};

use super::problem::Problem;
use crate::{
    auth::{SealKey, unix_seconds},
    oauth::{StartedLogin, digest_of, random_text},
};

/// Name over TLS. The prefix binds the cookie to this host and to TLS.
const SECURE_NAME: &str = "__Host-mcp-broker";
/// Name without TLS, to a loopback name only.
const LOOPBACK_NAME: &str = "mcp-broker";
/// The page sets it to its key on every request. Another site's page cannot, without a preflight
/// (CORS), and does not know the key.
const CONSOLE: HeaderName = HeaderName::from_static("mcp-broker-console");
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Seal context: text that the cipher authenticates.
const SEAL_CONTEXT: &str = "console login";

/// Names and seal context of a login that is pending at an issuer.
const SECURE_PENDING: &str = "__Host-mcp-broker-begun";
const LOOPBACK_PENDING: &str = "mcp-broker-begun";
const PENDING_SEAL_CONTEXT: &str = "console login at an issuer";

/// A login as the cookie holds it, sealed.
#[derive(Serialize, Deserialize)]
pub(super) struct ConsoleLogin {
    /// Name of the login, by which its end is stored.
    pub(super) id: String,
    pub(super) token: String,
    /// Digest of the key of the page.
    page: String,
    /// Seconds since 1970, by the clock of the replica at which the operator signed in.
    until: u64,
}

impl ConsoleLogin {
    /// Returns a new login. `page` is the digest of the key of its page.
    pub(super) fn new(token: &str, page: String) -> Self {
        Self {
            id: random_text(),
            token: token.to_owned(),
            page,
            until: unix_seconds() + CONSOLE_LOGIN_LIFE.as_secs(),
        }
    }

    /// Returns the time for which some replica may still accept the cookie.
    pub(super) fn remaining_time(&self) -> Duration {
        Duration::from_secs(self.until.saturating_sub(unix_seconds())) + CONSOLE_LOGIN_LIFE
    }

    /// Returns whether the login is within its life. A cookie of a replica whose clock was far ahead
    /// is not.
    fn is_live(&self) -> bool {
        let latest = CONSOLE_LOGIN_LIFE * 2;
        (1..=latest.as_secs()).contains(&self.until.saturating_sub(unix_seconds()))
    }
}

/// How a browser reaches the console.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BrowserChannel {
    Tls,
    Loopback,
}

impl BrowserChannel {
    /// Returns the channel of a request by which a page signs in or out. Refuses pages of other
    /// origins, and addresses at which others could read the token.
    pub(super) fn of_page(headers: &HeaderMap, host: &Authority) -> Result<Self, Problem> {
        check_page_of_this_origin(headers, host)?;
        let origin = headers.get(header::ORIGIN).map(HeaderValue::as_bytes).unwrap_or_default();
        if origin.starts_with(b"https://") {
            Ok(Self::Tls)
        } else if origin.is_empty() {
            Err(refused("origin-refused", "a login must come from the console's own page")
                .field("Origin"))
        } else if is_loopback_host(host.host()) {
            Ok(Self::Loopback)
        } else {
            let detail = "the console needs HTTPS, or a loopback address: set tls.cert_file, use a proxy with TLS, or forward the port to your machine";
            Err(refused("https-needed", detail).field("Origin"))
        }
    }

    /// Returns the cookie of a new login. Refuses a token that is too long for a cookie.
    pub(super) fn login(
        self,
        seal: &SealKey,
        login: &ConsoleLogin,
    ) -> Result<HeaderValue, Problem> {
        let text = serde_json::to_vec(login).expect("a login is plain texts and a number");
        let internal = || Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "no login");
        let sealed = seal.seal_for_client(SEAL_CONTEXT, &text).map_err(|_| internal())?;
        if sealed.len() > CONSOLE_COOKIE_BYTES_MAX {
            return Err(Problem::invalid("token", "the token is too long for a cookie"));
        }
        self.cookie(&sealed, CONSOLE_LOGIN_LIFE.as_secs()).ok_or_else(internal)
    }

    /// Returns the cookie of a login that is pending at an issuer. The issuer's page redirects the
    /// browser back, so the cookie is not limited to requests of this origin.
    pub(super) fn pending_login(
        self,
        seal: &SealKey,
        started: &StartedLogin,
        page: &str,
    ) -> Result<HeaderValue, Problem> {
        let internal = || Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "no login");
        let life = CONNECT_REQUEST_LIFE;
        let value = seal.seal_for_a_while(PENDING_SEAL_CONTEXT, &(started, page), life);
        self.pending_cookie(&value.map_err(|_| internal())?, life.as_secs()).ok_or_else(internal)
    }

    /// Returns the cookie that removes a pending login.
    pub(super) fn forget_pending(self) -> Option<HeaderValue> {
        self.pending_cookie("", 0)
    }

    fn pending_cookie(self, value: &str, seconds: u64) -> Option<HeaderValue> {
        let (name, secure) = match self {
            Self::Tls => (SECURE_PENDING, "; Secure"),
            Self::Loopback => (LOOPBACK_PENDING, ""),
        };
        let attributes = format!("Path=/; HttpOnly; SameSite=Lax; Max-Age={seconds}{secure}");
        HeaderValue::try_from(format!("{name}={value}; {attributes}")).ok()
    }

    /// Returns the cookie that removes a login.
    pub(super) fn logout(self) -> Option<HeaderValue> {
        self.cookie("", 0)
    }

    fn cookie(self, value: &str, seconds: u64) -> Option<HeaderValue> {
        let (name, secure) = match self {
            Self::Tls => (SECURE_NAME, "; Secure"),
            Self::Loopback => (LOOPBACK_NAME, ""),
        };
        let attributes = format!("Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
        HeaderValue::try_from(format!("{name}={value}; {attributes}")).ok()
    }
}

/// Returns the login of a request. Returns `None` without a valid one.
pub(super) fn login(
    headers: &HeaderMap,
    host: &Authority,
    seal: &SealKey,
) -> Result<Option<ConsoleLogin>, Problem> {
    shown_login(headers, host, seal, ConsoleLogin::is_live)
}

/// Returns the login that a page signs out of. A login that has expired here may still be valid at
/// another replica.
pub(super) fn login_to_end(
    headers: &HeaderMap,
    host: &Authority,
    seal: &SealKey,
) -> Result<Option<ConsoleLogin>, Problem> {
    shown_login(headers, host, seal, |_| true)
}

/// Returns the login of a request that `is_meant`, if its own page sent it.
fn shown_login(
    headers: &HeaderMap,
    host: &Authority,
    seal: &SealKey,
    is_meant: impl Fn(&ConsoleLogin) -> bool,
) -> Result<Option<ConsoleLogin>, Problem> {
    let plain = || cookie(headers, LOOPBACK_NAME).filter(|_| is_loopback_host(host.host()));
    let Some(sealed) = cookie(headers, SECURE_NAME).or_else(plain) else { return Ok(None) };
    let opened = seal.open_from_client(SEAL_CONTEXT, sealed).ok();
    let login = opened.and_then(|text| serde_json::from_slice::<ConsoleLogin>(&text).ok());
    let Some(login) = login.filter(is_meant) else { return Ok(None) };
    check_page_of_this_origin(headers, host)?;
    Ok(Some(login).filter(|login| page_of(headers).is_ok_and(|page| page == login.page)))
}

/// Returns the digest of the key of the page that sent a request.
pub(super) fn page_of(headers: &HeaderMap) -> Result<String, Problem> {
    let key = headers.get(&CONSOLE).and_then(|key| key.to_str().ok()).unwrap_or_default();
    if key.len() < PAGE_KEY_BYTES_MIN {
        let detail = "the console's page is out of date: load it again";
        return Err(refused("page-key-missing", detail).field("mcp-broker-console"));
    }
    Ok(digest_of(key))
}

/// Returns the pending login of this browser, its channel, and the digest of the key of its page.
pub(super) fn pending(
    headers: &HeaderMap,
    host: &Authority,
    seal: &SealKey,
) -> Option<(BrowserChannel, StartedLogin, String)> {
    let plain = || {
        let sealed = cookie(headers, LOOPBACK_PENDING).filter(|_| is_loopback_host(host.host()));
        sealed.map(|sealed| (BrowserChannel::Loopback, sealed))
    };
    let secure = cookie(headers, SECURE_PENDING).map(|sealed| (BrowserChannel::Tls, sealed));
    let (channel, sealed) = secure.or_else(plain)?;
    let (started, page) = seal.open_unexpired(PENDING_SEAL_CONTEXT, sealed)?;
    Some((channel, started, page))
}

/// Refuses a request that a page of this origin did not send. Older browsers send no
/// `Sec-Fetch-Site`, and none sends `Origin` with a GET of its own.
fn check_page_of_this_origin(headers: &HeaderMap, host: &Authority) -> Result<(), Problem> {
    let is_console = headers.get(&CONSOLE).is_some_and(|value| !value.is_empty());
    let site = headers.get(&SEC_FETCH_SITE).map(HeaderValue::as_bytes);
    let is_same_site = site.is_none_or(|site| site == b"same-origin");
    let is_same_origin =
        headers.get(header::ORIGIN).is_none_or(|origin| is_origin_of(origin, host));
    if is_console && is_same_site && is_same_origin {
        return Ok(());
    }
    Err(refused(
        "cross-site",
        "a login is valid only on the console's own page: send a token instead",
    ))
}

/// Returns whether an origin is the host of a request.
pub(super) fn is_origin_of(origin: &HeaderValue, host: &Authority) -> bool {
    let origin = origin.as_bytes();
    let authority = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
    authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host.as_str().as_bytes()))
}

fn refused(kind: &str, detail: &str) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, kind, detail)
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let texts = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs =
        texts.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(found, _)| *found == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Keys;

    const OURS: &str = "ops.example:9090";
    const PAGE: &str = "the-key-of-a-page-of-the-console-0123456789";

    fn new_login(token: &str) -> ConsoleLogin {
        ConsoleLogin::new(token, digest_of(PAGE))
    }

    #[test]
    fn a_cookie_counts_only_with_the_key_of_its_page() {
        let seal = Keys::from_root(b"root").seal;
        let set = BrowserChannel::Loopback.login(&seal, &new_login("mcpo_x")).unwrap();
        let token_with = |key: &str| {
            let sent = headers(&[("cookie", &sent_back(&set)), ("mcp-broker-console", key)]);
            token(&sent, &host("127.0.0.1:9090"), &seal)
        };
        assert_eq!(token_with(PAGE).as_deref(), Some("mcpo_x"));
        // Another port of the host got the cookie, and not the key.
        for key in ["1", "another-key-of-a-page-of-the-console-01234", &digest_of(PAGE)] {
            assert_eq!(token_with(key), None, "{key}");
        }
        assert!(page_of(&headers(&[("mcp-broker-console", "1")])).is_err());
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs.map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    fn host(name: &'static str) -> Authority {
        Authority::from_static(name)
    }

    /// Returns what a browser sends back of a cookie.
    fn sent_back(set: &HeaderValue) -> String {
        set.to_str().unwrap().split(';').next().unwrap().to_owned()
    }

    fn token(headers: &HeaderMap, host: &Authority, seal: &SealKey) -> Option<String> {
        login(headers, host, seal).unwrap().map(|login| login.token)
    }

    #[test]
    fn a_login_cookie_opens_only_with_the_same_root_secret() {
        let seal = Keys::from_root(b"root").seal;
        let set = BrowserChannel::Tls.login(&seal, &new_login("mcpo_x")).unwrap();
        let sent = headers(&[("cookie", &sent_back(&set)), ("mcp-broker-console", PAGE)]);
        assert_eq!(token(&sent, &host(OURS), &seal).as_deref(), Some("mcpo_x"));
        let other = Keys::from_root(b"toor").seal;
        assert_eq!(token(&sent, &host(OURS), &other), None);
        let attributes = set.to_str().unwrap();
        assert!(attributes.starts_with("__Host-mcp-broker="), "{attributes}");
        for attribute in ["; Path=/", "; HttpOnly", "; Secure", "; SameSite=Strict"] {
            assert!(attributes.contains(attribute), "{attributes}");
        }
        assert!(!attributes.contains("mcpo_x"), "the token is not readable");
    }

    #[test]
    fn a_login_without_tls_is_accepted_only_at_loopback_names() {
        let seal = Keys::from_root(b"root").seal;
        let sent = sent_back(&BrowserChannel::Loopback.login(&seal, &new_login("mcpo_x")).unwrap());
        let sent = headers(&[("cookie", &sent), ("mcp-broker-console", PAGE)]);
        assert!(token(&sent, &host("127.0.0.1:9090"), &seal).is_some());
        assert!(token(&sent, &host("localhost"), &seal).is_some());
        assert!(token(&sent, &host(OURS), &seal).is_none());
    }

    fn started() -> StartedLogin {
        let login = serde_json::json!({
            "issuer": "i", "state": "s", "redirect_uri": "r", "nonce": "n", "verifier": "v", "sends_issuer": false,
        });
        serde_json::from_value(login).unwrap()
    }

    #[test]
    fn a_started_login_is_bound_to_its_channel_and_expires() {
        let seal = Keys::from_root(b"root").seal;
        let until = |seconds: u64, seal_context: &str| {
            let text = serde_json::to_vec(&(seconds, (started(), "p"))).unwrap();
            seal.seal_for_client(seal_context, &text).unwrap()
        };
        let channel = |name: &str, sealed: &str, at: &'static str| {
            let sent = headers(&[("cookie", &format!("{name}={sealed}"))]);
            pending(&sent, &host(at), &seal).map(|(channel, ..)| channel)
        };
        let live = until(unix_seconds() + 60, PENDING_SEAL_CONTEXT);
        assert_eq!(channel(SECURE_PENDING, &live, OURS), Some(BrowserChannel::Tls));
        let here = "127.0.0.1:9090";
        assert_eq!(channel(LOOPBACK_PENDING, &live, here), Some(BrowserChannel::Loopback));
        assert_eq!(channel(LOOPBACK_PENDING, &live, OURS), None, "without TLS");
        assert_eq!(
            channel(SECURE_PENDING, &until(unix_seconds() - 1, PENDING_SEAL_CONTEXT), OURS),
            None
        );
        assert_eq!(channel(SECURE_PENDING, &until(unix_seconds() + 60, SEAL_CONTEXT), OURS), None);
    }

    #[test]
    fn every_cookie_is_for_this_host_and_hidden_from_scripts() {
        let seal = Keys::from_root(b"root").seal;
        for channel in [BrowserChannel::Tls, BrowserChannel::Loopback] {
            let login = channel.login(&seal, &new_login("t")).unwrap();
            let strict = [login, channel.logout().unwrap()];
            // The page of an issuer redirects the browser back to a pending login.
            let lax = [
                channel.pending_login(&seal, &started(), "p").unwrap(),
                channel.forget_pending().unwrap(),
            ];
            for (site, cookies) in [("SameSite=Strict", strict), ("SameSite=Lax", lax)] {
                for cookie in cookies {
                    let text = cookie.to_str().unwrap();
                    let parts: Vec<&str> = text.split("; ").skip(1).collect();
                    for part in ["Path=/", "HttpOnly", site] {
                        assert!(parts.contains(&part), "{text} has no {part}");
                    }
                    let is_tls = channel == BrowserChannel::Tls;
                    assert_eq!(parts.contains(&"Secure"), is_tls, "{text}");
                    assert_eq!(text.starts_with("__Host-"), is_tls, "{text}");
                    assert!(!text.contains("Domain"), "{text}");
                }
            }
        }
    }

    #[test]
    fn an_expired_login_is_refused() {
        let seal = Keys::from_root(b"root").seal;
        let sealed_until = |until| {
            let text = serde_json::to_vec(&ConsoleLogin { until, ..new_login("t") }).unwrap();
            let sealed = seal.seal_for_client(SEAL_CONTEXT, &text).unwrap();
            let cookie = format!("{SECURE_NAME}={sealed}");
            token(
                &headers(&[("cookie", &cookie), ("mcp-broker-console", PAGE)]),
                &host(OURS),
                &seal,
            )
        };
        assert!(sealed_until(unix_seconds() + 60).is_some());
        assert!(sealed_until(unix_seconds() - 1).is_none());
        let life = CONSOLE_LOGIN_LIFE.as_secs();
        assert!(sealed_until(unix_seconds() + life + 3_600).is_some(), "a clock was an hour ahead");
        assert!(sealed_until(unix_seconds() + life * 3).is_none(), "it would outlive its life");
    }

    #[test]
    fn a_login_that_has_expired_here_can_be_ended_for_replicas_whose_clocks_are_late() {
        let seal = Keys::from_root(b"root").seal;
        let expired = ConsoleLogin { until: unix_seconds() - 1, ..new_login("t") };
        let cookie = sent_back(&BrowserChannel::Tls.login(&seal, &expired).unwrap());
        let sent = headers(&[("cookie", &cookie), ("mcp-broker-console", PAGE)]);
        assert!(login(&sent, &host(OURS), &seal).unwrap().is_none());
        let ended = login_to_end(&sent, &host(OURS), &seal).unwrap().unwrap();
        assert_eq!((&ended.id, ended.remaining_time()), (&expired.id, CONSOLE_LOGIN_LIFE));
        let foreign = [("cookie", cookie.as_str()), ("origin", "https://evil.example")];
        assert!(login_to_end(&headers(&foreign), &host(OURS), &seal).is_err());
    }

    #[test]
    fn a_login_is_accepted_only_from_a_page_of_this_origin() {
        let seal = Keys::from_root(b"root").seal;
        let cookie = sent_back(&BrowserChannel::Tls.login(&seal, &new_login("t")).unwrap());
        let request = |more: &[(&'static str, &str)]| {
            let mut sent = headers(more);
            sent.insert(header::COOKIE, cookie.parse().unwrap());
            login(&sent, &host(OURS), &seal).is_ok()
        };
        let console = ("mcp-broker-console", PAGE);
        assert!(request(&[console, ("sec-fetch-site", "same-origin")]));
        assert!(request(&[console, ("origin", "https://ops.example:9090")]));
        assert!(!request(&[]), "a form or a link of another page cannot set the header");
        assert!(!request(&[console, ("sec-fetch-site", "cross-site")]));
        assert!(!request(&[console, ("sec-fetch-site", "same-site")]));
        assert!(!request(&[console, ("origin", "https://evil.example")]));
        assert!(!request(&[console, ("origin", "null")]));
    }

    #[test]
    fn a_token_is_accepted_over_tls_or_at_a_loopback_name() {
        let from = |origin: &str, name: &'static str| {
            let sent = headers(&[("origin", origin), ("mcp-broker-console", PAGE)]);
            BrowserChannel::of_page(&sent, &host(name)).map_err(|problem| problem.kind)
        };
        assert_eq!(from("https://ops.example:9090", OURS), Ok(BrowserChannel::Tls));
        assert_eq!(from("http://127.0.0.1:9090", "127.0.0.1:9090"), Ok(BrowserChannel::Loopback));
        assert!(from("http://ops.example:9090", OURS).unwrap_err().ends_with("https-needed"));
        assert!(from("https://evil.example", OURS).unwrap_err().ends_with("cross-site"));
        let nameless = headers(&[("mcp-broker-console", PAGE)]);
        for name in [OURS, "127.0.0.1:9090"] {
            assert!(BrowserChannel::of_page(&nameless, &host(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn a_token_too_long_for_a_cookie_is_refused() {
        let seal = Keys::from_root(b"root").seal;
        let refused =
            BrowserChannel::Tls.login(&seal, &new_login(&"x".repeat(CONSOLE_COOKIE_BYTES_MAX)));
        assert_eq!(refused.unwrap_err().field.as_deref(), Some("token"));
    }
}
