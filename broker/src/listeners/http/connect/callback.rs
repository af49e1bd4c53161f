//! The answer of an authorization server, which the browser brings to the redirect URI.

use http::{Response, StatusCode};

use super::{Visit, page::HtmlPage, parameter, person::Person};
use crate::{
    listeners::{http::response::Body, replicas::connection_notice},
    oauth::{AuthorizationAnswer, SignIns, UserTokens},
};

impl Visit<'_> {
    /// Takes the answer of an authorization server.
    pub(super) async fn callback(&self, path: &str) -> Response<Body> {
        let query = self.head.uri.query().unwrap_or_default();
        let answer = AuthorizationAnswer {
            state: parameter(query, "state").unwrap_or_default(),
            code: parameter(query, "code"),
            error: parameter(query, "error"),
            issuer: parameter(query, "iss"),
        };
        if SignIns::is_about(&answer) {
            return self.finish_sign_in(&answer, path).await;
        }
        let wrong = || {
            HtmlPage::new("Not accepted").text("The answer does not belong to a request of this browser. Start again from your client.").respond(StatusCode::FORBIDDEN)
        };
        let (Some(person), Some(browser)) = (self.person().await, self.cookies().browser()) else {
            return wrong();
        };
        if answer.tenant().as_ref() != Some(&person.tenant) {
            return wrong();
        }
        let Some(backend) = answer.backend() else { return wrong() };
        let name = backend.as_str();
        let Some(tokens) = self.tokens(&person, name) else { return wrong() };
        let taken = tokens.take_login(&answer.state, &person.principal, &browser, path);
        let login = match taken.await {
            Ok(Some(login)) => login,
            Ok(None) => return wrong(),
            Err(error) => return self.failed(&person.tenant, name, &error),
        };
        let claim = |issuer: &str| self.broker.principal_claim(issuer);
        let account = match tokens.finish(login, &answer, claim).await {
            Ok(account) => account,
            Err(error) => return self.failed(&person.tenant, name, &error),
        };
        // The backend may have been removed, or the login revoked, before the account was stored.
        if !self.may_still_connect(&person, name, &tokens).await {
            return match tokens.take_back(&account).await {
                Ok(()) => wrong(),
                Err(error) => self.failed(&person.tenant, name, &error),
            };
        }
        let text = format!(
            "Your account for {name} is connected. You can close this page and try again in your client."
        );
        let Person { tenant, principal, .. } = person;
        connection_notice::announce(self.broker, tenant, principal, backend);
        HtmlPage::new("Connected").text(&text).respond(StatusCode::OK)
    }

    /// Returns whether the browser is still signed in as this person, who may use the backend.
    async fn may_still_connect(&self, person: &Person, backend: &str, tokens: &UserTokens) -> bool {
        let Some(now) = self.person().await else { return false };
        (&now.tenant, &now.principal) == (&person.tenant, &person.principal)
            && self.tokens(&now, backend).is_some_and(|current| current.url() == tokens.url())
    }
}
