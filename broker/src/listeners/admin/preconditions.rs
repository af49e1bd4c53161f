//! `If-Match` and `If-None-Match` (RFC 9110, section 13): a change is made only if the entry is
//! unchanged since its author read it.

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, HeaderValue, header, request::Parts},
    response::{IntoResponse, Response},
};

use serde::Serialize;

use super::problem::Problem;
use crate::control::{Preconditions, Tagged};

impl<S: Send + Sync> FromRequestParts<S> for Preconditions {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Ok(Self {
            matching: tags(&parts.headers, &header::IF_MATCH)?,
            none_matching: tags(&parts.headers, &header::IF_NONE_MATCH)?,
        })
    }
}

/// Returns whether the author of a GET has the state with this tag already.
pub(super) fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let none_matching = tags(headers, &header::IF_NONE_MATCH).ok().flatten();
    Preconditions { matching: None, none_matching }.is_known(tag)
}

/// Returns the tags of a header with their prefixes, or `None` without the header.
fn tags(headers: &HeaderMap, name: &header::HeaderName) -> Result<Option<Vec<String>>, Problem> {
    let wrong = || {
        Problem::invalid(name.as_str(), "is neither * nor a list of entity tags in double quotes")
    };
    let mut found: Option<Vec<String>> = None;
    for value in headers.get_all(name) {
        let text = value.to_str().map_err(|_| wrong())?;
        for tag in text.split(',').map(str::trim) {
            let strong = tag.strip_prefix("W/").unwrap_or(tag);
            let quoted = strong.len() >= 2 && strong.starts_with('"') && strong.ends_with('"');
            if tag != "*" && !quoted {
                return Err(wrong());
            }
            found.get_or_insert_default().push(tag.to_owned());
        }
    }
    Ok(found)
}

/// Returns an answer with the entity tag of the state that it shows.
pub(super) fn shown<View: Serialize>(shown: Tagged<View>) -> Response {
    let mut response = axum::Json(shown.view).into_response();
    if let Ok(tag) = HeaderValue::from_str(&shown.tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}
