//! A peer must read the same message as the broker. The peers here are models of JSON readers that
//! are common among MCP servers and clients. They match names exactly or ignore case, as Go's
//! `encoding/json` does, and take the first or the last of several members. The models read with
//! `serde_json` and share no code with the broker's reader.

use bytes::Bytes;
use proptest::prelude::*;
use protocol::{
    envelope::Message,
    json::{Document, Limits},
};
use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A peer's way to find a member.
#[derive(Debug, Clone, Copy)]
struct Reader {
    ignores_case: bool,
    takes_last: bool,
}

const READERS: [Reader; 4] = [
    Reader { ignores_case: false, takes_last: false },
    Reader { ignores_case: false, takes_last: true },
    Reader { ignores_case: true, takes_last: false },
    Reader { ignores_case: true, takes_last: true },
];

impl Reader {
    fn get<'a>(self, object: Option<&'a str>, key: &str) -> Option<&'a str> {
        let mut found = members(object?)?.into_iter().filter(|(name, _)| match self.ignores_case {
            true => simple_fold(name) == simple_fold(key),
            false => name == key,
        });
        let one = if self.takes_last { found.next_back() } else { found.next() };
        one.map(|(_, value)| value)
    }
}

/// Folds the characters that can fold to a letter of ASCII (Unicode simple case folding). Other
/// letters stay, so they equal no name of the protocol.
fn simple_fold(text: &str) -> String {
    let fold = |letter| match letter {
        'ſ' => 's',
        '\u{212a}' => 'k',
        letter => letter.to_ascii_lowercase(),
    };
    text.chars().map(fold).collect()
}

/// Returns the members of an object in their order, doubles too, with the text of each value.
/// `None` for anything but an object.
fn members(object: &str) -> Option<Vec<(String, &str)>> {
    struct InOrder;
    impl<'de> Visitor<'de> for InOrder {
        type Value = Vec<(String, &'de str)>;

        fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            out.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut all = Vec::new();
            while let Some(member) = map.next_entry::<String, &'de RawValue>()? {
                all.push((member.0, member.1.get()));
            }
            Ok(all)
        }
    }
    serde_json::Deserializer::from_str(object).deserialize_map(InOrder).ok()
}

/// The parts of a message that decide about it: its receiver, its owner, its content.
type View<'a> = Vec<(&'static str, Option<&'a str>)>;

fn read_by(reader: Reader, message: &str) -> View<'_> {
    let get = |object, key| reader.get(object, key);
    let root = Some(message);
    let (params, result, error) = (get(root, "params"), get(root, "result"), get(root, "error"));
    let body = params.or(result);
    let (meta, reference) = (get(body, "_meta"), get(body, "ref"));
    let mut view = vec![
        ("method", get(root, "method")),
        ("id", get(root, "id")),
        ("params", params),
        ("result", result),
        ("error", error),
        ("error.code", get(error, "code")),
        ("error.data", get(error, "data")),
        ("_meta", meta),
        ("_meta.progressToken", get(meta, "progressToken")),
        ("_meta.protocolVersion", get(meta, "io.modelcontextprotocol/protocolVersion")),
        (
            "_meta.related-task.taskId",
            get(get(meta, "io.modelcontextprotocol/related-task"), "taskId"),
        ),
        ("task.taskId", get(get(body, "task"), "taskId")),
        ("ref.type", get(reference, "type")),
        ("ref.name", get(reference, "name")),
        ("ref.uri", get(reference, "uri")),
    ];
    for key in [
        "name",
        "uri",
        "arguments",
        "cursor",
        "requestId",
        "progressToken",
        "taskId",
        "level",
        "requestState",
    ] {
        view.push((key, get(body, key)));
    }
    for (path, keys) in READ_LATER {
        view.push((path, keys.iter().fold(body, |object, key| get(object, key))));
    }
    view
}

