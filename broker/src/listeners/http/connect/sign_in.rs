//! The sign-in of a person with an issuer whose tokens the broker accepts.

use http::{Response, StatusCode, header::SET_COOKIE};
use protocol::ids::BackendId;

use super::{
    CONNECT, Visit, busy, form_proof, page::HtmlPage, parameter, person::Login, redirect, too_many,
    unknown, with_cookie,
};
use crate::{
    listeners::http::response::Body,
    oauth::{AuthorizationAnswer, Connections, PendingSignIn, random_text},
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
        let proof = form_proof(&browser, None);
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
            parameter(form, "proof").is_some_and(|proof| proof == form_proof(browser, None))
        });
        let (Some(issuer), Some(_)) = (issuer, proven) else {
            let text = "The form has expired or belongs to another page. Open the page again.";
            return HtmlPage::new("Not accepted").text(text).respond(StatusCode::FORBIDDEN);
        };
        let backend = parameter(form, "backend").unwrap_or_default();
        if !backend.is_empty() && BackendId::parse(&backend).is_err() {
            return unknown();
        }
        let Some(_permit) = self.login_permit(&issuer.issuer) else { return busy() };
        let cookies = self.cookies();
        let is_free = |state: &str| !cookies.has_sign_in(state);
        let connections = Connections::new(self.broker.shared.persistence.clone());
        let begun_at_us = match connections.clock_us().await {
            Ok(now) => now,
            Err(error) => return self.failed_login(&error),
        };
        match self.broker.sign_ins().start(issuer, backend, begun_at_us, is_free).await {
            Ok((address, pending)) => {
                let cookie = self.cookies().set_sign_in(self.seal(), &pending);
                with_cookie(redirect(&address), cookie)
            }
            Err(error) => self.failed_login(&error),
        }
    }

    /// Signs the browser in with the answer of an issuer, which came to this path. The issuer gets no
    /// request for an address with too many failed sign-ins.
    pub(super) async fn finish_sign_in(
        &self,
        answer: &AuthorizationAnswer,
        path: &str,
    ) -> Response<Body> {
        let pending = self.cookies().sign_in(self.seal(), &answer.state);
        let Some(pending) = pending.filter(|pending| pending.is_answered_at(path)) else {
            return refused();
        };
        if let Err(refusal) = self.broker.check_address(self.remote) {
            return too_many(refusal.retry_after);
        }
        let Some(_permit) = self.login_permit(pending.issuer()) else { return busy() };
        let response = match self.signed_in(pending, answer).await {
            Ok((login, backend)) => {
                let cookie = self.cookies().set_login(self.seal(), login);
                with_cookie(redirect(&format!("{CONNECT}/{backend}")), cookie)
            }
            Err(page) => self.login_failed().map_or(*page, |wait| too_many(Some(wait))),
        };
        with_cookie(response, Some(self.cookies().forget_sign_in(&answer.state)))
    }

    /// Returns the login of the person whom an issuer names, and the backend whose page the person wanted, or the
    /// page that reports the failure.
    async fn signed_in(
        &self,
        pending: PendingSignIn,
        answer: &AuthorizationAnswer,
    ) -> Result<(Login, String), Box<Response<Body>>> {
        let (issuers, issued_at_us) = (self.broker.sign_in_issuers(), pending.begun_at_us());
        let finished = self.broker.sign_ins().finish(&issuers, pending, answer).await;
        let proven = finished.map_err(|error| self.failed_login(&error))?;
        let (tenant, subject) = self.broker.signed_in(&proven).await.ok_or_else(refused)?;
        let tenant = self.broker.tenant(&tenant).ok_or_else(refused)?;
        let login = Login::of_subject(&tenant, &subject, proven.issuer, issued_at_us);
        Ok((login, proven.backend))
    }
}

fn refused() -> Response<Body> {
    let text = "The answer does not belong to a sign-in of this browser. Open the page of your client again.";
    HtmlPage::new("Not signed in").text(text).respond(StatusCode::FORBIDDEN)
}
