//! Roots of resources: no reader leaves a root with a URI that lies below it.

use protocol::uri::{Root, check as check_traversal, check_relative};

use super::uri_readers::READERS;
use crate::{Outcome, Target};

pub(super) const TARGET: Target =
    Target { name: "resource_uris", tokens: URI_TOKENS, bytes_max: 256, check };

pub(super) const URI_TOKENS: &[&str] = &[
    "file:///srv/files/",
    "file://localhost/",
    "file:/",
    "FILE:",
    "//",
    "/",
    "\\",
    "..",
    ".",
    "%2e",
    "%2E%2e",
    "%252e",
    "%2f",
    "%5c",
    "%00",
    "%u002e",
    "?",
    "#",
    ";",
    "&",
    "=",
    "%",
    ":",
    "c:",
    "c|",
    "\t",
    "\n",
    " ",
    "+",
    "\u{ff0e}",
    "\u{2024}",
    "\u{2044}",
    "\u{200b}",
    "\u{ad}",
    "é",
    "secret",
    "srv",
    "files",
    "https://host",
    "@",
    "%c0%ae",
];

const FOLDER: &str = "/srv/files";

fn check(input: &[u8]) -> Outcome {
    let uri = String::from_utf8_lossy(input);
    let root = Root::parse("file:///srv/files").expect("a plain URI");
    let is_below = root.contains(&uri);
    if is_below {
        assert_eq!(check_traversal(&uri), Ok(()), "a URI below a root does not climb");
        for (name, reader) in READERS {
            if let Some(path) = reader(&uri) {
                assert!(is_in_folder(&path), "{name} looks at {path}");
            }
        }
    }
    let is_relative = check_relative(&uri).is_ok();
    if is_relative {
        for (name, reader) in READERS {
            let path = reader(&format!("file:///srv/files/{uri}"));
            assert!(path.as_deref().is_none_or(is_in_folder), "{name} looks at {path:?}");
        }
        let joined = url::Url::parse("https://host/srv/files/").expect("a URL").join(&uri);
        let is_relative_url = !uri.contains(':');
        if let (Ok(joined), true) = (&joined, is_relative_url) {
            assert!(is_in_folder(joined.path()), "a browser follows {joined}");
        }
    }
    Outcome::of(&(
        is_below,
        is_relative,
        check_traversal(&uri).is_ok(),
        READERS.map(|(_, reader)| reader(&uri).is_some()),
    ))
}

fn is_in_folder(path: &str) -> bool {
    path == FOLDER || path.strip_prefix(FOLDER).is_some_and(|rest| rest.starts_with('/'))
}