/// Members that decoding keeps no span of, but policy, capabilities, exposure and others read in
/// params and results.
const READ_LATER: [(&str, &[&str]); 40] = [
    ("argument", &["argument"]),
    ("argument.name", &["argument", "name"]),
    ("argument.value", &["argument", "value"]),
    ("context", &["context"]),
    ("context.arguments", &["context", "arguments"]),
    ("completion", &["completion"]),
    ("completion.values", &["completion", "values"]),
    ("completion.hasMore", &["completion", "hasMore"]),
    ("notifications.toolsListChanged", &["notifications", "toolsListChanged"]),
    ("notifications.resourceSubscriptions", &["notifications", "resourceSubscriptions"]),
    ("notifications.taskIds", &["notifications", "taskIds"]),
    ("task.status", &["task", "status"]),
    ("task.ttl", &["task", "ttl"]),
    ("task.pollInterval", &["task", "pollInterval"]),
    ("_meta.idempotency", &["_meta", "dev.mcp-broker/idempotency-key"]),
    ("_meta.via", &["_meta", "dev.mcp-broker/via"]),
    ("_meta.serverInfo", &["_meta", "io.modelcontextprotocol/serverInfo"]),
    ("content", &["content"]),
    ("contents", &["contents"]),
    ("structuredContent", &["structuredContent"]),
    ("messages", &["messages"]),
    ("tools", &["tools"]),
    ("toolChoice", &["toolChoice"]),
    ("prompts", &["prompts"]),
    ("resources", &["resources"]),
    ("resourceTemplates", &["resourceTemplates"]),
    ("nextCursor", &["nextCursor"]),
    ("requestedSchema", &["requestedSchema"]),
    ("url", &["url"]),
    ("action", &["action"]),
    ("role", &["role"]),
    ("roots", &["roots"]),
    ("inputRequests", &["inputRequests"]),
    ("protocolVersion", &["protocolVersion"]),
    ("capabilities", &["capabilities"]),
    ("clientInfo", &["clientInfo"]),
    ("serverInfo", &["serverInfo"]),
    ("supportedVersions", &["supportedVersions"]),
    ("statusMessage", &["statusMessage"]),
    ("reason", &["reason"]),
];

/// Returns the view of the broker's decoder.
fn read_by_broker(message: &Message) -> View<'_> {
    let fields = &message.fields;
    let utf8 = |bytes| std::str::from_utf8(bytes).expect("a decoded message is UTF-8");
    let text = |span| message.bytes(span).map(utf8);
    let body = message.bytes(message.params.or(message.result));
    let body = body
        .map(|body| Document::parse(body, &Limits::default()).expect("a decoded message is JSON"));
    let later = READ_LATER.map(|(path, keys)| {
        (path, body.as_ref().and_then(|body| body.root().path(keys)).map(|value| utf8(value.raw())))
    });
    let mut view: View<'_> = [
        ("method", message.method_span),
        ("id", message.id_span),
        ("params", message.params),
        ("result", message.result),
        ("error", message.error),
        ("error.code", fields.error_code),
        ("error.data", fields.error_data),
        ("_meta", fields.meta),
        ("_meta.progressToken", fields.meta_progress_token),
        ("_meta.protocolVersion", fields.meta_protocol_version),
        ("_meta.related-task.taskId", fields.meta_related_task_id),
        ("task.taskId", fields.task_task_id),
        ("ref.type", fields.reference_type),
        ("ref.name", fields.reference_name),
        ("ref.uri", fields.reference_uri),
        ("name", fields.name),
        ("uri", fields.uri),
        ("arguments", fields.arguments),
        ("cursor", fields.cursor),
        ("requestId", fields.request_id),
        ("progressToken", fields.progress_token),
        ("taskId", fields.task_id),
        ("level", fields.level),
        ("requestState", fields.request_state),
    ]
    .map(|(name, span)| (name, text(span)))
    .to_vec();
    view.extend(later);
    view
}

