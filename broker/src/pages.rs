//! Pages of `docs/` that are generated from tables in the code, and checks of the other pages.
//!
//! Built for tests only. Run with `UPDATE_DOCS=1` to write the generated pages again.

mod limits;

use std::{collections::BTreeSet, fs};

use config::validation::{parse_backend_spec, parse_tenant_spec};
use protocol::{error, method};

use crate::{
    listeners::admin::openapi,
    metrics::labels::{LINK_TRANSPORTS, TEXT_LABELS},
};

fn path(page: &str) -> String {
    format!("{}/../docs/{page}", env!("CARGO_MANIFEST_DIR"))
}

#[track_caller]
fn assert_current(page: &str, text: &str) {
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path(page), text).unwrap();
    }
    let written = fs::read_to_string(path(page)).unwrap_or_default();
    assert!(
        written == text,
        "docs/{page} differs from its table: run this test with UPDATE_DOCS=1"
    );
}

#[test]
fn the_page_of_errors_is_up_to_date() {
    let text = format!(
        "# Errors\n\n\
        This page is generated from the table of refusals in the broker.\n\n\
        Every refusal of the broker is a JSON-RPC error of this form. The broker writes its text; it never copies text of a backend:\n\n\
        ```json\n\
        {{\"jsonrpc\":\"2.0\",\"id\":4,\"error\":{{\"code\":-32602,\"message\":\"unknown name \\\"nope\\\"\",\"data\":{{\"kind\":\"tool_not_found\",\"retryable\":false,\"requestId\":\"382138a4ada91965\"}}}}}}\n\
        ```\n\n\
        - `data.kind` names the reason for programs.\n\
        - `data.retryable` is true when the client can send the request again: it had no effect, or a second effect does no harm.\n\
        - `data.retryAfterMs` is the time to wait, if the broker can compute it. An HTTP status other than 200 carries `Retry-After` too.\n\
        - `data.requestId` finds the request in the broker's log, at level `debug` (`internal`: `error`).\n\
        - `code` is the code of the specification. Where the specification has none, it is a positive refusal number, outside the \
        reserved range of JSON-RPC in every revision.\n\
        - `data.refusalCode` is the number of the column *refusal*, if there is one.\n\
        - In 2026-07-28, -32601 has HTTP status 404, and `resource_not_found` has the code -32602.\n\n\
        The HTTP status applies to a refusal before the broker accepts the request: the refusal is the whole answer to a POST, GET or \
        DELETE. A refusal of an accepted call comes with status 200, as JSON or on the event stream of the call. \
        [transports.md](transports.md) lists the statuses in the order of the checks.\n\n\
        The broker forwards an error of a backend unchanged, with the request id of the client. It translates only resource URIs and \
        task ids in it.\n\n\
        ## Kinds\n\n{}\n\
        ## Refusal numbers\n\n{}",
        error::kinds_markdown(),
        error::refusal_numbers_markdown()
    );
    assert_current("errors.md", &text);
}

#[test]
fn the_page_of_methods_is_up_to_date() {
    let text = format!(
        "# Methods\n\n\
        This page is generated from the routing table of the broker. It holds every request and notification of the five \
        revisions. Methods since 2026-07-28 are for clients of that revision: see [compatibility.md](compatibility.md).\n\n\
        *Sent by* means the MCP client or the MCP server; the broker is the server for its clients and the client of its \
        backends. The broker serves a method when the revision of the session has it and the peer declared its capability.\n\n{}",
        method::methods_markdown()
    );
    assert_current("methods.md", &text);
}

#[test]
fn the_openapi_document_is_up_to_date() {
    let document = serde_json::to_string_pretty(&openapi::document()).unwrap();
    assert_current("openapi.json", &format!("{document}\n"));
}

/// A value outside of its set would have no series before its first event.
#[test]
fn label_values_are_in_their_closed_sets() {
    let sources = sources();
    for (function, allowed) in TEXT_LABELS {
        let call = format!(".{function}(");
        let calls = sources.split(&call).skip(1).map(arguments);
        let used: BTreeSet<&str> = calls.flat_map(|it| it.split('"').skip(1).step_by(2)).collect();
        assert!(!used.is_empty(), "{function} is not called");
        let unknown: Vec<_> = used.iter().filter(|value| !allowed.contains(value)).collect();
        assert!(unknown.is_empty(), "{function}: {unknown:?} are not in metrics/labels.rs");
    }
    let document = serde_json::to_value(openapi::document()).unwrap();
    let schemas = &document["components"]["schemas"];
    let variants = schemas["TransportSpec"]["oneOf"].as_array().unwrap();
    let named = variants.iter().map(|variant| {
        let name = variant["$ref"].as_str().unwrap().rsplit('/').next().unwrap();
        &schemas[name]["properties"]["type"]["enum"][0]
    });
    assert_eq!(named.collect::<Vec<_>>(), LINK_TRANSPORTS);
}

