//! URIs against models of their readers: policy must refuse each URI that leads one of them
//! outside.

use proptest::prelude::*;

use super::*;

/// Returns the path at which a reader would look for the resource. `None`: the reader refuses the
/// URI.
type Reader = fn(&str) -> Option<String>;

/// Folder that each reader starts from if a path is not absolute.
const ELSEWHERE: &str = "/elsewhere";
const FOLDER: &str = "/srv/files";
const FOLDER_URI: &str = "file:///srv/files";

fn unescaped(text: &str) -> String {
    String::from_utf8_lossy(&once(text)).into_owned()
}

fn once(text: &str) -> Vec<u8> {
    let (bytes, mut out, mut at) = (text.as_bytes(), Vec::new(), 0);
    while at < bytes.len() {
        let digits = text.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    out
}

/// Returns the file that a kernel opens by this name. A NUL ends the name for some libraries.
fn opened(path: &str) -> Option<String> {
    let path = path.split('\0').next().unwrap_or_default();
    let path = if path.starts_with('/') { path.to_owned() } else { format!("{ELSEWHERE}/{path}") };
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

/// Reads a URI by RFC 3986: scheme, authority, path, query, fragment. Dot segments are removed
/// before the path is decoded.
fn rfc_3986(uri: &str) -> Option<String> {
    let (scheme, rest) = uri.split_once(':')?;
    let rest = rest.split(['?', '#']).next()?;
    let (host, path) = match rest.strip_prefix("//") {
        Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        None => ("", rest),
    };
    let is_here = scheme.eq_ignore_ascii_case("file")
        && (host.is_empty() || host.eq_ignore_ascii_case("localhost"));
    is_here.then(|| opened(&unescaped(&opened(path)?)))?
}

/// Reads a URI by the WHATWG's URL standard, with the library that browsers' tests run against.
fn whatwg(uri: &str) -> Option<String> {
    let url = url::Url::parse(uri).ok()?;
    (url.scheme() == "file").then(|| opened(&unescaped(url.path())))?
}

/// Decodes the URI before the WHATWG reader parses it.
fn whatwg_of_decoded(uri: &str) -> Option<String> {
    whatwg(&unescaped(uri))
}

/// Reads a URI as Go's `net/url` does: no control characters, the fragment first, then the query. A
/// server that opens `url.Path` ignores the host.
fn go(uri: &str) -> Option<String> {
    if uri.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return None;
    }
    let (scheme, rest) = uri.split('#').next()?.split_once(':')?;
    let rest = rest.split('?').next()?;
    let path = match rest.strip_prefix("//") {
        Some(rest) => &rest[rest.find('/').unwrap_or(rest.len())..],
        None => rest,
    };
    scheme.eq_ignore_ascii_case("file").then(|| opened(&unescaped(path)))?
}

/// Reads a URI as Python's `urlparse` does, which drops tabs and line breaks, with `unquote` and a
/// `Path` of it. The host is ignored.
fn python(uri: &str) -> Option<String> {
    let uri: String = uri
        .trim_start_matches(|char: char| char <= ' ')
        .chars()
        .filter(|char| !matches!(char, '\t' | '\r' | '\n'))
        .collect();
    let (_, rest) = uri.split_once(':')?;
    let rest = rest.split('#').next()?.split('?').next()?;
    let path = rest
        .strip_prefix("//")
        .map_or(rest, |rest| &rest[rest.find(['/', '?', '#']).unwrap_or(rest.len())..]);
    opened(&unescaped(path))
}

/// Reads a URI by `uri.replace("file://", "")` alone.
fn stripped(uri: &str) -> Option<String> {
    opened(uri.strip_prefix("file://").unwrap_or(uri))
}

/// Strips the scheme, then decodes the rest. All of it is the path.
fn stripped_and_decoded(uri: &str) -> Option<String> {
    opened(&unescaped(uri.strip_prefix("file://").unwrap_or(uri)))
}

/// Reads a URI that a proxy or a router has decoded already.
fn decoded_twice(uri: &str) -> Option<String> {
    stripped_and_decoded(&unescaped(uri))
}

/// Joins the rest behind the folder's own URI to the folder, as Python's `os.path.join` does: an
/// absolute path starts over.
fn joined(uri: &str) -> Option<String> {
    let rest = unescaped(uri.strip_prefix(FOLDER_URI)?.strip_prefix('/')?);
    if rest.starts_with('/') { opened(&rest) } else { opened(&format!("{FOLDER}/{rest}")) }
}

/// Joins the rest segment by segment, split before it is decoded.
fn joined_by_segments(uri: &str) -> Option<String> {
    let mut path = FOLDER.to_owned();
    for segment in uri.strip_prefix(FOLDER_URI)?.strip_prefix('/')?.split('/').map(unescaped) {
        path = if segment.starts_with('/') { segment } else { format!("{path}/{segment}") };
    }
    opened(&path)
}

/// Leaves path parameters (`;x=1`) out of each segment, as servlet containers do.
fn without_parameters(uri: &str) -> Option<String> {
    let path = uri.strip_prefix("file://").unwrap_or(uri).split(['?', '#']).next()?;
    let segments: Vec<&str> =
        path.split('/').map(|segment| segment.split(';').next().unwrap_or_default()).collect();
    opened(&unescaped(&segments.join("/")))
}

/// Reads a path as Windows does: backslashes are slashes, a drive starts over, and names lose dots
/// and spaces at their ends.
fn windows(uri: &str) -> Option<String> {
    let path =
        unescaped(uri.strip_prefix("file://").unwrap_or(uri)).replace('\\', "/").replace('|', ":");
    let mut kept = Vec::new();
    for segment in path.split('/') {
        let shown = segment.trim_end_matches(' ');
        let is_up = shown.len() >= 2 && shown.bytes().all(|byte| byte == b'.');
        let name = if is_up { ".." } else { segment.trim_end_matches(['.', ' ']) };
        if name.len() >= 2 && name.as_bytes()[1] == b':' && name.as_bytes()[0].is_ascii_alphabetic()
        {
            kept = vec!["", "drive"];
        }
        kept.push(name);
    }
    opened(&kept.join("/"))
}

/// Maps compatibility forms of Unicode to ASCII after decoding.
fn compatible(uri: &str) -> Option<String> {
    let text: String = unescaped(uri)
        .chars()
        .map(|char| {
            char::from_u32(u32::from(char).wrapping_sub(0xfee0))
                .filter(|_| ('\u{ff01}'..='\u{ff5e}').contains(&char))
                .unwrap_or(char)
        })
        .collect();
    stripped(&text)
}

const READERS: [(&str, Reader); 13] = [
    ("rfc_3986", rfc_3986),
    ("whatwg", whatwg),
    ("whatwg_of_decoded", whatwg_of_decoded),
    ("go", go),
    ("python", python),
    ("stripped", stripped),
    ("stripped_and_decoded", stripped_and_decoded),
    ("decoded_twice", decoded_twice),
    ("joined", joined),
    ("joined_by_segments", joined_by_segments),
    ("without_parameters", without_parameters),
    ("windows", windows),
    ("compatible", compatible),
];

fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the readers that would look outside of the folder.
fn led_astray(uri: &str) -> Vec<&'static str> {
    READERS
        .iter()
        .filter(|(_, read)| read(uri).is_some_and(|path| !is_below(&path, FOLDER)))
        .map(|(name, _)| *name)
        .collect()
}

