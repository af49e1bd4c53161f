//! Checks of an operator's change before it is stored.

use std::time::Duration;

use config::{FieldError, TlsConfig, spec::BackendSpec, units::format_duration};
use protocol::ids::{BackendId, TenantId};

use super::{ControlError, NAME_CHARS_MAX, registry::EntryOrigin};
use crate::auth::{is_printable, reserved_reason};

const KEY_LIFE_MIN: Duration = Duration::from_secs(1);
const KEY_LIFE_MAX: Duration = Duration::from_secs(3_650 * 24 * 3_600);

pub(super) fn refuse_declared(
    origin: Option<EntryOrigin>,
    what: &'static str,
    name: &impl ToString,
) -> Result<(), ControlError> {
    match origin {
        Some(EntryOrigin::Declared) => Err(ControlError::Declared { what, name: name.to_string() }),
        Some(EntryOrigin::Bundled) => Err(ControlError::Bundled { what, name: name.to_string() }),
        Some(EntryOrigin::Stored) | None => Ok(()),
    }
}

pub(super) fn refuse_more(
    is_new: bool,
    count: usize,
    what: &'static str,
    max: usize,
) -> Result<(), ControlError> {
    if is_new && count >= max { Err(ControlError::TooMany { what, max }) } else { Ok(()) }
}

pub(super) fn no_tenant(tenant: &TenantId) -> ControlError {
    ControlError::NotFound { what: "tenant", name: tenant.as_str().to_owned() }
}

pub(super) fn no_backend(backend: &BackendId) -> ControlError {
    ControlError::NotFound { what: "backend", name: backend.as_str().to_owned() }
}

/// Checks a name for display in tables and logs: one line, without invisible characters.
pub(super) fn check_label(path: &str, text: Option<&str>) -> Result<(), ControlError> {
    let fits = |text: &str| {
        !text.is_empty() && text.chars().count() <= NAME_CHARS_MAX && is_printable(text)
    };
    if text.is_none_or(fits) {
        return Ok(());
    }
    let wrong = "is empty or too long, or has control characters, invisible characters, or surrounding white space".into();
    let allowed =
        format!("1 to {NAME_CHARS_MAX} letters, digits, spaces and visible signs on one line");
    Err(ControlError::Invalid(FieldError { path: path.into(), problem: wrong, allowed }))
}

/// Checks the time until an API key expires.
pub(super) fn check_key_life(life: Option<Duration>) -> Result<(), ControlError> {
    match life {
        Some(life) if !(KEY_LIFE_MIN..=KEY_LIFE_MAX).contains(&life) => {
            let problem = format!("is {}", format_duration(life));
            let allowed = format!(
                "a duration from {} to {} days",
                format_duration(KEY_LIFE_MIN),
                KEY_LIFE_MAX.as_secs() / (24 * 3_600)
            );
            Err(ControlError::Invalid(FieldError { path: "expires_in".into(), problem, allowed }))
        }
        _ => Ok(()),
    }
}

/// Checks the principal of an API key. It must not be a principal of anonymous callers or of
/// tokens.
pub(super) fn check_principal(principal: Option<&str>) -> Result<(), ControlError> {
    check_label("principal", principal)?;
    let Some(wrong) = principal.and_then(reserved_reason) else { return Ok(()) };
    let allowed = "a name other than \"anonymous\", in any letter case, that begins neither with \"operator\" and a space nor with a URL and a space".into();
    Err(ControlError::Reserved(FieldError {
        path: "principal".into(),
        problem: wrong.into(),
        allowed,
    }))
}

/// Checks that the client certificate for a backend is usable.
pub(super) async fn client_files(spec: &BackendSpec) -> Result<(), FieldError> {
    if spec.tls.identity().is_none() {
        return Ok(());
    }
    let tls = spec.tls.clone();
    let checked = tokio::task::spawn_blocking(move || TlsConfig::check_files(&tls)).await;
    checked.unwrap_or_else(|error| Err(FieldError::new("tls", error.to_string(), "")))
}

pub(super) fn now_us() -> i64 {
    jiff::Timestamp::now().as_microsecond()
}