/// Names that stand together: readers can differ only if one object holds two of them. Each message
/// is made of one line.
const NAMES: [&str; 8] = [
    "jsonrpc id method params result error name uri arguments cursor requestId progressToken taskId level task ref _meta code message \
    data requestState io.modelcontextprotocol/protocolVersion io.modelcontextprotocol/related-task other",
    "argument name value other",
    "context arguments completion values hasMore other",
    "notifications toolsListChanged resourceSubscriptions taskIds task taskId status ttl pollInterval statusMessage other",
    "content contents structuredContent messages inputRequests requestState _meta other",
    "tools prompts resources resourceTemplates nextCursor cursor toolChoice requestedSchema other",
    "url action role roots reason message other",
    "protocolVersion capabilities clientInfo serverInfo supportedVersions _meta dev.mcp-broker/idempotency-key \
    dev.mcp-broker/via io.modelcontextprotocol/serverInfo other",
];

/// Returns a name of the protocol as it is written, in another letter case, or with letters that
/// fold into it, some of them escaped.
fn key(names: &'static str) -> impl Strategy<Value = String> {
    let names: Vec<&str> = names.split_whitespace().collect();
    (proptest::sample::select(names), prop_oneof![6 => Just(0_u8), 4 => 1_u8..5], any::<u64>())
        .prop_map(|(name, spelling, seed)| {
            let letter = |(at, letter): (usize, char)| {
                let chosen = seed >> (at % 60) & 1 == 1;
                let letter = match (spelling, letter) {
                    (1, letter) if chosen => letter.to_ascii_uppercase(),
                    (2, 's') => 'ſ',
                    (2, 'k') => '\u{212a}',
                    (3, letter) => letter.to_ascii_lowercase(),
                    (_, letter) => letter,
                };
                if spelling >= 3 && chosen {
                    format!("\\u{:04x}", letter as u32)
                } else {
                    letter.to_string()
                }
            };
            name.chars().enumerate().map(letter).collect()
        })
}

fn value(names: &'static str) -> impl Strategy<Value = String> {
    let texts = [
        "\"2.0\"",
        "\"tools/call\"",
        "\"notifications/progress\"",
        "7",
        "\"a\"",
        "\"b\"",
        "null",
        "{}",
        "-32600",
    ];
    let leaf = proptest::sample::select(texts.to_vec()).prop_map(String::from);
    leaf.prop_recursive(3, 24, 5, move |inner| {
        proptest::collection::vec((key(names), inner), 0..5).prop_map(|members| object(&members))
    })
}

fn object(members: &[(String, String)]) -> String {
    let members: Vec<String> =
        members.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
    format!("{{{}}}", members.join(","))
}

/// Returns a valid message with members added anywhere.
fn message() -> impl Strategy<Value = String> {
    prop_oneof![2 => Just(NAMES[0]), 3 => proptest::sample::select(NAMES.to_vec())]
        .prop_flat_map(message_of)
}

