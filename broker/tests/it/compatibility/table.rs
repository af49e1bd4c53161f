//! The table: the outcome of each behaviour between each two revisions.

use super::{Refusal, Row, content, errors, flow, kept, lists, opening, questions, tasks};

/// A line for each revision of the client, from 2024-11-05 to 2026-07-28; in it a letter for each
/// of the backend.
type Cells = [&'static str; 5];

const SAME: Cells = ["=====", "=====", "=====", "=====", "====="];
/// Messages that differ between the eras.
const BY_ERA: Cells = ["====t", "====t", "====t", "====t", "tttt="];
const REFUSED: Cells = ["aaaaa", "aaaaa", "aaaaa", "aaaaa", "aaaaa"];
const LEGACY_BACK: Cells = ["====-", "====-", "====-", "====-", "====-"];
const MODERN_BACK: Cells = ["----=", "----=", "----=", "----=", "----="];

const NONE: &[Refusal] = &[];

const fn refusal(letter: char, code: i64, kind: &'static str, why: &'static str) -> Refusal {
    Refusal { letter, code, kind, why }
}

macro_rules! rows {
    ($($name:literal $run:path, $cells:expr, $refusals:expr, $note:literal;)*) => {
        pub(super) const ROWS: &[Row] = &[
            $(Row { name: $name, run: |pair| Box::pin(async move { $run(&pair).await }), cells: $cells, refusals: $refusals, note: $note },)*
        ];
    };
}

const OLD_CLIENT_ELICITS: Refusal =
    refusal('a', -32601, "capability_missing", "the client's revision has no elicitation");

rows! {
    "handshake" opening::handshake, BY_ERA, NONE, "the broker answers `initialize` and `server/discover`, each from the other";
    "`ping` of the client" opening::ping, ["=====", "=====", "=====", "=====", "aaaaa"],
        &[refusal('a', -32601, "method_not_found", "2026-07-28 has no `ping`")], "the broker answers it";
    "`ping` of the backend" opening::ping_of_the_backend, LEGACY_BACK, NONE, "the broker answers it";
    "methods that 2026-07-28 removed" opening::removed_methods, ["-----", "-----", "-----", "-----", "aaaaa"],
        &[refusal('a', -32601, "method_not_found", "`logging/setLevel`, `resources/subscribe`, `tasks/list` and `tasks/result` of a client of 2026-07-28")], "";
    "`notifications/roots/list_changed`" opening::roots_changed, ["====-", "====-", "====-", "====-", "-----"], NONE, "a backend of 2026-07-28 requests the roots each time";
    "list of tools" lists::tools, ["=====", "=====", "=====", "ttttt", "====="], NONE, "`execution` states that every tool can run as a task, where the broker hosts tasks";
    "list of prompts" lists::prompts, SAME, NONE, "";
    "list of resources" lists::resources, SAME, NONE, "";
    "list of resource templates" lists::templates, SAME, NONE, "";
    "pagination of a list" lists::pages, SAME, NONE, "the broker issues its own cursors";
    "a cursor that the broker did not issue" lists::foreign_cursor, REFUSED, &[refusal('a', -32602, "cursor_invalid", "the broker signs its cursors")], "";
    "text in results of tools and prompts" content::text, SAME, NONE, "";
    "images" content::image, SAME, NONE, "";
    "audio" content::audio, ["-tttt", "-====", "-====", "-====", "-===="], NONE, "as an embedded resource with the same bytes";
    "embedded resources" content::embedded, SAME, NONE, "";
    "resource links" content::link, ["--ttt", "--ttt", "--===", "--===", "--==="], NONE, "as text with name and URI";
    "structured content" content::structured, ["--===", "--===", "--===", "--===", "--==="], NONE, "";
    "structured content that is not an object" content::structured_other, ["----t", "----t", "----t", "----t", "----="], NONE, "as text";
    "`outputSchema` that does not describe an object" lists::other_output_schema, ["----t", "----t", "----t", "----t", "----t"], NONE, "omitted: all clients get one list";
    "`isError`" content::tool_error, SAME, NONE, "";
    "unknown members of results" content::unknown_members_of_results, SAME, NONE, "byte for byte, `_meta` included";
    "arguments, `_meta` and unknown members of requests" content::bytes_of_requests, SAME, NONE, "byte for byte";
    "`prompts/get`" content::prompt, SAME, NONE, "";
    "`resources/read`" content::read, SAME, NONE, "";
    "`completion/complete`" content::completion, ["=====", "a====", "a====", "a====", "a===="],
        &[refusal('a', -32601, "capability_missing", "2024-11-05 has no capability for completion, so the broker does not offer it to later clients")], "";
    "an unknown tool" errors::unknown_tool, SAME, NONE, "-32602; at `/mcp` the broker returns it (`tool_not_found`)";
    "an unknown prompt" errors::unknown_prompt, SAME, NONE, "-32602; at `/mcp` the broker returns it (`prompt_not_found`)";
    "an unknown method" errors::unknown_method, REFUSED, &[refusal('a', -32601, "method_not_found", "the broker forwards no unknown method")], "";
    "params of the wrong type" errors::wrong_params, REFUSED, &[refusal('a', -32602, "invalid_params", "the broker has to read them to find the backend")], "";
    "error -32602 of the backend" errors::invalid_params, SAME, NONE, "";
    "error -32603 of the backend" errors::internal, SAME, NONE, "";
    "errors with codes that the backend defines" errors::own_code, SAME, NONE, "";
    "errors from -32000 to -32019" errors::legacy_code, LEGACY_BACK, NONE, "";
    "errors from -32023 to -32099" errors::reserved_code, ["====-", "====-", "====-", "====-", "tttt-"], NONE, "as -32603: 2026-07-28 reserves these codes";
    "an unknown resource" errors::missing_resource, BY_ERA, NONE, "-32002, and -32602 in 2026-07-28";
    "error -32021" errors::capability_required, MODERN_BACK, NONE, "";
    "an unknown `resultType`" errors::unknown_result_type, ["----a", "----a", "----a", "----a", "----a"],
        &[refusal('a', 1009, "backend_protocol_error", "the broker cannot translate an unknown extension")], "";
    "progress" flow::progress, SAME, NONE, "under the client's own token";
    "cancellation by the client" flow::cancellation, BY_ERA, NONE, "`notifications/cancelled`, and the end of the response over HTTP in 2026-07-28";
    "an answer after its stream broke (`Last-Event-ID`)" flow::resumption, ["-----", "ttttt", "ttttt", "ttttt", "-----"], NONE, "under event ids of the broker, whatever ids the backend sends; 2024-11-05 and 2026-07-28 have none";
    "log messages from a level upwards" flow::log_level, BY_ERA, NONE, "`logging/setLevel`, and `_meta` of each request";
    "subscription to a resource" flow::subscription, BY_ERA, NONE, "`resources/subscribe`, and `subscriptions/listen`";
    "a changed list of tools" lists::tools_changed, BY_ERA, NONE, "on the stream of the session, and on the stream of `subscriptions/listen`";
    "a changed list of prompts" lists::prompts_changed, BY_ERA, NONE, "";
    "a changed list of resources" lists::resources_changed, BY_ERA, NONE, "";
    "roots" questions::roots, BY_ERA, NONE, "a request of the backend, and `input_required`";
    "sampling" questions::sampling, BY_ERA, NONE, "";
    "sampling with tools" questions::sampling_with_tools, ["---aa", "---aa", "---aa", "---=t", "---t="],
        &[refusal('a', -32602, "invalid_params", "the client's revision has no tools in sampling")], "";
    "sampling with a content array of one" questions::sampling_array_of_one, ["---tt", "---tt", "---tt", "---=t", "---t="], NONE, "as the block alone";
    "sampling with a longer content array" questions::sampling_array, ["---aa", "---aa", "---aa", "---=t", "---t="],
        &[refusal('a', -32602, "invalid_params", "the client's revision has one block per message")], "";
    "sampling with audio" questions::sampling_with_audio, ["-aaaa", "-===t", "-===t", "-===t", "-ttt="],
        &[refusal('a', -32602, "invalid_params", "the client's revision has no audio")], "";
    "sampling answered with a content array of one" questions::sampling_answered_with_an_array, ["-----", "-----", "-----", "ttt=t", "tttt="], NONE, "as the block alone; a backend without longer arrays, audio or the use of tools gets error -32603 for them";
    "a question that the backend cancels" questions::withdrawn, ["====-", "====-", "====-", "====-", "tttt-"], NONE, "a client of 2026-07-28 gets no question, or gets the result when it comes back";
    "elicitation with a form" questions::elicitation, ["--aaa", "--aaa", "--==t", "--==t", "--tt="], &[OLD_CLIENT_ELICITS], "";
    "elicitation with several choices" questions::elicitation_of_several, ["---aa", "---aa", "---bb", "---=t", "---t="],
        &[OLD_CLIENT_ELICITS, refusal('b', -32602, "invalid_params", "the client's revision has no multiple choice")], "";
    "elicitation by URL" questions::elicitation_by_url, ["---aa", "---aa", "---bb", "---=t", "---t="],
        &[OLD_CLIENT_ELICITS, refusal('b', -32602, "invalid_params", "the client's revision has forms only")], "";
    "`notifications/elicitation/complete`" questions::url_opened, ["-----", "-----", "-----", "---=-", "---t-"], NONE, "the result shows it to a client of 2026-07-28";
    "error -32042" questions::url_required, ["---t-", "---t-", "---t-", "---=-", "---t-"], NONE, "a tool's error that names the URL for older clients, `input_required` for 2026-07-28";
    "a question to a client that declared nothing" questions::undeclared, ["aaaaa", "aaaaa", "aaaaa", "aaaaa", "aaaab"],
        &[refusal('a', -32601, "capability_missing", "the client has no such capability"), refusal('b', -32021, "client_capability_required", "the request does not declare what the backend needs")], "";
    "a question during a completion" questions::beside_a_call, ["====b", "c===b", "c===b", "c===b", "caaab"],
        &[refusal('c', -32601, "capability_missing", "the broker does not offer completion: see above"), refusal('a', -32601, "method_not_found", "2026-07-28 has no `input_required` for completion"), refusal('b', 1009, "backend_protocol_error", "2026-07-28 has no `input_required` for completion")], "";
    "a question without a request in flight" questions::unasked, ["====-", "====-", "====-", "====-", "aaaa-"],
        &[refusal('a', -32601, "method_not_found", "a client of 2026-07-28 gets questions only in the answer to its request")], "";
    "a `requestState` without a question" questions::state_alone, ["----t", "----t", "----t", "----t", "----t"], NONE, "the broker repeats the request with it";
    "batches" flow::batch, ["-----", "ttttt", "-----", "-----", "-----"], NONE, "the broker forwards each message separately";
    "a call as a task (2025-11-25)" flow::task, ["-----", "-----", "-----", "ttttt", "-----"], NONE, "the broker hosts it";
    "cancellation of a task that a backend of 2025-11-25 hosts" kept::cancelled, ["-----", "-----", "-----", "---t-", "---t-"], NONE, "the broker cancels the task at the backend too";
    "a task that a backend of 2025-11-25 hosts" kept::watched, ["-----", "-----", "-----", "---t-", "---t-"], NONE, "under an id of the broker, which polls it";
    "a call without a task of a tool that can run as one" kept::optional, ["---=-", "---=-", "---=-", "---=-", "---=-"], NONE, "";
    "a call without a task of a tool that only runs as one" kept::required, ["---a-", "---a-", "---a-", "---a-", "---b-"],
        &[refusal('a', -32601, "capability_missing", "the tool runs only as a task, and the client did not request one"), refusal('b', -32021, "client_capability_required", "the request does not declare the extension of tasks")], "";
    "a task that a backend of 2026-07-28 creates for a call" flow::task_of_the_backend, ["----t", "----t", "----t", "----t", "----t"], NONE, "the broker waits for its end if the client requested no task";
    "a long call as a task (2026-07-28)" tasks::promotion, ["-----", "-----", "-----", "-----", "ttttt"], NONE, "the extension `io.modelcontextprotocol/tasks`; the broker hosts the task";
    "notification of the end of a task (2026-07-28)" tasks::end_notification, ["-----", "-----", "-----", "-----", "ttttt"], NONE, "`taskIds` in `subscriptions/listen`";
    "input for a task (2026-07-28)" tasks::update, ["-----", "-----", "-----", "-----", "ttttt"], NONE, "`tasks/update`";
    "cancellation of a task (2026-07-28)" tasks::cancel, ["-----", "-----", "-----", "-----", "ttttt"], NONE, "`tasks/cancel`";
    "`task` in a call of another revision" flow::task_member, ["ttttt", "ttttt", "ttttt", "-----", "ttttt"], NONE, "omitted";
}
