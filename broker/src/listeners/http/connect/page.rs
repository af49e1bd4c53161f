//! A page without scripts: a title, texts, links and forms. Every text is escaped.

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{
        CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
        X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
    },
};
use http_body_util::{Either, Full};

use crate::listeners::http::response::Body;

pub(super) struct HtmlPage {
    title: String,
    body: String,
}

impl HtmlPage {
    pub(super) fn new(title: &str) -> Self {
        Self { title: escaped(title), body: String::new() }
    }

    pub(super) fn text(mut self, text: &str) -> Self {
        self.body.push_str(&format!("<p>{}</p>", escaped(text)));
        self
    }

    pub(super) fn link(mut self, address: &str, text: &str) -> Self {
        let (address, text) = (escaped(address), escaped(text));
        self.body.push_str(&format!("<p><a href=\"{address}\">{text}</a></p>"));
        self
    }

    pub(super) fn form(mut self, path: &str, members: &[(&str, &str)], button: &str) -> Self {
        self.body.push_str(&format!("<form method=\"post\" action=\"{}\">", escaped(path)));
        for (name, value) in members {
            let (name, value) = (escaped(name), escaped(value));
            let input = format!("<input type=\"hidden\" name=\"{name}\" value=\"{value}\">");
            self.body.push_str(&input);
        }
        self.body.push_str(&format!("<button>{}</button></form>", escaped(button)));
        self
    }

    pub(super) fn respond(self, status: StatusCode) -> Response<Body> {
        let Self { title, body } = self;
        let text = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title><h1>{title}</h1>{body}</html>"
        );
        let mut response = Response::new(Either::Left(Full::new(Bytes::from(text))));
        *response.status_mut() = status;
        let html = HeaderValue::from_static("text/html; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, html);
        response
    }
}

/// Adds the headers that keep a page from being framed, stored or extended.
pub(super) fn protect(mut response: Response<Body>) -> Response<Body> {
    // A form leads to the authorization server by a redirect, so its address is not limited here.
    const POLICY: &str = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'";
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_FRAME_OPTIONS, "DENY"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "same-origin"),
        (CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            letter if letter.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_is_escaped() {
        let page = HtmlPage::new("<script>").text("a & b").link("\"x", "'").form(
            "/p",
            &[("n", "\"v")],
            "b",
        );
        let text = format!("{}{}", page.title, page.body);
        assert!(!text.contains("<script") && text.contains("a &amp; b"), "{text}");
        assert!(text.contains("href=\"&quot;x\"") && text.contains("value=\"&quot;v\""), "{text}");
    }

    #[test]
    fn a_page_is_not_framed_stored_or_extended() {
        let page = protect(HtmlPage::new("t").respond(StatusCode::OK));
        for (name, value) in [
            (
                CONTENT_SECURITY_POLICY,
                "default-src 'none'; base-uri 'none'; frame-ancestors 'none'",
            ),
            (X_FRAME_OPTIONS, "DENY"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "same-origin"),
            (CACHE_CONTROL, "no-store"),
        ] {
            assert_eq!(page.headers()[&name], value, "{name}");
        }
    }
}
