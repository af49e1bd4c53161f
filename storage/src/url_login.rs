//! Logins in URLs of servers. A login can change while the broker runs, with the file that holds
//! its URL.
//!
//! Invariant: only the login changes. A file with another server has no effect before the next
//! start.

use std::{fs::File, io::Read as _, path::Path};

/// Longest URL that is read from a file.
const URL_BYTES_MAX: u64 = 8 * 1024;

/// Returns whether two URLs differ in their logins at most: user and password before the host.
pub fn differ_in_login_only(one: &str, other: &str) -> bool {
    let ((scheme, _, rest), (other_scheme, _, other_rest)) = (parts(one), parts(other));
    scheme == other_scheme && rest == other_rest
}

/// Splits a URL at its login, which ends at the last `@` before path and query.
pub(crate) fn parts(url: &str) -> (&str, &str, &str) {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => (scheme, &rest[..at], &rest[at + 1..]),
        None => (scheme, "", rest),
    }
}

/// Returns the URL in a regular file, if it has another login than `known` and is otherwise the
/// same. A read of another kind of file could wait.
pub(crate) fn changed_url(file: &Path, known: &str) -> Option<String> {
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    File::open(file).ok()?.take(URL_BYTES_MAX).read_to_string(&mut text).ok()?;
    let url = text.trim_end_matches(['\r', '\n']);
    (url != known && differ_in_login_only(url, known)).then(|| url.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_login_may_differ() {
        let url = "postgres://ada:one@db:5432/x?sslmode=require";
        for same in [
            "postgres://ada:two@db:5432/x?sslmode=require",
            "postgres://eve:p%40ss@db:5432/x?sslmode=require",
            "postgres://db:5432/x?sslmode=require",
        ] {
            assert!(differ_in_login_only(url, same), "{same}");
        }
        for other in [
            "postgres://ada:one@db:5432/y?sslmode=require",
            "postgres://ada:one@other:5432/x?sslmode=require",
            "postgres://ada:one@db:5432/x?sslmode=disable",
            "postgres://ada:one@db:5432/x?sslmode=require&user=a@b",
            "redis://ada:one@db:5432/x?sslmode=require",
        ] {
            assert!(!differ_in_login_only(url, other), "{other}");
        }
        let sentinels = "redis+sentinel://:one@a:1,b:2/service/0";
        assert!(differ_in_login_only(sentinels, "redis+sentinel://ada:two@a:1,b:2/service/0"));
        assert!(!differ_in_login_only(sentinels, "redis+sentinel://:one@a:1,c:2/service/0"));
    }
}
