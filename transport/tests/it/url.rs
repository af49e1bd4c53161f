//! Tests of backend URLs: the accepted forms, and that each refusal names the fault.

use transport::{UrlError, parse_http_url, url::resolve_in_origin};

#[test]
fn ordinary_urls_pass_unchanged() {
    for url in [
        "http://127.0.0.1:8080/mcp",
        "https://mcp.example.com/a/b?c=d%20e&f=@",
        "HTTPS://Example.com:443/",
        "http://[::1]:9/mcp",
        "https://[2606:4700::1111]/",
    ] {
        let uri = parse_http_url(url).unwrap_or_else(|error| panic!("{url}: {error}"));
        assert_eq!(uri.to_string().to_lowercase(), url.to_lowercase());
    }
    assert_eq!(parse_http_url("http://host").unwrap().path(), "/");
    assert_eq!(parse_http_url("http://host?q").unwrap().query(), Some("q"));
}

#[test]
fn each_fault_has_its_own_message() {
    let faults = [
        ("", "the url is empty, expected http://HOST[:PORT]/PATH or https://…"),
        ("localhost:8080/mcp", "the url has no scheme, expected http:// or https://"),
        ("/mcp", "the url has no scheme, expected http:// or https://"),
        ("ftp://host/", "the url scheme \"ftp\" is not supported, expected http or https"),
        ("file:///etc/passwd", "the url scheme \"file\" is not supported, expected http or https"),
        ("http://", "the url has no host"),
        ("http:///mcp", "the url has no host"),
        ("http://:8080/", "the url has no host"),
        (
            "http://user@host/",
            "the url must not contain a user name or password, use the backend's credentials",
        ),
        (
            "http://user:secret@host/",
            "the url must not contain a user name or password, use the backend's credentials",
        ),
        ("http://host/#part", "the url must not contain a fragment (#…)"),
        ("http://host:0/", "the url port is not valid, expected a number from 1 to 65535"),
        ("http://host:65536/", "the url port is not valid, expected a number from 1 to 65535"),
        ("http://host:/", "the url port is not valid, expected a number from 1 to 65535"),
        ("http://host:+80/", "the url port is not valid, expected a number from 1 to 65535"),
        ("http://host:80:81/", "the url port is not valid, expected a number from 1 to 65535"),
        ("http://[::1]x/", "the url port is not valid, expected a number from 1 to 65535"),
        ("http://[::zz]/", "the url is not valid: [::zz] is not an IPv6 address"),
    ];
    for (url, message) in faults {
        let error = parse_http_url(url).map(|uri| uri.to_string()).unwrap_err();
        assert_eq!(error.to_string(), message, "for {url:?}");
    }
}

#[test]
fn urls_with_invalid_characters_are_refused() {
    for url in [
        "http://ho st/",
        "http://host/a b",
        "http://host/\n",
        "http://b\u{fc}cher.example/",
        "http://host/\u{0}",
    ] {
        assert!(matches!(parse_http_url(url), Err(UrlError::Invalid { .. })), "{url:?}");
    }
    for url in ["http://ho<st/", "http://[::1/", "http://h\"/", "http://\\host/"] {
        assert!(parse_http_url(url).is_err(), "{url:?}");
    }
}

#[test]
fn a_reference_resolves_only_inside_its_origin() {
    for (base, reference, resolved) in [
        ("http://h:8/sse", "/messages?id=1", "http://h:8/messages?id=1"),
        ("http://h:8/a/sse", "messages?id=1", "http://h:8/a/messages?id=1"),
        ("http://h:8/a/sse?x=1", "?id=1", "http://h:8/a/sse?id=1"),
        ("http://h:8/a/sse", "../m", "http://h:8/m"),
        ("http://h:8/sse", "http://H:8/m", "http://h:8/m"),
        ("http://h/sse", "http://h:80/m", "http://h/m"),
        ("https://h/sse", "//h:443/m", "https://h/m"),
        ("http://[::1]:8/sse", "/m", "http://[::1]:8/m"),
    ] {
        let base = parse_http_url(base).unwrap();
        assert_eq!(resolve_in_origin(&base, reference).unwrap().to_string(), resolved);
    }
    let base = parse_http_url("http://h:8/sse").unwrap();
    for other in [
        "http://other:8/m",
        "http://h:9/m",
        "https://h:8/m",
        "//other/m",
        "/\\other/m",
        "file:///etc/passwd",
        "javascript:1",
        "http://h.other:8/m",
        "http://h:8@other/m",
    ] {
        assert_eq!(resolve_in_origin(&base, other), Err(UrlError::Origin), "{other}");
    }
    for wrong in ["http://u:p@h:8/m", "/m#part", "http://h:99999/m", "http://[::1/m"] {
        assert!(resolve_in_origin(&base, wrong).is_err(), "{wrong}");
    }
}