const BEGINNINGS: &[&str] = &[
    FOLDER_URI,
    "file:///srv/files/",
    "file:///srv/files/a",
    "file:///srv/files/a/b",
    "FILE:///srv/files",
    "file:/srv/files",
    "file:srv/files",
    "file://localhost/srv/files",
    "file://host/srv/files",
    "file:////srv/files",
    "file:///srv/%66iles",
    "file:///srv\\files",
    "file:///srv/./files",
    "file:///srv/x/../files",
    "file:///srv/files.",
    " file:///srv/files",
];
const PIECES: &[&str] = &[
    "/",
    "/",
    "/",
    "\\",
    "..",
    "..",
    "../",
    "/..",
    ".",
    "...",
    ".. ",
    "%2e",
    "%2E%2e",
    "%252e",
    "%2f",
    "%2F",
    "%5c",
    "%252f",
    "?",
    "?",
    "#",
    "#",
    "%3f",
    "%23",
    ";",
    ";x=",
    "a",
    "b",
    "%00",
    "%09",
    "\t",
    "\n",
    " ",
    "%20",
    "etc",
    "passwd",
    "C:",
    "C|",
    "%c0%ae",
    "%e0%80%ae",
    "//",
    "&",
    "=",
    "%",
    "%2",
    "%25",
    "\u{ff0e}",
    "%ef%bc%8e",
    "\u{ff0f}",
    "files",
    "srv",
    "@",
    ":",
    "+",
    "%u002e",
    "2e",
    "%0a",
];

