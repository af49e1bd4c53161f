//! The documents, and the parts that the broker reads of each. A reading is written once for both
//! readers of the product.

use protocol::json::{Document, Limits, Tape, ValueKind};

/// Reads all parts; returns a sum by which two readers can be compared.
pub(crate) type Read = fn(&[u8]) -> usize;

/// One kind of document.
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    /// Returns a document of about so many bytes.
    pub(crate) written: fn(usize) -> String,
    /// Readers of the document; the walker comes first.
    pub(crate) readers: &'static [(&'static str, Read)],
}

macro_rules! parsed {
    ($reader:ident, $text:expr) => {
        $reader::parse($text, &Limits::default()).expect("the text is JSON")
    };
}

/// Reads as `rules::catalog` does.
macro_rules! read_tools {
    ($reader:ident, $text:expr) => {{
        let document = parsed!($reader, $text);
        let root = document.root();
        let mut sum = root
            .get("nextCursor")
            .and_then(|cursor| cursor.as_str())
            .map_or(0, |cursor| cursor.len());
        for tool in root.get("tools").expect("a list has entries").elements() {
            let name = tool.unambiguous("name").expect("one name").expect("a name");
            sum +=
                name.as_str().map_or(0, |text| text.len()) + name.span().len() + tool.raw().len();
            sum += usize::from(
                tool.get("inputSchema").is_some_and(|schema| schema.kind() == ValueKind::Object),
            );
            for path in [&["_meta", "ui", "resourceUri"][..], &["_meta", "ui/resourceUri"]] {
                sum += usize::from(tool.unambiguous_path(path).expect("one link").is_some());
            }
            for path in [
                ["execution", "taskSupport"],
                ["annotations", "readOnlyHint"],
                ["annotations", "idempotentHint"],
            ] {
                sum += usize::from(tool.path(&path).and_then(|hint| hint.as_bool()) == Some(true));
            }
        }
        sum
    }};
}

/// Reads as `InitializeResult::parse` and `ServerCapabilities::parse` do.
macro_rules! read_handshake {
    ($reader:ident, $text:expr) => {{
        let document = parsed!($reader, $text);
        let root = document.root();
        let capabilities = root.get("capabilities").expect("capabilities");
        let mut sum =
            capabilities.raw().len() + root.get("serverInfo").map_or(0, |info| info.raw().len());
        for path in CAPABILITIES {
            sum += usize::from(
                capabilities
                    .path(path)
                    .is_some_and(|value| !value.is_null() && value.as_bool() != Some(false)),
            );
        }
        for path in [
            &["protocolVersion"][..],
            &["serverInfo", "name"],
            &["serverInfo", "version"],
            &["instructions"],
        ] {
            sum += root.path(path).and_then(|text| text.as_str()).map_or(0, |text| text.len());
        }
        sum
    }};
}

/// Reads as `downlevel` does: every member of every tool is read, and written again.
macro_rules! read_members {
    ($reader:ident, $text:expr) => {{
        let document = parsed!($reader, $text);
        let mut sum = 0;
        for member in document.root().members() {
            sum += member.key.len() + member.value.raw().len();
            for tool in member.value.elements() {
                sum += tool
                    .members()
                    .filter(|member| member.key != "execution")
                    .map(|member| member.value.raw().len())
                    .sum::<usize>();
            }
        }
        sum
    }};
}

/// Reads as `rules::exposure` does.
macro_rules! read_uris {
    ($reader:ident, $text:expr) => {{
        let document = parsed!($reader, $text);
        let root = document.root();
        let mut sum =
            usize::from(root.unambiguous_path(&["data", "uri"]).expect("one uri").is_some());
        sum += usize::from(root.unambiguous("contents").expect("one contents").is_some());
        for block in root
            .unambiguous("content")
            .expect("one content")
            .into_iter()
            .flat_map(|content| content.elements())
        {
            if block
                .unambiguous("type")
                .expect("one type")
                .and_then(|kind| kind.as_str())
                .as_deref()
                == Some("resource_link")
            {
                sum += block
                    .unambiguous("uri")
                    .expect("one uri")
                    .map_or(0, |uri| uri.span().start as usize);
            }
        }
        sum + usize::from(root.unambiguous("messages").expect("one messages").is_some())
    }};
}

/// Reads as `auth::tokens::key_set` does.
macro_rules! read_keys {
    ($reader:ident, $text:expr) => {{
        let document = parsed!($reader, $text);
        let mut sum = 0;
        for key in document.root().get("keys").expect("a set has keys").elements() {
            for name in KEY_MEMBERS {
                sum += key.get(name).and_then(|value| value.as_str()).map_or(0, |text| text.len());
            }
        }
        sum
    }};
}