fn message_of(names: &'static str) -> impl Strategy<Value = String> {
    let body = move || {
        proptest::collection::vec((key(names), value(names)), 0..4)
            .prop_map(|members| object(&members))
    };
    let core = body().prop_flat_map(|body| {
        let with = |text: &str| format!(r#""jsonrpc":"2.0",{}"#, text.replace("BODY", &body));
        proptest::sample::select(vec![
            with(r#""id":1,"method":"tools/call","params":BODY"#),
            with(r#""method":"notifications/message","params":BODY"#),
            with(r#""id":1,"result":BODY"#),
            with(r#""id":1,"error":{"code":1,"message":"m","data":BODY}"#),
        ])
    });
    let added = prop_oneof![3 => Just(Vec::new()), 2 => proptest::collection::vec((key(NAMES[0]), value(names)), 1..3)];
    (core, added).prop_map(|(core, added)| {
        let added: String =
            added.iter().map(|(key, value)| format!(",\"{key}\":{value}")).collect();
        format!("{{{core}{added}}}")
    })
}

fn decode(text: &str) -> Option<Message> {
    Message::decode(Bytes::copy_from_slice(text.as_bytes()), &Limits::default()).ok()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn s01_every_reader_reads_an_accepted_message_like_the_broker(text in message()) {
        let Some(message) = decode(&text) else { return Ok(()) };
        let broker = read_by_broker(&message);
        // The peer gets the frame without what decoding left out.
        let frame = std::str::from_utf8(&message.frame).expect("a decoded message is UTF-8");
        for reader in READERS {
            let peer = read_by(reader, frame);
            for (of_broker, of_peer) in broker.iter().zip(&peer) {
                prop_assert_eq!(of_broker, of_peer, "{:?} of {}", reader, text);
            }
        }
    }
}

/// Shows that the decoder does not simply refuse everything.
#[test]
fn s01_messages_that_all_readers_read_equally_are_accepted() {
    use proptest::{strategy::ValueTree as _, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let (mut accepted, mut alike) = (0, 0);
    for _ in 0..2000 {
        let text = message().new_tree(&mut runner).expect("a message").current();
        let mut views = READERS.iter().map(|reader| read_by(*reader, &text));
        let first = views.next();
        alike += usize::from(views.all(|view| Some(view) == first));
        accepted += usize::from(decode(&text).is_some());
    }
    assert!(accepted > 400 && alike > accepted, "{accepted} accepted, {alike} read alike");
}

#[test]
fn s01_a_member_in_another_letter_case_is_refused_at_every_level() {
    let request = |params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#)
    };
    let kelvin = '\u{212a}';
    for text in [
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call"}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":1,"ID":2,"result":{}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","method":"notifications/x","Id":5,"\u0050arams":{}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":1,"result":{},"Error":{}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m","Data":{}}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":1,"result":{"_META":{}}}"#.to_owned(),
        request(r#"{"name":"a","Name":"b"}"#),
        request(r#"{"name":"a","argument\u017f":{}}"#),
        request(r#"{"URI":"file:///etc/passwd"}"#),
        request(&format!(r#"{{"name":"a","_meta":{{"progressToken":1,"ProgressTo{kelvin}en":2}}}}"#)),
        request(r#"{"name":"a","_meta":{"io.modelcontextprotocol/RELATED-task":{"taskId":"t"}}}"#),
        request(r#"{"name":"a","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"},"io.modelcontextprotocol/related-task":1}}"#),
        request(&format!(r#"{{"name":"a","tas{kelvin}":{{}}}}"#)),
        request(r#"{"task":{"TaskId":"t"}}"#),
        request(r#"{"ref":{"type":"ref/prompt","name":"a","Name":"b"}}"#),
        request(r#"{"argument":{"name":"x","value":"ok"},"Argument":{"name":"x","value":"../../etc/"}}"#),
        request(r#"{"argument":{"name":"x","value":"ok"},"\u0041rgument":{"name":"x","value":"../../etc/"}}"#),
        request(r#"{"argument":{"name":"x","value":"ok"},"argument":{"name":"x","value":"../../etc/"}}"#),
        request(r#"{"argument":{"name":"x","value":"ok","Value":"../../etc/"}}"#),
        request(r#"{"argument":{"name":"x","value":"ok","value":"../../etc/"}}"#),
        request(r#"{"context":{},"CONTEXT":{}}"#),
        request(r#"{"context":{"arguments":{"a":"b"},"Argument\u017f":{"a":"../c"}}}"#),
        request(r#"{"context":{"arguments":{"a":"b"},"arguments":{"a":"../c"}}}"#),
        request(r#"{"notifications":{"resourceSubscriptions":[],"resourcesubscriptions":["file:///etc/passwd"]}}"#),
        r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"StructuredContent":{"a":1}}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"content":[{"type":"text"}]}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":1,"result":{"inputRequests":{},"inputRequests":{"a":{}}}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[],"Tools":[{}]}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":1,"result":{"task":{"taskId":"t","status":"working","Status":"completed"}}}"#.to_owned(),
    ] {
        assert!(decode(&text).is_none(), "{text}");
    }
}

/// Accepts messages whose ambiguous members the broker does not read.
#[test]
fn s01_members_of_arguments_results_and_data_are_not_restricted() {
    for text in [
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"Name":1,"name":2,"ID":3,"id":4,"id":5}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"structuredContent":{"URI":1,"uri":2},"content":[{"Type":"x"}],"Content2":1}}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m","data":{"Code":1,"Message":2}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","_meta":{"com.example/Name":1,"Vendor":2}}}"#,
    ] {
        assert!(decode(text).is_some(), "{text}");
    }
}
