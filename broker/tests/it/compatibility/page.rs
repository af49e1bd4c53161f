//! The generated part of `docs/compatibility.md`, between two comments. Run with `UPDATE_DOCS=1` to
//! replace it.

use std::fmt::Write;

use protocol::error::ErrorKind;

use super::{Of, REVISIONS, Row, STATELESS, table::ROWS};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/compatibility.md");
const BEGIN: &str = "<!-- matrix -->\n";
const END: &str = "<!-- end of matrix -->";

/// Number of revisions with sessions.
const LEGACY: usize = REVISIONS.len() - 1;

/// Features that cannot be bridged: the case, the outcome, and the test or the row that shows it.
const LIMITS: [(&str, &str, &str); 14] = [
    (
        "A backend with sessions sends a question without a request in flight to a client of 2026-07-28",
        "the broker answers at once: -32601, or `cancel` for an elicitation",
        "br_07_questions_without_an_open_request_are_refused",
    ),
    (
        "Such a backend sends a question during a list, a completion or a subscription",
        "the same",
        "br_07_questions_during_lists_completions_and_subscriptions_are_refused",
    ),
    (
        "A backend of 2026-07-28 answers another method than `tools/call`, `prompts/get` and `resources/read` with `input_required`",
        "1009 `backend_protocol_error`",
        "a question during a completion",
    ),
    (
        "State of a backend for each session, for clients of 2026-07-28",
        "requests of one caller share a session at the backend",
        "requests_of_one_caller_share_a_backend_session_and_run_concurrently",
    ),
    (
        "`notifications/roots/list_changed` to or from 2026-07-28",
        "not sent: the backend requests roots each time",
        "`notifications/roots/list_changed`",
    ),
    (
        "Log messages that belong to no request, for clients of 2026-07-28",
        "dropped and counted (`mcp_dropped_notifications_total`)",
        "br_07_notifications_of_no_request_are_dropped_and_counted",
    ),
    (
        "Resuming a broken stream of 2026-07-28",
        "the request is cancelled; `Last-Event-ID` is ignored",
        "n_sse_03_closing_the_stream_cancels_the_request",
    ),
    (
        "Tasks that a client of 2026-07-28 would host for a backend",
        "the broker answers the backend without a task, and its requests about tasks with -32601",
        "br_07_a_backend_cannot_create_a_task_at_the_client",
    ),
    (
        "`tasks/list` and `tasks/result` of clients of 2026-07-28",
        "-32601 `method_not_found`, HTTP 404",
        "methods that 2026-07-28 removed",
    ),
    (
        "A client with a session refuses input that a backend of 2026-07-28 needs (sampling: -1)",
        "its call ends with that error; the broker does not call the backend again",
        "br_02_an_input_refused_by_the_client_fails_its_call_with_that_error",
    ),
    (
        "Lists of backends with sessions, in shared caches",
        "`cacheScope` is `compat.list_scope` (default `private`); `ttlMs` is `compat.list_ttl`",
        "n_disc_01_a_discover_result_describes_the_endpoint",
    ),
    (
        "Structured content that is not an object, for clients with sessions",
        "sent as text",
        "structured content that is not an object",
    ),
    (
        "A call waits for its client, and the process of the call ends",
        "`outcome_unknown` for a tool that was called; otherwise -32602 \"the request state expired\", and the client sends the request again without the state",
        "br_03_a_call_of_a_killed_replica_is_never_repeated",
    ),
    (
        "An unknown `resultType` of a backend, an unknown method of a client",
        "1009 `backend_protocol_error`; -32601 `method_not_found`",
        "an unknown `resultType`",
    ),
];

fn letter_text(row: &Row, letter: char) -> String {
    match letter {
        '=' => "same".to_owned(),
        't' => "translated".to_owned(),
        '-' => "–".to_owned(),
        _ => {
            let refusal = row.refusal(letter);
            format!("{} `{}`", refusal.code, refusal.kind)
        }
    }
}

/// Combines neighbouring revisions with the same outcome.
fn runs(row: &Row, revisions: &[Of], letter: impl Fn(Of) -> char) -> String {
    let mut runs: Vec<(char, Of, Of)> = Vec::new();
    for of in revisions {
        match runs.last_mut() {
            Some((known, _, last)) if *known == letter(*of) => *last = *of,
            _ => runs.push((letter(*of), *of, *of)),
        }
    }
    if let [(only, ..)] = runs.as_slice() {
        return letter_text(row, *only);
    }
    let last_of_all = *revisions.last().expect("there are revisions");
    let cells = runs.iter().filter(|(letter, ..)| *letter != '-').map(|(letter, first, last)| {
        let source = match (first == last, *last == last_of_all) {
            (true, _) => REVISIONS[*first].to_owned(),
            (false, true) => format!("from {}", REVISIONS[*first]),
            (false, false) => format!("{} to {}", REVISIONS[*first], REVISIONS[*last]),
        };
        format!("{} ({source})", letter_text(row, *letter))
    });
    cells.collect::<Vec<_>>().join(", ")
}

