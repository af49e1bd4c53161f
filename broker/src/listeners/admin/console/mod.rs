//! The operators' console: a web page on the admin listener, under `/console/`.
//!
//! Its files need no sign-in. The page requests everything from the admin API, with the cookie of a
//! login ([`super::login_cookie`]). Invariants:
//! - The page loads nothing of another origin and runs no inline script or style.
//! - Every address in the page is relative, so that it works below a reverse proxy's prefix.

mod files;
mod issuer_login;
mod login;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};

use super::access::Access;
use crate::{control::Control, oauth::CONSOLE_CALLBACK};

/// State of the console's routes.
type ConsoleState = (Arc<Control>, Arc<Access>);

/// Headers of every answer. A page of this origin may load its own files and nothing else.
const PROTECTION: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    ),
];

/// Returns the routes of the console.
pub(super) fn routes(control: Arc<Control>, access: Arc<Access>) -> Router {
    Router::new()
        .route("/console", get(files::redirect))
        .route("/console/", get(files::index))
        .route("/console/{*path}", get(files::file))
        .route("/console/login", post(login::sign_in))
        .route("/console/logout", post(login::sign_out))
        .route("/console/logins", get(issuer_login::issuers).post(issuer_login::start))
        .route(CONSOLE_CALLBACK, get(issuer_login::callback))
        .route(&format!("{CONSOLE_CALLBACK}/{{own}}"), get(issuer_login::callback))
        .layer(middleware::from_fn_with_state(Arc::clone(&access), protect))
        .with_state((control, access))
}

/// Middleware around the console's routes. Refuses foreign pages and rebound names.
async fn protect(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let checked = access.check_foreign(request.uri(), request.headers());
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in PROTECTION {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
