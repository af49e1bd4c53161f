//! The sign-in of a person with an issuer whose tokens the broker accepts.

use http::{Response, StatusCode, header::SET_COOKIE};

use super::{CONNECT, Visit, failed, form_proof, page::HtmlPage, parameter, redirect};
use crate::{
    listeners::http::{connect::person::Person, response::Body},
    oauth::{AuthorizationAnswer, random_text},
};

impl Visit<'_> {
    /// Offers the issuers to a person who is not signed in.
    pub(super) fn signed_out(&self, path: &str) -> Response<Body> {
        let issuers = self.broker.sign_in_issuers();
        if issuers.is_empty() {
            let text = "You are not signed in here. Ask your operator for a link: mcp-broker connection link PRINCIPAL BACKEND";
            return HtmlPage::new("Not signed in").text(text).respond(StatusCode::FORBIDDEN);
        }
        let browser = self.cookies().browser().unwrap_or_else(random_text);
        let proof = form_proof(&browser);
        let backend = path.strip_prefix(CONNECT).unwrap_or_default().trim_start_matches('/');
        let mut page =
            HtmlPage::new("Sign in").text("Sign in with the account that you use for this broker.");
        for issuer in issuers {
            let members =
                [("proof", proof.as_str()), ("issuer", &issuer.issuer), ("backend", backend)];
            page = page.form(CONNECT, &members, &format!("Sign in at {}", issuer.issuer));
        }
        let mut answer = page.respond(StatusCode::OK);
        answer.headers_mut().append(SET_COOKIE, self.cookies().set_browser(&browser));
        answer
    }

    /// Begins a sign-in that a form of the page above requested.
    pub(super) async fn start_sign_in(&self, issuer: &str, form: &str) -> Response<Body> {
        let issuers = self.broker.sign_in_issuers();
        let issuer = issuers.iter().find(|known| known.issuer == issuer);
        let proven = self.cookies().browser().filter(|browser| {
            parameter(form, "proof").is_some_and(|proof| proof == form_proof(browser))
        });
        let (Some(issuer), Some(browser)) = (issuer, proven) else {
            let text = "The form is too old or comes from elsewhere. Open the page again.";
            return HtmlPage::new("Not accepted").text(text).respond(StatusCode::FORBIDDEN);
        };
        let backend = parameter(form, "backend").unwrap_or_default();
        match self.broker.sign_ins().start(issuer, &browser, &backend).await {
            Ok(address) => redirect(&address),
            Err(error) => failed("the broker", &error),
        }
    }

    /// Signs the browser in with the answer of an issuer.
    pub(super) async fn finish_sign_in(&self, answer: &AuthorizationAnswer) -> Response<Body> {
        let refused = || {
            let text = "The answer belongs to no sign-in of this browser. Open the page of your client again.";
            HtmlPage::new("Not signed in").text(text).respond(StatusCode::FORBIDDEN)
        };
        let issuers = self.broker.sign_in_issuers();
        let Some(browser) = self.cookies().browser() else { return refused() };
        let signed_in = match self.broker.sign_ins().finish(&issuers, answer, &browser).await {
            Ok(Some(signed_in)) => signed_in,
            Ok(None) => return refused(),
            Err(error) => return failed("the broker", &error),
        };
        let Some((tenant, principal)) = self.broker.signed_in(&signed_in).await else {
            return refused();
        };
        let person = Person::new(tenant, principal.as_str());
        let mut answer = redirect(&format!("{CONNECT}/{}", signed_in.backend));
        let seal = &self.broker.shared.durable.seal;
        if let Some(cookie) = self.cookies().set_login(seal, &person) {
            answer.headers_mut().append(SET_COOKIE, cookie);
        }
        answer
    }
}