/// Returns the text up to the parenthesis that ends a call.
fn arguments(rest: &str) -> &str {
    let mut depth = 1;
    let end = rest.find(|character| {
        depth += i32::from(character == '(') - i32::from(character == ')');
        depth == 0
    });
    &rest[..end.unwrap_or(rest.len())]
}

#[test]
fn label_values_are_documented() {
    let page = fs::read_to_string(path("operations.md")).unwrap();
    for (function, values) in TEXT_LABELS {
        let start = format!("| `mcp_{function}");
        let row = page.lines().find(|line| line.starts_with(&start)).unwrap();
        let missing: Vec<_> =
            values.iter().filter(|value| !row.contains(&format!("`{value}`"))).collect();
        assert!(missing.is_empty(), "{start}: docs/operations.md does not name {missing:?}");
    }
}

#[test]
fn every_metric_is_documented() {
    let page = fs::read_to_string(path("operations.md")).unwrap();
    let product = include_str!("metrics.rs").split("#[cfg(test)]").next().unwrap_or_default();
    let product = format!(
        "{product}{}{}",
        include_str!("metrics/limits.rs"),
        include_str!("metrics/tokens.rs")
    );
    let declared = product.split('"').skip(1).step_by(2).filter(|text| {
        text.starts_with("mcp_")
            && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    });
    for metric in declared {
        assert!(page.contains(&format!("`{metric}")), "docs/operations.md does not name {metric}");
    }
}

fn pages() -> Vec<(String, String)> {
    let root = format!("{}/..", env!("CARGO_MANIFEST_DIR"));
    let docs = ["docs", "docs/decisions", "docs/internals"].into_iter().flat_map(|folder| {
        let entries = fs::read_dir(format!("{root}/{folder}")).unwrap();
        entries
            .map(move |entry| format!("{folder}/{}", entry.unwrap().file_name().to_string_lossy()))
    });
    let names = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
        .map(str::to_owned);
    let names = names.into_iter().chain(docs.filter(|name| name.ends_with(".md")));
    names
        .map(|name| (fs::read_to_string(format!("{root}/{name}")).unwrap(), name))
        .map(|(text, name)| (name, text))
        .collect()
}

#[test]
fn bodies_to_paste_are_valid() {
    let mut seen = 0;
    for (page, text) in pages() {
        for body in
            text.split('\'').skip(1).filter(|body| body.starts_with("{\"") && body.ends_with('}'))
        {
            let value: serde_json::Value = serde_json::from_str(body)
                .unwrap_or_else(|error| panic!("{page}: {body}: {error}"));
            let faults = match &value {
                body if body.get("transport").is_some() => parse_backend_spec(body).err(),
                body if body.get("limits").is_some() => parse_tenant_spec(body).err(),
                _ => None,
            };
            assert!(faults.is_none(), "{page}: {body}: {faults:?}");
            seen += 1;
        }
    }
    assert!(seen > 10, "only {seen} bodies were found");
}

/// Returns every Rust source of the repository, as one text.
fn sources() -> String {
    let mut folders: Vec<_> =
        ["broker", "config", "protocol", "rules", "storage", "testkit", "transport"]
            .map(|name| format!("{}/../{name}", env!("CARGO_MANIFEST_DIR")))
            .into();
    let mut text = String::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path().display().to_string();
            if entry.path().is_dir() {
                folders.push(path);
            } else if path.ends_with(".rs") {
                text.push_str(&fs::read_to_string(&path).unwrap());
            }
        }
    }
    text
}

#[test]
fn every_test_named_on_the_page_of_security_proofs_exists() {
    let page = fs::read_to_string(path("internals/security-proofs.md")).unwrap();
    let sources = sources();
    let rows: Vec<_> = page
        .lines()
        .filter(|line| {
            ["| A-", "| B-", "| F-", "| H-", "| J-", "| O-", "| Q-", "| S-", "| U-", "| W-"]
                .iter()
                .any(|start| line.starts_with(start))
        })
        .collect();
    for row in &rows {
        for name in row.split('`').skip(1).step_by(2).filter(|name| name.matches('_').count() > 2) {
            assert!(
                sources.contains(&format!("fn {name}(")),
                "docs/internals/security-proofs.md names the test {name}"
            );
        }
    }
    let all = [("A", 1..=27), ("A", 30..=43), ("B", 1..=26), ("J", 1..=24), ("O", 1..=12)];
    let wanted =
        [("U", 1..=14), ("F", 11..=20), ("H", 1..=16), ("H", 20..=25), ("W", 1..=8), ("Q", 1..=11)]
            .into_iter()
            .chain(all);
    for number in wanted
        .flat_map(|(letter, numbers)| numbers.map(move |number| format!("{letter}-{number:02}")))
    {
        assert!(
            rows.iter()
                .any(|row| row.split('|').nth(1).is_some_and(|first| first.contains(&number))),
            "docs/internals/security-proofs.md has no {number}"
        );
    }
}

#[test]
fn links_between_pages_have_a_target() {
    for (page, text) in pages() {
        let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            let found =
                std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder).join(file);
            assert!(found.exists(), "{page} links to {target}");
        }
    }
}