fn uris() -> impl Strategy<Value = String> {
    let beginning = prop::sample::select(BEGINNINGS);
    let pieces = prop::collection::vec(prop::sample::select(PIECES), 0..9);
    (beginning, pieces).prop_map(|(beginning, pieces)| format!("{beginning}{}", pieces.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn s06_a_uri_in_a_root_is_below_it_for_every_reader(uri in uris()) {
        if Root::parse(FOLDER_URI).unwrap().contains(&uri) {
            prop_assert_eq!(led_astray(&uri), Vec::<&str>::new(), "{:?}", uri);
        }
    }

    #[test]
    fn s06_a_uri_without_traversal_stays_in_its_folder_for_every_reader(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..9)) {
        let uri = format!("{FOLDER_URI}/{}", pieces.concat());
        if check(&uri).is_ok() {
            for (name, read) in [("rfc_3986", rfc_3986 as Reader), ("whatwg", whatwg), ("go", go), ("stripped_and_decoded", stripped_and_decoded)] {
                prop_assert!(read(&uri).is_none_or(|path| is_below(&path, FOLDER)), "{} {:?}", name, uri);
            }
        }
    }

    #[test]
    fn s06_a_url_in_a_site_is_on_it_for_every_reader_of_urls(
        beginning in prop::sample::select(&["https://example.com/maps", "https://example.com", "https://Example.com/maps/a", "https://example.com\\@evil/maps", "https://evil@example.com/maps", "https://example.com:444/maps", "https:/example.com/maps", "https://example.com./maps"][..]),
        pieces in prop::collection::vec(prop::sample::select(PIECES), 0..9),
    ) {
        let uri = format!("{beginning}{}", pieces.concat());
        if Root::parse("https://example.com/maps").unwrap().contains(&uri) {
            for parsed in [url::Url::parse(&uri), url::Url::parse(&unescaped(&uri))] {
                let Ok(url) = parsed else { continue };
                let path = opened(&unescaped(url.path())).unwrap();
                prop_assert_eq!((url.scheme(), url.host_str(), url.port()), ("https", Some("example.com"), None), "{:?}", uri);
                prop_assert!(is_below(&path, "/maps"), "{:?}", uri);
            }
            let host: &str = uri["https://".len()..].split(['/', '?', '#', '\\']).next().unwrap();
            prop_assert!(host.eq_ignore_ascii_case("example.com"), "{:?}", uri);
        }
    }
}

#[test]
fn each_model_of_a_reader_is_misled_by_its_attack() {
    for (uri, reader) in [
        ("file:///srv/files/a?/../../../etc/passwd", "stripped"),
        ("file:///srv/files/a#/../../../etc/passwd", "stripped_and_decoded"),
        ("file:///srv/files/..?x", "rfc_3986"),
        ("file:///srv/files/%2e%2e/etc", "whatwg"),
        ("file:///srv/files/.\t./etc", "python"),
        ("file:///srv/files/%252e%252e/etc", "decoded_twice"),
        ("file:///srv/files//etc/passwd", "joined"),
        ("file:///srv/files/a/%2fetc/passwd", "joined_by_segments"),
        ("file:///srv/files/..;x/etc", "without_parameters"),
        ("file:///srv/files\\..\\etc", "windows"),
        ("file:///srv/files/C:/etc", "windows"),
        ("file:///srv/files/%ef%bc%8e%ef%bc%8e/etc", "compatible"),
        ("file://localhost/srv/files/a", "stripped"),
        ("FILE:///srv/files/a", "stripped"),
        ("file:///srv/%66iles/a", "stripped"),
    ] {
        assert!(led_astray(uri).contains(&reader), "{uri}: {:?}", led_astray(uri));
        assert!(!Root::parse(FOLDER_URI).unwrap().contains(uri), "{uri}");
    }
}

#[test]
fn traversal_is_found_in_every_spelling() {
    for uri in [
        "file:///srv/../etc/passwd",
        "file:///..",
        "file:..",
        "file://../etc",
        "../etc:x",
        "FILE:///srv/%2e%2E/etc",
        "file:///srv/.%2e/etc",
        "file:///srv%2f..%2fetc",
        "file:///srv/%252e%252e/etc",
        "file:///srv/%25252e%25252e/etc",
        "file:///srv\\..\\etc",
        "file:///srv/..%5cetc",
        "file:///srv/%c0%ae%c0%ae/etc",
        "file:///srv/%e0%80%ae%e0%80%ae/etc",
        "file:///srv/%f0%80%80%ae./etc",
        "file:///srv/a%00.txt",
        "file:///srv/.. /etc",
        "file:///srv/. ./etc",
        "file:///srv/.../etc",
        "file:///srv/..;a=b/etc",
        "file:///srv/.%0a./etc",
        "file:///srv/.%2%0de/etc",
        "file:///srv/%u002e%u002e/etc",
        "file:///srv/\u{ff0e}\u{ff0e}/etc",
        "file:///srv/\u{2025}/etc",
        "file:///srv/.\u{200b}./etc",
        "file:///srv/..\u{ff0f}etc",
        "file:///srv/%ef%bc%852e./etc",
        "test://one/..?x",
        "note:a/../b",
        "..",
    ] {
        assert_eq!(check(uri), Err(Traversal), "{uri}");
    }
    let deep = (0..20).fold("file:///srv/%2e%2e/etc".to_owned(), |uri, _| uri.replace('%', "%25"));
    assert_eq!(check(&deep), Err(Traversal));
}

#[test]
fn s06_a_query_or_fragment_cannot_hide_a_traversal() {
    for uri in [
        "file:///srv/files/a?/../../../etc/passwd",
        "file:///srv/files/a#/../../../etc/passwd",
        "file:///srv/files/a?x/..",
        "file:///srv/files/..#x",
        "file:///srv/files/a%3f/../../x",
        "file:///srv/files/a%23%2f%2e%2e%2fx",
        "file:///srv/files/?path=../x",
        "file:///srv/files/?a=1&..",
        "notes://a?/../../b",
        "https://example.com/a?q=../..#../x",
    ] {
        assert_eq!(check(uri), Err(Traversal), "{uri}");
        assert!(!Root::parse(FOLDER_URI).unwrap().contains(uri), "{uri}");
    }
}

#[test]
fn ordinary_uris_are_accepted() {
    for uri in [
        "file:///srv/files/a..b/..c/d..",
        "file:///srv/./a",
        "git://repo/HEAD..main?range=v1..v2#L1..L9",
        "https://example.com/a%20b/100%25?q=a.b&c=/d#e",
        "urn:isbn:1",
        "note:%7Bbraces%7D",
        "note:a%0Ab\u{3000}c",
        "test://ünï/ç%C3%A7",
        "db://table/50%",
        "file:///{path}",
    ] {
        assert_eq!(check(uri), Ok(()), "{uri}");
    }
}

#[test]
fn a_root_contains_itself_and_everything_below_it() {
    let root = Root::parse("file:///srv/files/").unwrap();
    for uri in [
        "file:///srv/files",
        "file:///srv/files/",
        "file:///srv/files/a/b.txt",
        "file:///srv/files/./a/",
        "file:///srv/files/a%20b",
        "file:///srv/files/a%2fb",
        "file:///srv/files/what?.txt",
        "file:///srv/files/c#/main.c",
        "file:///srv/files/ç%C3%A7",
        "file:///srv/files/{path}",
    ] {
        assert!(root.contains(uri), "{uri}");
        assert_eq!(led_astray(uri), Vec::<&str>::new(), "{uri}");
    }
    for uri in [
        "file:///srv/filesystem/a",
        "file:///srv/Files/a",
        "file:///srv",
        "file:///",
        "file:/srv/files/a",
        "file://other/srv/files/a",
        "file://localhost/srv/files/a",
        "FILE:///srv/files/a",
        "https:///srv/files/a",
        "file:///srv/files/../x",
        "file:///srv/%66iles/a",
        "file:///srv/files%2Fa",
        "file:///srv/files?a",
        "file:///srv/files#a",
        "file:///srv/files;a",
        "file:///srv/files{/a}",
        "file:///srv//files/a",
        "file:///srv/files//a",
        "file:///srv/files/%2fa",
        "file:///srv/files/a/%5cb",
        "file:///srv/files\\a",
        "srv/files/a",
    ] {
        assert!(!root.contains(uri), "{uri}");
    }
    let everything = Root::parse("file:///").unwrap();
    assert!(
        everything.contains("file:///etc/x")
            && everything.contains("file:///")
            && !everything.contains("file://host/x")
    );
    let letters = Root::parse("file:///srv/grün").unwrap();
    assert!(
        letters.contains("file:///srv/gr%C3%BCn/a%20b")
            && letters.contains("file:///srv/grün")
            && !letters.contains("file:///srv/gr%FCn/a")
    );
}

#[test]
fn roots_of_other_schemes_contain_uris_below_them() {
    let site = Root::parse("https://Example.com/maps").unwrap();
    assert!(
        site.contains("https://example.com/maps/1?x=1")
            && !site.contains("https://example.com.evil/maps/1")
    );
    assert!(
        site.contains("https://example.com/maps?u=http://a/b")
            && site.contains("https://EXAMPLE.com/maps#a")
    );
    assert!(
        !site.contains("https://example.com/map") && !site.contains("http://example.com/maps/1")
    );
    assert!(
        !site.contains("https://example.com@evil/maps/1")
            && !site.contains("https://example.com/maps//evil/x")
    );
    let host = Root::parse("https://example.com").unwrap();
    assert!(
        host.contains("https://example.com")
            && host.contains("https://example.com/a")
            && host.contains("https://example.com?a")
    );
    for uri in [
        "https://example.com\\@evil/",
        "https://example.com:1/",
        "https://example.com@evil/",
        "https://example.com//evil",
    ] {
        assert!(!host.contains(uri), "{uri}");
    }
    let memo = Root::parse("memo://").unwrap();
    assert!(
        memo.contains("memo://insights")
            && memo.contains("memo:x")
            && !memo.contains("memos://insights")
            && !memo.contains("MEMO:x")
    );
    assert!(
        !Root::empty().contains("")
            && !Root::empty().contains("file:///")
            && !Root::empty().contains("..")
    );
    assert!(!Root::empty().contains(":..") && !Root::empty().contains(":../x"));
    assert!(
        Root::parse("urn:isbn")
            .is_some_and(|root| root.contains("urn:isbn") && !root.contains("urn:isbn:1"))
    );
    for text in [
        "",
        "/srv",
        "srv/files",
        "file:///a/../b",
        "file:///a%2fb",
        "file:///a?b",
        "1x:///a",
        "file:///a b",
        "file:///a/./b",
        "file:////a",
        "file:///a//b",
    ] {
        assert_eq!(Root::parse(text), None, "{text}");
    }
}

#[test]
fn s06_a_path_joined_to_a_folder_has_no_control_characters() {
    for control in ['\0', '\u{1}', '\t', '\n', '\r', '\u{1b}', '\u{7f}', '\u{85}', '\u{9f}'] {
        for path in [
            format!("..{control}/x"),
            format!(".{control}./.{control}./etc"),
            format!("{control}/etc"),
            format!("a{control}b"),
        ] {
            assert_eq!(check_relative(&path), Err(Traversal), "{path:?}");
        }
    }
    for path in ["a%00b", "a%0ab", "%7f", "a%2509b", "a%c2%85b"] {
        assert_eq!(check_relative(path), Err(Traversal), "{path}");
    }
}

#[test]
fn s06_characters_that_readers_ignore_cannot_hide_a_traversal() {
    for hidden in [
        '\u{ad}',
        '\u{34f}',
        '\u{600}',
        '\u{61c}',
        '\u{180e}',
        '\u{200b}',
        '\u{202a}',
        '\u{202e}',
        '\u{2060}',
        '\u{2066}',
        '\u{3164}',
        '\u{fe0f}',
        '\u{feff}',
        '\u{fffb}',
        '\u{110bd}',
        '\u{1d173}',
        '\u{e0041}',
        '\u{e0100}',
    ] {
        for path in [
            format!(".{hidden}./x"),
            format!("..{hidden}/x"),
            format!("{hidden}../x"),
            format!("a/..{hidden}"),
        ] {
            assert_eq!(check_relative(&path), Err(Traversal), "{path:?}");
            let uri = format!("{FOLDER_URI}/{path}");
            assert_eq!(check(&uri), Err(Traversal), "{uri:?}");
            assert!(!Root::parse(FOLDER_URI).unwrap().contains(&uri), "{uri:?}");
        }
        assert_eq!(check(&format!("{FOLDER_URI}/a{hidden}b")), Ok(()));
    }
    for path in ["..%/x", "%../x", "..\u{a5}x", "..\u{20a9}x", "a\u{a5}..\u{a5}x", "\u{20a9}etc"] {
        assert_eq!(check_relative(path), Err(Traversal), "{path:?}");
    }
}

#[test]
fn s06_a_path_joined_to_a_folder_stays_in_it() {
    for path in ["", "a", "a/b.txt", "a b", "a?b", "what..", "a/"] {
        assert_eq!(check_relative(path), Ok(()), "{path}");
    }
    for path in [
        "..",
        "../a",
        "a/../b",
        "/etc",
        "%2fetc",
        "\\etc",
        "a//b",
        "C:\\x",
        "a/%2e%2e",
        "?..",
        "a\u{ff0f}\u{ff0f}b",
    ] {
        assert_eq!(check_relative(path), Err(Traversal), "{path}");
    }
}

#[test]
fn an_absolute_path_after_spaces_is_refused() {
    for path in [" /etc/passwd", "  \\\\host\\share", " //host/a"] {
        assert_eq!(check_relative(path), Err(Traversal), "{path}");
    }
    assert_eq!(check_relative(" a b/c"), Ok(()));
}
