//! The JSON Test Suite: the reader refuses and accepts the texts that it must, and never crashes.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use protocol::json::{Document, JsonError};
use protocol::{Batches, ErrorKind, Limits, Message, decode_body};

fn corpus(prefix: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/json-test-suite");
    let entries = fs::read_dir(folder).expect("the corpus is part of the repository");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("readable folder"))
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()))
        .filter(|(name, _)| name.starts_with(prefix))
        .map(|(name, path)| (name, fs::read(path).expect("readable file")))
        .collect();
    files.sort();
    assert!(files.len() > 30, "{prefix} files are missing");
    files
}

fn as_argument(text: &[u8]) -> Bytes {
    let mut out = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{"value":"#.to_vec();
    out.extend_from_slice(text);
    out.extend_from_slice(b"}}}");
    out.into()
}

#[test]
fn invalid_json_is_refused_as_a_body_and_as_an_argument() {
    for (name, text) in corpus("n_") {
        let body = decode_body(Bytes::from(text.clone()), &Limits::default(), Batches::Permitted)
            .expect_err(&name);
        // An unclosed or odd text that happens to be JSON would be `invalid_request`: none is.
        assert_eq!(body.refusal.kind, ErrorKind::ParseError, "{name} as a body");
        assert!(Document::parse(&text, &Limits::default()).is_err(), "{name} as a document");
        // Three texts close the objects around them and continue with something that fits.
        let argument = Message::decode(as_argument(&text), &Limits::default());
        assert!(argument.is_err(), "{name} as an argument");
    }
}

#[test]
fn every_valid_text_passes_as_an_argument_byte_for_byte() {
    for (name, text) in corpus("y_") {
        let message = Message::decode(as_argument(&text), &Limits::default())
            .unwrap_or_else(|rejected| panic!("{name}: {rejected:?}"));
        let arguments = message.bytes(message.fields.arguments).expect("arguments were sent");
        assert_eq!(arguments, [br#"{"value":"#, text.as_slice(), b"}"].concat(), "{name}");
        Document::parse(&text, &Limits::default())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn texts_left_open_by_the_standard_never_crash_the_reader() {
    for (name, text) in corpus("i_") {
        let document = Document::parse(&text, &Limits::default()).is_ok();
        let argument = Message::decode(as_argument(&text), &Limits::default()).is_ok();
        let body = decode_body(Bytes::from(text.clone()), &Limits::default(), Batches::Permitted);
        if name != "i_structure_UTF-8_BOM_empty_object.json" {
            assert_eq!(document, argument, "{name} is judged alike wherever it stands");
        }
        if let Err(rejected) = body {
            assert!(
                matches!(rejected.refusal.kind, ErrorKind::ParseError | ErrorKind::InvalidRequest),
                "{name}"
            );
        }
    }
}

#[test]
fn a_hundred_thousand_levels_are_refused_without_recursion() {
    let depth = 100_000;
    let closed = [b"[".repeat(depth), b"]".repeat(depth)].concat();
    for text in [b"[".repeat(depth), closed.clone(), b"{\"a\":".repeat(depth)] {
        assert_eq!(
            Document::parse(&text, &Limits::default()).err(),
            Some(JsonError::TooDeep { max: 128 })
        );
        let rejected =
            Message::decode(as_argument(&text), &Limits::default()).expect_err("too deep");
        assert_eq!(rejected.refusal.kind, ErrorKind::ParseError);
        assert!(rejected.refusal.message.contains("128"), "{}", rejected.refusal.message);
    }
    // The walk does not recurse either when an operator allows it.
    let limits = Limits { depth_max: depth, ..Limits::default() };
    let document = Document::parse(&closed, &limits).expect("within the limit");
    assert_eq!(document.root().span().len(), closed.len());
}