fn tree_of_keys(text: &[u8]) -> usize {
    let document: serde_json::Value = serde_json::from_slice(text).expect("the text is JSON");
    let length = |key: &serde_json::Value, name: &str| {
        key.get(name).and_then(|value| value.as_str()).map_or(0, str::len)
    };
    let keys = document["keys"].as_array().expect("a set has keys");
    keys.iter().map(|key| KEY_MEMBERS.iter().map(|name| length(key, name)).sum::<usize>()).sum()
}

/// Reads as readers of `_meta` and of small results do.
macro_rules! read_one {
    ($reader:ident, $text:expr) => {{
        let document = parsed!($reader, $text);
        document
            .root()
            .get("progressToken")
            .and_then(|token| token.as_u64())
            .map_or(0, |token| token as usize)
    }};
}

macro_rules! readers {
    ($read:ident) => {
        &[("walker", |text| $read!(Document, text)), ("tape", |text| $read!(Tape, text))]
    };
}

pub(crate) const SHAPES: [Shape; 6] = [
    Shape {
        name: "tools/list: name, schema, hints and links of every tool",
        written: tools,
        readers: readers!(read_tools),
    },
    Shape {
        name: "initialize: capabilities, names, instructions",
        written: handshake,
        readers: readers!(read_handshake),
    },
    Shape {
        name: "tools/list, rewritten for an earlier revision",
        written: tools,
        readers: readers!(read_members),
    },
    Shape {
        name: "result of a call: URIs of its resources",
        written: resources,
        readers: readers!(read_uris),
    },
    Shape {
        name: "key set",
        written: keys,
        readers: &[
            ("walker", |text| read_keys!(Document, text)),
            ("tape", |text| read_keys!(Tape, text)),
            ("serde_json::Value", tree_of_keys),
        ],
    },
    Shape { name: "one part: the first member", written: meta, readers: readers!(read_one) },
];

const CAPABILITIES: [&[&str]; 13] = [
    &["tools"],
    &["tools", "listChanged"],
    &["prompts"],
    &["prompts", "listChanged"],
    &["resources"],
    &["resources", "subscribe"],
    &["resources", "listChanged"],
    &["logging"],
    &["completions"],
    &["tasks"],
    &["tasks", "list"],
    &["tasks", "cancel"],
    &["tasks", "requests", "tools", "call"],
];

const KEY_MEMBERS: [&str; 7] = ["kty", "use", "alg", "kid", "crv", "n", "e"];

/// Returns `head`, as many elements as fit, and `tail`.
fn filled(bytes: usize, head: &str, element: impl Fn(usize) -> String, tail: &str) -> String {
    let mut text = head.to_owned();
    for number in 0.. {
        let element = element(number);
        if number > 0 && text.len() + element.len() + tail.len() >= bytes {
            break;
        }
        text += if number > 0 { "," } else { "" };
        text += &element;
    }
    text + tail
}

fn tools(bytes: usize) -> String {
    let tool = |number| {
        format!(
            r#"{{"name":"tool_{number}","title":"Tool {number}","description":"Reads a file and returns its text.\nA path with \"..\" is refused.","inputSchema":{{"type":"object","properties":{{"path":{{"type":"string","description":"where it is"}},"limit":{{"type":"integer","minimum":1}}}},"required":["path"]}},"annotations":{{"readOnlyHint":true,"idempotentHint":true}},"execution":{{"taskSupport":"optional"}}}}"#
        )
    };
    filled(bytes, r#"{"tools":["#, tool, r#"],"nextCursor":"page-2"}"#)
}

fn handshake(bytes: usize) -> String {
    let head = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true},"logging":{}},"serverInfo":{"name":"files","version":"1.2.3"},"instructions":""#;
    let mut text = head.to_owned();
    while text.len() + 50 < bytes {
        text += r#"Read before you write; \"stat\" is cheap.\n"#;
    }
    text + "\"}"
}

fn resources(bytes: usize) -> String {
    let block = |number| {
        match number % 2 {
        0 => format!(
            r#"{{"type":"resource_link","uri":"file:///project/src/file_{number}.rs","name":"file_{number}.rs","mimeType":"text/x-rust"}}"#
        ),
        _ => r#"{"type":"text","text":"It was the best of times, it was the worst of times; \"it was\" the age of wisdom."}"#.to_owned(),
    }
    };
    filled(bytes, r#"{"content":["#, block, r#"],"isError":false}"#)
}

fn keys(bytes: usize) -> String {
    let key = |number| {
        let modulus = "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx".repeat(7);
        format!(
            r#"{{"kty":"RSA","use":"sig","alg":"RS256","kid":"key-{number}","n":"{modulus}","e":"AQAB"}}"#
        )
    };
    filled(bytes, r#"{"keys":["#, key, "]}")
}

fn meta(bytes: usize) -> String {
    filled(
        bytes,
        r#"{"progressToken":7,"dev.example/hops":["#,
        |number| format!("\"hop-{number}\""),
        "]}",
    )
}
