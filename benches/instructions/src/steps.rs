//! The steps: reading an envelope, a call's way out (read, decided, rewritten), the head of its POST to
//! a backend with a static bearer and with the token of a connected account, the decision of an access
//! policy, and an answer's way back (read, restored).

use std::{collections::BTreeMap, hint::black_box, sync::Arc};

use aws_lc_rs::hmac;
use broker::{
    oauth::{LinkPosts, TokenCache},
    sessions::tenant_access::TenantCatalog,
};
use bytes::Bytes;
use http::{HeaderValue, Method as HttpMethod, Request, header::AUTHORIZATION};
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::{BackendId, PrincipalId, TenantId},
    json::Limits,
    method::Method,
    splice::Splice,
    version::Version,
};
use rules::{
    access::{AccessCheck, Object, Policy, Subject},
    catalog::{BackendLists, Catalog, ListKind, TaskHost, read_page},
    endpoint::Endpoint,
    exposure::ResourceUris,
    routing::{Decision, decide},
};
use transport::{HttpClient, http_client::HttpClientConfig};

/// Code that runs many times.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) prepare: fn() -> Box<dyn FnMut()>,
}

pub(crate) const STEPS: [Step; 9] = [
    Step { name: "decode 256 B", prepare: || decode(256) },
    Step { name: "decode 2 KB", prepare: || decode(2048) },
    Step { name: "decode 64 KB", prepare: || decode(65_536) },
    Step { name: "out 256 B", prepare: || out(256) },
    Step { name: "access", prepare: access },
    Step { name: "head, bearer", prepare: bearer },
    Step { name: "head, account", prepare: account },
    Step { name: "back 256 B", prepare: || back(256) },
    Step { name: "back 64 KB", prepare: || back(65_536) },
];

const TOOL: &str = "files__read";

fn decode(bytes: usize) -> Box<dyn FnMut()> {
    let frame = request(bytes);
    Box::new(move || drop(black_box(read(&frame))))
}

fn out(bytes: usize) -> Box<dyn FnMut()> {
    let (frame, catalog) = (request(bytes), catalog());
    let mut wire_id = 1_000_000_u64;
    Box::new(move || {
        let message = read(&frame);
        let decided = decide(
            &message,
            &Endpoint::Aggregated,
            &catalog.capabilities,
            Version::LATEST_WITH_SESSIONS,
            &catalog,
            None,
        );
        let Ok(Decision::Forward(plan)) = decided else {
            panic!("a call of a known tool is forwarded")
        };
        wire_id += 1;
        let mut splice = Splice::new(&message.frame);
        for span in message.id_span.into_iter().chain(message.fields.meta_progress_token) {
            splice.replace(span, wire_id.to_string().into_bytes());
        }
        for (span, text) in &plan.edits {
            splice.replace(*span, text.clone());
        }
        drop(black_box(splice.finish()));
    })
}

/// The decision about a call, under a thousand rules and over five thousand tools.
fn access() -> Box<dyn FnMut()> {
    let (catalog, subject) =
        (Arc::new(catalog_of(5_000)), Subject::of_principal(PrincipalId::new("ann")));
    let rules: Vec<_> = (0..1_000)
        .map(|number: u32| {
            serde_json::json!({
                "id": format!("r{number}"),
                "effect": if number.is_multiple_of(2) { "allow" } else { "deny" },
                "subjects": {"groups": [format!("g{}", number % 50)]},
                "objects": {"tools": [format!("files/tool_{number}*")]},
            })
        })
        .collect();
    let document = serde_json::from_value(serde_json::json!({"rules": rules})).expect("a policy");
    let policy = Policy::compile(&document, None).expect("a good policy");
    let tenant = TenantCatalog::new(catalog, Some(Arc::new(policy)), Arc::default());
    let backend = backend_id();
    Box::new(move || {
        let view = tenant.view(black_box(&subject)).expect("the tenant has a policy");
        let check = AccessCheck::new(&view, &subject);
        let traits = view.catalog.traits(&backend, "tool_4321").unwrap_or_default();
        let object = Object::Tool { backend: &backend, name: "tool_4321", traits };
        let absent = || Refusal::new(ErrorKind::ToolNotFound, "unknown name");
        check.check(Method::ToolsCall, &object, absent).expect("the tool is allowed");
        drop(black_box(check.into_recorded()));
    })
}

