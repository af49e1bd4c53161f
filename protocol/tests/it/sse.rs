//! The event stream parser against a slow reading of the whole stream, and the writers against the parser.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::{
    Just, ProptestConfig, Strategy, any, prop_assert_eq, prop_oneof, proptest,
};
use protocol::sse::{
    SseError, SseEvent, SseParser, write_comment, write_message, write_priming, write_retry,
};

fn parse(chunks: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Vec<SseEvent> {
    let mut parser = SseParser::new(1 << 20);
    let mut events = Vec::new();
    for chunk in chunks {
        parser.push(chunk.as_ref());
        while let Some(event) = parser.next_event().expect("readable stream") {
            events.push(event);
        }
    }
    events
}

fn data(text: &str) -> SseEvent {
    SseEvent { data: Some(Bytes::copy_from_slice(text.as_bytes())), ..SseEvent::default() }
}

/// Runs the standard's algorithm over a complete stream.
fn obvious(stream: &str) -> Vec<SseEvent> {
    let text =
        stream.strip_prefix('\u{feff}').unwrap_or(stream).replace("\r\n", "\n").replace('\r', "\n");
    let mut lines: Vec<&str> = text.split('\n').collect();
    lines.pop(); // not ended
    let mut events = Vec::new();
    let mut event = SseEvent::default();
    for line in lines {
        if line.is_empty() {
            let done = std::mem::take(&mut event);
            if done.data.is_some() || done.id.is_some() || done.retry.is_some() {
                events.push(done);
            }
            continue;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "event" => event.event = Some(value.into()),
            "data" => {
                let joined = event.data.map_or(value.as_bytes().to_vec(), |data| {
                    [&data, b"\n".as_slice(), value.as_bytes()].concat()
                });
                event.data = Some(joined.into());
            }
            "id" if !value.contains('\0') => event.id = Some(value.into()),
            "retry" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                event.retry = value.parse().ok()
            }
            _ => {}
        }
    }
    events
}

fn stream() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("data".to_owned()),
        Just("data: ".to_owned()),
        Just("event:".to_owned()),
        Just("id: ".to_owned()),
        Just("id".to_owned()),
        Just("retry:".to_owned()),
        Just("12".to_owned()),
        Just(":".to_owned()),
        Just("\0".to_owned()),
        Just("\u{feff}".to_owned()),
        Just("\n".to_owned()),
        Just("\r".to_owned()),
        Just("\r\n".to_owned()),
        Just("\n\n".to_owned()),
        "[a-zäß🦀 ]{0,4}",
    ];
    vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_chunks_of_a_stream_do_not_change_its_events(stream in stream(), cuts in vec(any::<proptest::sample::Index>(), 0..12)) {
        let bytes = stream.as_bytes();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        let expected = obvious(&stream);
        prop_assert_eq!(&parse([bytes]), &expected);
        prop_assert_eq!(&parse(chunks), &expected);
        prop_assert_eq!(&parse(bytes.chunks(1)), &expected);
    }

    #[test]
    fn a_written_event_is_read_back(text in "[ -~\r\näß🦀]{0,80}", id in proptest::option::of("[!-~]{1,20}")) {
        let mut out = Vec::new();
        write_message(&mut out, id.as_deref(), text.as_bytes());
        let lines = text.replace("\r\n", "\n").replace('\r', "\n");
        let expected = SseEvent { event: Some("message".into()), id, ..data(&lines) };
        prop_assert_eq!(parse([out]), vec![expected]);
    }
}

#[test]
fn events_with_only_an_id_or_a_retry_are_reported() {
    let events = parse(["retry: 500\n\n: nothing\n\nid: 7\ndata:\n\nevent: lonely\n\nid\n\n"]);
    let expected = [
        SseEvent { retry: Some(500), ..SseEvent::default() },
        SseEvent { id: Some("7".into()), ..data("") },
        SseEvent { id: Some(String::new()), ..SseEvent::default() },
    ];
    assert_eq!(events, expected);
}

#[test]
fn an_event_has_the_id_that_was_complete_before_its_end() {
    let mut parser = SseParser::new(100);
    let mut seen = Vec::new();
    for part in [
        "data: a\n\n",
        "id: 1\ndata: b\n\n",
        "data: c\n\n",
        "id: 2",
        "\ndata: d\n",
        "\n",
        "id: x\0\ndata: e\n\n",
        "id:\ndata: f\n\n",
    ] {
        parser.push(part.as_bytes());
        while let Some(event) = parser.next_event().expect("readable") {
            seen.push(event.id);
        }
    }
    let expected = [None, Some("1"), None, Some("2"), None, Some("")];
    assert_eq!(seen.iter().map(Option::as_deref).collect::<Vec<_>>(), expected);
}

#[test]
fn an_event_larger_than_the_limit_ends_the_stream() {
    for stream in [
        "data: 12345678901234567890",
        "data: 12345\ndata: 12345\ndata: 12345\n\n",
        "no-field-either-way-this-is-long\n",
    ] {
        let mut parser = SseParser::new(20);
        parser.push(b"data: fits\n\n");
        parser.push(stream.as_bytes());
        assert_eq!(parser.next_event(), Ok(Some(data("fits"))));
        assert_eq!(parser.next_event(), Err(SseError::TooLarge { max: 20 }));
        parser.push(b"\n\ndata: x\n\n");
        assert_eq!(parser.next_event(), Err(SseError::TooLarge { max: 20 }));
    }
    let mut parser = SseParser::new(20);
    parser.push(&b"data: fits\n\n".repeat(100));
    assert_eq!(std::iter::from_fn(|| parser.next_event().expect("each fits")).count(), 100);
    let mut parser = SseParser::new(20);
    parser.push(b"data: \xff\n");
    assert_eq!(parser.next_event(), Err(SseError::NotUtf8));
}

#[test]
fn priming_retry_and_comment_events_have_the_expected_form() {
    let mut out = Vec::new();
    write_priming(&mut out, "s1-0", Some(2000));
    write_retry(&mut out, 500);
    write_comment(&mut out, "still here");
    assert_eq!(
        String::from_utf8_lossy(&out),
        "id: s1-0\nretry: 2000\ndata: \n\nretry: 500\n\n: still here\n\n"
    );
    let mut out = Vec::new();
    write_message(&mut out, Some("9"), b"{}");
    assert_eq!(String::from_utf8_lossy(&out), "event: message\nid: 9\ndata: {}\n\n");
}

#[test]
fn a_byte_order_mark_does_not_count_in_the_size_of_the_first_event() {
    let stream = b"\xef\xbb\xbfdata: abcd\n\n";
    for piece_bytes in 1..=stream.len() {
        let mut parser = SseParser::new(b"data: abcd".len());
        let mut events = Vec::new();
        for piece in stream.chunks(piece_bytes) {
            parser.push(piece);
            while let Some(event) = parser.next_event().expect("the event fits") {
                events.push(event);
            }
        }
        assert_eq!(events, [data("abcd")], "pieces of {piece_bytes} bytes");
        let mut parser = SseParser::new(b"data: abc".len());
        let refused = stream.chunks(piece_bytes).any(|piece| {
            parser.push(piece);
            parser.next_event().is_err()
        });
        assert!(refused, "one byte less is too little in pieces of {piece_bytes} bytes");
    }
}
