//! The built files of the console, which are a part of the program. `npm run build` in `console/`
//! writes them, and they are committed.

use axum::{
    extract::Path,
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use include_dir::{Dir, include_dir};

use crate::listeners::admin::problem::{self, Problem};

static FILES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../console/dist");
/// Names the other files by their hashes, so it changes with each of them.
const INDEX: &str = "index.html";
const COMPRESSED: &str = "gz";

/// Sends a browser to the folder, whose relative addresses then work.
pub(super) async fn redirect() -> impl IntoResponse {
    (StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, "console/")])
}

pub(super) async fn index(uri: Uri, headers: HeaderMap) -> Response {
    serve(INDEX, uri, &headers).await
}

pub(super) async fn file(Path(path): Path<String>, uri: Uri, headers: HeaderMap) -> Response {
    serve(&path, uri, &headers).await
}

async fn serve(path: &str, uri: Uri, headers: &HeaderMap) -> Response {
    let Some((bytes, kind)) = FILES.get_file(path).zip(media_type(path)) else {
        return absent(uri).await.into_response();
    };
    let packed = FILES.get_file(format!("{path}.{COMPRESSED}"));
    let packed = packed.filter(|_| takes_gzip(headers));
    let contents = packed.unwrap_or(bytes).contents();
    let mut response = ([(header::CONTENT_TYPE, kind)], contents).into_response();
    let answered = response.headers_mut();
    answered.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if packed.is_some() {
        answered.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    let caching = match path {
        INDEX => "no-cache",
        _ => "public, max-age=31536000, immutable",
    };
    answered.insert(header::CACHE_CONTROL, HeaderValue::from_static(caching));
    response
}

async fn absent(uri: Uri) -> Problem {
    problem::no_such_route(uri).await
}

/// Returns the media type of a file. Compressed files are not served under their own names.
fn media_type(path: &str) -> Option<&'static str> {
    match path.rsplit_once('.')?.1 {
        "html" => Some("text/html; charset=utf-8"),
        "js" => Some("text/javascript; charset=utf-8"),
        "css" => Some("text/css; charset=utf-8"),
        "svg" => Some("image/svg+xml"),
        _ => None,
    }
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    let mut given = headers.get_all(header::ACCEPT_ENCODING).iter();
    given.any(|value| {
        let mut codings = value.to_str().unwrap_or_default().split(',');
        codings.any(|coding| {
            let (name, quality) = coding.split_once(';').unwrap_or((coding, "q=1"));
            let is_refused = matches!(quality.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000");
            name.trim().eq_ignore_ascii_case("gzip") && !is_refused
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compressed bytes of the files that a browser loads before anything is shown, and of all.
    const FIRST_BYTES_MAX: usize = 150 * 1024;
    const ALL_BYTES_MAX: usize = 200 * 1024;

    fn assets() -> Vec<(String, usize)> {
        let folder = FILES.get_dir("assets").unwrap();
        let name = |file: &include_dir::File<'_>| file.path().to_str().unwrap().to_owned();
        folder.files().map(|file| (name(file), file.contents().len())).collect()
    }

    #[test]
    fn the_console_files_stay_within_their_size_budget() {
        let index = FILES.get_file(INDEX).unwrap().contents_utf8().unwrap();
        let packed: Vec<_> =
            assets().into_iter().filter(|(name, _)| name.ends_with(".gz")).collect();
        assert!(!packed.is_empty());
        let all: usize = packed.iter().map(|(_, bytes)| bytes).sum();
        let is_first = |name: &str| index.contains(name.trim_end_matches(".gz"));
        let first: usize =
            packed.iter().filter(|(name, _)| is_first(name)).map(|(_, bytes)| bytes).sum();
        assert!(first > 0 && first <= FIRST_BYTES_MAX, "the first view takes {first} bytes");
        assert!(all <= ALL_BYTES_MAX, "all files take {all} bytes");
    }

    #[test]
    fn the_page_has_no_inline_script_and_no_external_url() {
        let index = FILES.get_file(INDEX).unwrap().contents_utf8().unwrap();
        for forbidden in ["http:", "https:", "//", "<style", "style=", " on", "\"/"] {
            assert!(!index.contains(forbidden), "{forbidden:?} in {index}");
        }
        for script in index.split("<script").skip(1) {
            let (tag, rest) = script.split_once('>').unwrap();
            assert!(tag.contains("src=\"./assets/"), "{tag}");
            assert!(rest.starts_with("</script>"), "an inline script");
        }
    }

    #[test]
    fn every_text_file_exists_plain_and_compressed() {
        for (name, _) in assets().iter().filter(|(name, _)| !name.ends_with(".gz")) {
            assert!(media_type(name).is_some(), "{name} has no media type");
            assert!(FILES.get_file(format!("{name}.gz")).is_some(), "{name}");
        }
    }

    #[test]
    fn gzip_is_sent_only_to_clients_that_accept_it() {
        let takes = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(value));
            takes_gzip(&headers)
        };
        assert!(takes("gzip, deflate, br") && takes("br;q=1, gzip;q=0.5"));
        assert!(!takes("br") && !takes("gzip;q=0") && !takes_gzip(&HeaderMap::new()));
    }
}
