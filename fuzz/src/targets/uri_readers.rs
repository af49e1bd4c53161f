//! Readers of `file:` URIs as servers have them. Each returns the path at which it would look.

pub(super) type UriReader = fn(&str) -> Option<String>;

/// Readers that follow a standard or a widespread library.
pub(super) const READERS: [(&str, UriReader); 4] =
    [("WHATWG", whatwg), ("RFC 3986", rfc_3986), ("Python", python), ("stripped", stripped)];

/// Decodes percent signs once.
fn unescaped(text: &str) -> String {
    let (bytes, mut out, mut at) = (text.as_bytes(), Vec::new(), 0);
    while at < bytes.len() {
        let digits = bytes.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        let value = digits
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        out.push(value.unwrap_or(bytes[at]));
        at += if value.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Returns the file that a kernel opens by this name. `None` for a name that no file has.
fn opened(path: &str) -> Option<String> {
    if path.contains('\0') || !path.starts_with('/') {
        return None;
    }
    let mut stack = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(stack.pop()),
            name => stack.push(name),
        }
    }
    Some(format!("/{}", stack.join("/")))
}

/// Reads a URI by the URL standard, with the library that browsers' tests run against.
fn whatwg(uri: &str) -> Option<String> {
    let url = url::Url::parse(uri).ok()?;
    let is_here = url.host_str().is_none_or(|host| host.is_empty() || host == "localhost");
    (url.scheme() == "file" && is_here).then(|| opened(&unescaped(url.path())))?
}

/// Reads a URI by RFC 3986 and RFC 8089: scheme, authority, path, query, fragment.
fn rfc_3986(uri: &str) -> Option<String> {
    let (scheme, rest) = uri.split_once(':')?;
    let rest = rest.split(['?', '#']).next()?;
    let (host, path) = match rest.strip_prefix("//") {
        Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        None => ("", rest),
    };
    let is_here = scheme.eq_ignore_ascii_case("file")
        && (host.is_empty() || host.eq_ignore_ascii_case("localhost"));
    is_here.then(|| opened(&unescaped(path)))?
}

/// Reads a URI as Python's `urlparse` does, which drops tabs and line breaks, with `unquote`. The
/// host is ignored, as servers of examples do.
fn python(uri: &str) -> Option<String> {
    let uri: String = uri
        .trim_start_matches(|char: char| char <= ' ')
        .chars()
        .filter(|char| !matches!(char, '\t' | '\r' | '\n'))
        .collect();
    let (scheme, rest) = uri.split_once(':')?;
    let rest = rest.split('#').next()?.split('?').next()?;
    let path = match rest.strip_prefix("//") {
        Some(rest) => &rest[rest.find('/').unwrap_or(rest.len())..],
        None => rest,
    };
    scheme.eq_ignore_ascii_case("file").then(|| opened(&unescaped(path)))?
}

/// Reads a URI by `uri.replace("file://", "")` alone.
fn stripped(uri: &str) -> Option<String> {
    opened(uri.strip_prefix("file://")?)
}
