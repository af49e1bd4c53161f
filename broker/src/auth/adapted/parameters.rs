//! Parameters of requests to the broker's authorization server, in the encoding of forms. They are
//! forwarded byte by byte, except those that the front of the issuer changes.
//!
//! Invariant: no parameter occurs twice, except `resource` and `audience`, so that the broker and
//! the issuer cannot read different values (RFC 6749, 3.1 and 3.2).

use std::borrow::Cow;

use config::ResourceParameter;
use protocol::form::form_decoded;

use super::{AdaptedIssuer, IssuerMetadata};
use crate::auth::form_encoded;

/// Scopes that belong to OpenID Connect. They have no prefix.
const GENERAL_SCOPES: [&str; 6] =
    ["openid", "profile", "email", "address", "phone", "offline_access"];
/// Largest number of parameters.
const PARAMETERS_MAX: usize = 64;

/// Reason why parameters are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParameterFault {
    #[error("the parameters are not form-encoded")]
    Encoding,
    #[error("there are more than {PARAMETERS_MAX} parameters")]
    TooMany,
    #[error("a parameter occurs twice")]
    Repeated,
    #[error("client_id is missing")]
    ClientId,
    #[error("redirect_uri is not one that this client may use")]
    RedirectUri,
}

/// Parameters in the order of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    pub(super) fn parse(text: &str) -> Result<Self, ParameterFault> {
        let mut parameters: Vec<(String, String)> = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            // Each parameter is compared with all before it, so their number is bounded first.
            if parameters.len() == PARAMETERS_MAX {
                return Err(ParameterFault::TooMany);
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = form_decoded(name).ok_or(ParameterFault::Encoding)?;
            let value = form_decoded(value).ok_or(ParameterFault::Encoding)?;
            let may_repeat = ["resource", "audience"].contains(&name.as_str());
            if !may_repeat && parameters.iter().any(|(known, _)| *known == name) {
                return Err(ParameterFault::Repeated);
            }
            parameters.push((name, value));
        }
        Ok(Self(parameters))
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.0.retain(|(known, _)| known != name);
    }

    /// Sets a parameter, in its place if it is there.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => value.clone_into(known),
            None => self.0.push((name.to_owned(), value.to_owned())),
        }
    }

    /// Returns the parameters in the encoding of forms.
    pub(super) fn encoded(&self) -> String {
        let pairs =
            self.0.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value)));
        pairs.collect::<Vec<_>>().join("&")
    }
}

impl AdaptedIssuer {
    /// Returns the URL at the issuer to which an authorization request is sent on.
    pub fn authorization_url(
        &self,
        metadata: &IssuerMetadata,
        query: &str,
    ) -> Result<String, ParameterFault> {
        let mut parameters = Parameters::parse(query)?;
        if parameters.get("client_id").is_none_or(str::is_empty) {
            return Err(ParameterFault::ClientId);
        }
        self.check_registered_redirect_uri(&parameters)?;
        self.adapt(&mut parameters);
        let front = self.front();
        if front.drops_prompt {
            parameters.remove("prompt");
        }
        if !front.scopes_append.is_empty() {
            let mut scopes: Vec<&str> =
                parameters.get("scope").unwrap_or_default().split_ascii_whitespace().collect();
            for scope in &front.scopes_append {
                if !scopes.contains(&scope.as_str()) {
                    scopes.push(scope);
                }
            }
            let scopes = scopes.join(" ");
            parameters.set("scope", &scopes);
        }
        let endpoint = &metadata.authorization_endpoint;
        let separator = match endpoint.contains('?') {
            true if endpoint.ends_with(['?', '&']) => "",
            true => "&",
            false => "?",
        };
        Ok(format!("{endpoint}{separator}{}", parameters.encoded()))
    }

    /// Refuses an authorization request of the registered client without a redirect URI, or with one
    /// that it may not use.
    fn check_registered_redirect_uri(&self, parameters: &Parameters) -> Result<(), ParameterFault> {
        let registered = self.front().registration.as_ref().map(|client| client.client_id.as_str());
        if registered.is_some()
            && parameters.get("client_id") == registered
            && parameters.get("redirect_uri").is_none()
        {
            return Err(ParameterFault::RedirectUri);
        }
        self.check_redirect_uri(parameters)
    }

    /// Refuses a redirect URI that the registered client may not use.
    pub(super) fn check_redirect_uri(&self, parameters: &Parameters) -> Result<(), ParameterFault> {
        let Some(client) = &self.front().registration else { return Ok(()) };
        let is_fine = match (parameters.get("client_id"), parameters.get("redirect_uri")) {
            (Some(id), Some(uri)) if id == client.client_id => client.allows(uri),
            _ => true,
        };
        if is_fine { Ok(()) } else { Err(ParameterFault::RedirectUri) }
    }

    /// Changes what every kind of request has in another form for the issuer: the resource, and the
    /// scopes of the broker.
    pub(super) fn adapt(&self, parameters: &mut Parameters) {
        let front = self.front();
        if front.resource != ResourceParameter::Pass {
            parameters.remove("resource");
        }
        if front.resource == ResourceParameter::Audience && parameters.get("audience").is_none() {
            parameters.set("audience", self.audience());
        }
        if let (Some(prefix), Some(scope)) = (&front.scope_prefix, parameters.get("scope")) {
            let scopes: Vec<Cow<'_, str>> = scope
                .split_ascii_whitespace()
                .map(|scope| match GENERAL_SCOPES.contains(&scope) || scope.contains("://") {
                    true => Cow::Borrowed(scope),
                    false => Cow::Owned(format!("{prefix}{scope}")),
                })
                .collect();
            let scopes = scopes.join(" ");
            parameters.set("scope", &scopes);
        }
    }
}

/// Encodes a text as in forms (WHATWG URL, 5.2).
pub(super) fn encoded(text: &str) -> String {
    // Not `+`: a query is not read as a form everywhere.
    form_encoded(text).replace('+', "%20")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_parsed_and_encoded_with_the_same_values() {
        let text = "a=1&b=x+y%20z%2B&resource=r&resource=s&c&d=%C3%A4";
        let parameters = Parameters::parse(text).unwrap();
        assert_eq!(parameters.get("b"), Some("x y z+"));
        assert_eq!(parameters.encoded(), "a=1&b=x%20y%20z%2B&resource=r&resource=s&c=&d=%C3%A4");
        for (text, fault) in [
            ("a=1&a=1", ParameterFault::Repeated),
            ("client_id=a&client%5Fid=b", ParameterFault::Repeated),
            ("a=%", ParameterFault::Encoding),
            ("a=%zz", ParameterFault::Encoding),
            ("a=%FF", ParameterFault::Encoding),
        ] {
            assert_eq!(Parameters::parse(text), Err(fault), "{text}");
        }
        let many = |count: usize| (0..count).map(|n| format!("p{n}=&")).collect::<String>();
        assert!(Parameters::parse(&many(PARAMETERS_MAX)).is_ok());
        // What follows is not read.
        for rest in ["", "p0=", "a=%"] {
            let text = many(PARAMETERS_MAX + 1) + rest;
            assert_eq!(Parameters::parse(&text), Err(ParameterFault::TooMany), "{rest}");
        }
    }
}