const TOKEN: &str = "Bearer 2YotnFZFEjr1zCsicMWpAA2YotnFZFEjr1zCsicMWpAA2YotnFZFEjr1zCsicMWpAA";

fn bare() -> Request<()> {
    let mut post = Request::new(());
    *post.method_mut() = HttpMethod::POST;
    *post.uri_mut() = "http://127.0.0.1:9/mcp".parse().expect("a good address");
    post
}

fn client() -> HttpClient {
    HttpClient::new(HttpClientConfig::default()).expect("nothing of the system is needed")
}

/// The head of a POST with a bearer of the settings, which every POST of the link has.
fn bearer() -> Box<dyn FnMut()> {
    let mut post = bare();
    post.headers_mut().insert(AUTHORIZATION, HeaderValue::from_static(TOKEN));
    let prepared = Arc::new(client().prepare(post).expect("a head without TLS"));
    Box::new(move || drop(black_box(black_box(&prepared).clone())))
}

/// The head of a POST with the token of a principal's account, among those of a thousand.
fn account() -> Box<dyn FnMut()> {
    let (cache, posts, client) = (TokenCache::default(), LinkPosts::default(), client());
    let principal = |number: u32| PrincipalId::new(format!("https://login.example user-{number}"));
    for number in 0..1_000 {
        cache.put(&principal(number), HeaderValue::from_static(TOKEN), Some(i64::MAX));
    }
    let ann = principal(500);
    Box::new(move || {
        let post = posts.last(cache.changes()).or_else(|| {
            // Every few seconds the product looks into the database.
            let held = cache.get(black_box(&ann)).or_else(|| {
                cache.put(&ann, HeaderValue::from_static(TOKEN), Some(i64::MAX));
                cache.get(&ann)
            });
            posts.with(&client, held?, bare)
        });
        drop(black_box(post.expect("a head without TLS")));
    })
}

fn back(bytes: usize) -> Box<dyn FnMut()> {
    let (frame, backend) = (answer(bytes), backend_id());
    Box::new(move || {
        let message = read(&frame);
        let mut splice = Splice::new(&message.frame);
        if let Some(span) = message.id_span {
            splice.replace(span, b"17".to_vec());
        }
        let uris = ResourceUris::find(&message, Method::ToolsCall, &Endpoint::Aggregated)
            .expect("every reader finds the same");
        uris.expose(&backend, &mut splice);
        drop(black_box(splice.finish()));
    })
}

fn read(frame: &Bytes) -> Message {
    Message::decode(black_box(frame).clone(), &Limits::default()).expect("the frame is a message")
}

fn request(bytes: usize) -> Bytes {
    let head = format!(
        r#"{{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{{"name":"{TOOL}","_meta":{{"progressToken":17}},"arguments":{{"text":""#
    );
    padded(head, r#""}}}"#, bytes)
}

fn answer(bytes: usize) -> Bytes {
    padded(
        r#"{"jsonrpc":"2.0","id":1000017,"result":{"content":[{"type":"text","text":""#.to_owned(),
        r#""}]}}"#,
        bytes,
    )
}

fn padded(mut text: String, tail: &str, bytes: usize) -> Bytes {
    const TEXT: &str = "It was the best of times, it was the worst of times; ";
    text.extend(TEXT.chars().cycle().take(bytes.saturating_sub(text.len() + tail.len())));
    (text + tail).into()
}

fn backend_id() -> BackendId {
    BackendId::parse("files").expect("a good name")
}

/// Returns the catalog of one backend with a hundred tools.
fn catalog() -> Catalog {
    catalog_of(100)
}

fn catalog_of(tools: usize) -> Catalog {
    let tools: Vec<String> = (0..tools)
        .map(|number| format!(r#"{{"name":"tool_{number}","inputSchema":{{}}}}"#))
        .collect();
    let list = format!(r#"{{"tools":[{{"name":"read","inputSchema":{{}}}},{}]}}"#, tools.join(","));
    let tools = read_page(ListKind::Tools, &backend_id(), TaskHost::Broker, list.as_bytes())
        .expect("a good list")
        .entries;
    let lists = BackendLists {
        tools,
        ..BackendLists::declaring(br#"{"tools":{}}"#).expect("good capabilities")
    };
    let key = hmac::Key::new(hmac::HMAC_SHA256, &[1; 32]);
    let tenant = TenantId::parse("acme").expect("a good name");
    Catalog::build(tenant, key, BTreeMap::from([(backend_id(), Arc::new(lists))]))
}