fn summary(out: &mut String) {
    let columns = REVISIONS.map(|revision| format!(" {revision} |")).concat();
    writeln!(out, "| client \\ backend |{columns}\n|---|{}", "---|".repeat(REVISIONS.len()))
        .expect("a string takes it");
    for (client, name) in REVISIONS.iter().enumerate() {
        let cell = |backend: Of| {
            let letters: Vec<char> = ROWS.iter().map(|row| row.letter(client, backend)).collect();
            let count =
                |wanted: fn(char) -> bool| letters.iter().filter(|letter| wanted(**letter)).count();
            let (same, translated) = (count(|letter| letter == '='), count(|letter| letter == 't'));
            format!(
                " {same} / {translated} / {} |",
                count(|letter| letter.is_ascii_alphabetic() && letter != 't')
            )
        };
        writeln!(out, "| {name} |{}", (0..REVISIONS.len()).map(cell).collect::<String>())
            .expect("a string takes it");
    }
}

/// Writes a table of behaviours, with a column for each of `columns`. `cell` returns the content of
/// a cell.
fn behaviours(out: &mut String, columns: &[String], cell: impl Fn(&Row, usize) -> String) {
    writeln!(out, "| behaviour | {} |\n|---|{}", columns.join(" | "), "---|".repeat(columns.len()))
        .expect("a string takes it");
    for row in ROWS {
        let cells: Vec<String> = (0..columns.len()).map(|column| cell(row, column)).collect();
        if cells.iter().any(|cell| cell != "–") {
            writeln!(out, "| {} | {} |", row.name, cells.join(" | ")).expect("a string takes it");
        }
    }
}

fn generated() -> String {
    let legacy: Vec<Of> = (0..LEGACY).collect();
    let mut out = format!(
        "{} behaviours. Each field counts those that are the same / translated / refused. The others do not exist between the two revisions.\n\n",
        ROWS.len()
    );
    summary(&mut out);
    out.push_str("\n### Both sides with sessions\n\nOne column for each revision of the client. Brackets hold the revisions of the backend, where they differ.\n\n");
    let names = |side: &str| {
        REVISIONS[..LEGACY].iter().map(|revision| format!("{side} {revision}")).collect::<Vec<_>>()
    };
    behaviours(&mut out, &names("client"), |row, client| {
        runs(row, &legacy, |backend| row.letter(client, backend))
    });
    writeln!(out, "\n### Clients of {STATELESS}\n").expect("a string takes it");
    let mut columns = names("backend");
    columns.push(format!("backend {STATELESS}"));
    behaviours(&mut out, &columns, |row, backend| letter_text(row, row.letter(LEGACY, backend)));
    writeln!(out, "\n### Backends of {STATELESS}, clients with sessions\n")
        .expect("a string takes it");
    behaviours(&mut out, &names("client"), |row, client| {
        letter_text(row, row.letter(client, LEGACY))
    });
    out.push_str("\n### How\n\n| behaviour | what the broker does |\n|---|---|\n");
    for row in ROWS.iter().filter(|row| !row.note.is_empty()) {
        writeln!(out, "| {} | {} |", row.name, row.note).expect("a string takes it");
    }
    out.push_str("\n### What is refused, and why\n\n| behaviour | code | `data.kind` | refusal | why |\n|---|---|---|---|---|\n");
    for row in ROWS {
        for refusal in row.refusals {
            let kind = ErrorKind::ALL
                .iter()
                .find(|kind| kind.name() == refusal.kind)
                .unwrap_or_else(|| panic!("no kind {}", refusal.kind));
            let number = kind.refusal_code().map_or(String::new(), |number| number.to_string());
            writeln!(
                out,
                "| {} | {} | `{}` | {number} | {} |",
                row.name, refusal.code, refusal.kind, refusal.why
            )
            .expect("a string takes it");
        }
    }
    out.push_str("\n### What cannot be bridged\n\nThe broker does not wait for any of these. This table or a metric shows each loss.\n\n| what | what happens |\n|---|---|\n");
    for (what, instead, _) in LIMITS {
        writeln!(out, "| {what} | {instead} |").expect("a string takes it");
    }
    out
}

#[test]
fn the_documented_compatibility_equals_the_tested_one() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let written = format!("{before}{BEGIN}{}{END}{after}", generated());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(PAGE, &written).unwrap();
    }
    assert!(
        page == written || std::env::var_os("UPDATE_DOCS").is_some(),
        "docs/compatibility.md: run this test with UPDATE_DOCS=1"
    );
}

#[test]
fn br_07_every_limit_of_the_bridge_is_shown_by_a_test() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it");
    let modules = ["stateless", "stateless_backends"]
        .map(|module| std::fs::read_dir(format!("{folder}/{module}")).unwrap());
    let sources: String = modules
        .into_iter()
        .flatten()
        .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap())
        .collect();
    for (what, _, shown_by) in LIMITS {
        let is_row = ROWS.iter().any(|row| row.name == shown_by);
        assert!(
            is_row || sources.contains(&format!("async fn {shown_by}(")),
            "{what}: {shown_by} does not exist"
        );
    }
}

#[test]
fn the_compatibility_table_is_complete() {
    assert!(ROWS.len() >= 30);
    for row in ROWS {
        for client in 0..REVISIONS.len() {
            for backend in 0..REVISIONS.len() {
                row.expected(client, backend);
            }
        }
        let used = |letter: char| row.cells.iter().any(|line| line.contains(letter));
        assert!(
            row.refusals.iter().all(|refusal| used(refusal.letter)),
            "{}: a refusal of no cell",
            row.name
        );
        assert_eq!(ROWS.iter().filter(|other| other.name == row.name).count(), 1, "{}", row.name);
    }
}
