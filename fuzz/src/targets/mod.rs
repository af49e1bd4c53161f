//! The targets. Each file has one reader, or a few that are alike.

mod admin_bodies;
mod arguments;
mod configuration;
mod cursors;
mod envelope;
mod header_values;
mod http_reader;
mod json;
mod lines;
mod plain_posts;
mod policies;
mod policy_uris;
mod proxy_header;
mod request_framing;
mod resource_uris;
mod responses;
mod sealed_texts;
mod server_sent_events;
mod settings_faults;
mod splice;
mod text_changes;
mod token_rig;
mod tokens;
mod uri_readers;
mod websocket;

use std::{cell::RefCell, future::Future};

use tokio::runtime::{Builder, Runtime};

use crate::Target;

/// All targets of this crate.
pub const ALL: &[Target] = &[
    json::TARGET,
    envelope::TARGET,
    splice::TARGET,
    server_sent_events::TARGET,
    header_values::TARGET,
    request_framing::TARGET,
    plain_posts::TARGET,
    responses::TARGET,
    websocket::TARGET,
    lines::TARGET,
    proxy_header::TARGET,
    resource_uris::TARGET,
    policy_uris::TARGET,
    cursors::TARGET,
    policies::TARGET,
    arguments::TARGET,
    tokens::TARGET,
    sealed_texts::TARGET,
    admin_bodies::TARGET,
    configuration::TARGET,
];

/// Words of JSON-RPC and MCP, among them names that fold to others.
const MESSAGE_TOKENS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "null",
    "true",
    "-0",
    "1e999",
    "0.1",
    "\"\"",
    "\\u0000",
    "\\ud800",
    "\\udc00",
    "\\u0041",
    "\u{17f}",
    "\u{212a}",
    "\"jsonrpc\":\"2.0\",",
    "\"id\":1,",
    "\"ID\":2,",
    "\"\\u0069d\":3,",
    "\"method\":\"tools/call\",",
    "\"Method\":\"x\",",
    "\"params\":{}",
    "\"Params\":{},",
    "\"result\":{}",
    "\"error\":{\"code\":1,\"message\":\"m\"}",
    "\"name\":\"a\",",
    "\"Name\":\"b\",",
    "\"arguments\":{},",
    "\"argument\u{17f}\":{},",
    "\"uri\":\"file:///a\",",
    "\"URI\":\"b\",",
    "\"_meta\":{},",
    "\"progressToken\":1,",
    "\"progressTo\u{212a}en\":2,",
    "\"io.modelcontextprotocol/related-task\":{\"taskId\":\"t\"},",
    "\"task\":{\"taskId\":\"t\"},",
    "\"ref\":{\"name\":\"a\"},",
    "\"cursor\":\"c\",",
    "\"taskId\":\"t\",",
    "\"level\":\"info\",",
    "\"requestState\":\"s\",",
    "\"data\":{},",
    "\"code\":1,",
];

/// Words of HTTP/1.1.
const HTTP_TOKENS: &[&str] = &[
    "\r\n",
    "\n",
    "\r",
    " ",
    "\t",
    ":",
    ",",
    ";",
    "0\r\n\r\n",
    "1\r\nx\r\n",
    "POST",
    "GET",
    "HEAD",
    "CONNECT",
    "/",
    "/mcp",
    "*",
    "#",
    "HTTP/1.1",
    "HTTP/1.0",
    "HTTP/2.0",
    "Host: a\r\n",
    "Content-Length: 1\r\n",
    "Content-Length: 0\r\n",
    "content-length : 2\r\n",
    "Content-Length: +1\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: gzip, chunked\r\n",
    "transfer-encoding:\tchunked\r\n",
    "Connection: close\r\n",
    "Connection: keep-alive\r\n",
    "Expect: 100-continue\r\n",
    "Upgrade: websocket\r\n",
    "Accept: text/event-stream\r\n",
    "X: y\r\n",
    " folded\r\n",
    ";a=\"b\"",
    "0x",
    "ffffffffffffffff",
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 204 No Content\r\n",
    "HTTP/1.1 304 Not Modified\r\n",
];

/// Runs a future to its end on this thread.
fn block_on<T>(work: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
    }
    RUNTIME.with_borrow_mut(|runtime| {
        let runtime = runtime.get_or_insert_with(|| {
            Builder::new_current_thread().enable_all().build().expect("a runtime starts")
        });
        runtime.block_on(work)
    })
}
