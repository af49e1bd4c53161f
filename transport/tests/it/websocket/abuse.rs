//! Tests of peers that break the rules (W-03 to W-06). The source finds every fault before it keeps
//! more than the frame's head, and the peer gets a close code.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::{
    io::{AsyncRead, ReadBuf},
    task::unconstrained,
};
use transport::{
    CloseReason, FrameSink, FrameSource, ReadError, close_gracefully, websocket::server_over,
};

use super::{
    BINARY, CLOSE, FINAL, MESSAGE_BYTES_MAX, PING, PONG, TEXT, closing, connection, limits, masked,
};
use crate::soon;

/// Returns the source's error for these bytes after a valid message. Checks that the peer gets the
/// matching close code.
async fn fault(bytes: &[u8]) -> ReadError {
    let (mut raw, mut source, mut sink) = connection(1024 * 1024, &limits());
    raw.send(&masked(FINAL | TEXT, b"{}")).await;
    raw.send(bytes).await;
    assert_eq!(soon("a message", source.next()).await.unwrap().unwrap(), "{}");
    let fault = soon("the fault", source.next()).await.expect_err("a fault");
    assert!(soon("the end", source.next()).await.unwrap().is_none(), "a fault is said once");
    let goodbye = fault.close_reason();
    let leaving = close_gracefully(&mut source, &mut sink, goodbye);
    let reading = async {
        let (opcode, payload) = raw.receive().await.expect("a close frame");
        assert_eq!((opcode, &payload[..2]), (CLOSE, &goodbye.ws_code().to_be_bytes()[..]));
        // The reading side sees the end at once, so neither side waits.
        assert_eq!(raw.receive().await, None);
        drop(raw);
    };
    soon("the farewell", async { tokio::join!(leaving, reading) }).await;
    assert!(
        sink.send_all(&mut vec![Bytes::from_static(b"{}")]).await.is_err(),
        "nothing after a close frame"
    );
    fault
}

async fn assert_protocol_fault(what: &str, bytes: &[u8]) {
    let fault = fault(bytes).await;
    assert!(matches!(fault, ReadError::Protocol(_)), "{what}: {fault}");
}

#[tokio::test]
async fn w_03_invalid_flags_and_opcodes_are_refused() {
    assert_protocol_fault("unmasked", b"\x81\x02{}").await;
    for reserved in [0x40, 0x20, 0x10, 0x70] {
        assert_protocol_fault("a reserved bit", &masked(FINAL | reserved | TEXT, b"{}")).await;
        assert_protocol_fault("a reserved bit of a ping", &masked(FINAL | reserved | PING, b""))
            .await;
    }
    for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        assert_protocol_fault("a reserved opcode", &masked(FINAL | opcode, b"")).await;
    }
}

#[tokio::test]
async fn w_03_misplaced_fragments_are_refused() {
    assert_protocol_fault("a continuation frame follows no open message", &masked(0, b"x")).await;
    assert_protocol_fault("the end of nothing", &masked(FINAL, b"x")).await;
    assert_protocol_fault(
        "a message in a message",
        &[masked(TEXT, b"{"), masked(FINAL | TEXT, b"}")].concat(),
    )
    .await;
    for control in [CLOSE, PING, PONG] {
        assert_protocol_fault("a fragmented control frame", &masked(control, b"")).await;
        assert_protocol_fault("a long control frame", &masked(FINAL | control, &[b'x'; 126])).await;
    }
}

#[tokio::test]
async fn w_03_overlong_length_fields_are_refused() {
    assert_protocol_fault("125 in 16 bits", b"\x81\xfe\x00\x7d\x00\x00\x00\x00").await;
    assert_protocol_fault(
        "65,535 in 64 bits",
        b"\x81\xff\x00\x00\x00\x00\x00\x00\xff\xff\x00\x00\x00\x00",
    )
    .await;
}

#[tokio::test]
async fn w_03_invalid_close_frames_are_refused() {
    assert_protocol_fault("half a code", &masked(FINAL | CLOSE, b"\x03")).await;
    for code in [0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535] {
        assert_protocol_fault("a code nobody may send", &masked(FINAL | CLOSE, &closing(code, "")))
            .await;
    }
    let reason = fault(&masked(FINAL | CLOSE, b"\x03\xe8\xff")).await;
    assert!(matches!(reason, ReadError::InvalidUtf8));
}

#[tokio::test]
async fn a_close_frame_is_answered_with_its_code() {
    for (code, is_fault) in [
        (1000, false),
        (1001, false),
        (1002, true),
        (1011, true),
        (1013, true),
        (3000, true),
        (4999, true),
    ] {
        let (mut raw, mut source, mut sink) = connection(1024, &limits());
        raw.send(&masked(FINAL | CLOSE, &closing(code, "why not"))).await;
        // The source must not return a frame that follows a close frame.
        raw.send(&masked(FINAL | TEXT, b"{}")).await;
        let end = soon("the end", source.next()).await;
        match end {
            Ok(None) => assert!(!is_fault, "{code}"),
            Err(ReadError::Closed { code: received, reason }) => {
                assert_eq!((is_fault, received, &*reason), (true, code.into(), "why not"))
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(raw.receive().await, Some((CLOSE, code.to_be_bytes().to_vec())));
        assert!(source.next().await.unwrap().is_none());
        soon("the farewell", close_gracefully(&mut source, &mut sink, CloseReason::Done)).await;
        assert_eq!(raw.receive().await, None, "one close frame is enough");
    }
    let (mut raw, mut source, _sink) = connection(1024, &limits());
    raw.send(&masked(FINAL | CLOSE, b"")).await;
    assert!(soon("the end", source.next()).await.unwrap().is_none());
    assert_eq!(raw.receive().await, Some((CLOSE, vec![])));
}

#[tokio::test]
async fn an_end_without_a_close_frame_is_a_fault() {
    let (raw, mut source, _sink) = connection(1024, &limits());
    drop(raw);
    assert!(matches!(soon("the fault", source.next()).await, Err(ReadError::Io(_))));
    let (mut raw, mut source, _sink) = connection(1024, &limits());
    raw.send(&masked(FINAL | TEXT, b"{\"half\":true}")[..12]).await;
    drop(raw);
    assert!(matches!(soon("the fault", source.next()).await, Err(ReadError::Io(_))));
    assert!(source.next().await.unwrap().is_none());
}

#[tokio::test]
async fn f_16_a_frame_truncated_at_any_offset_is_never_a_message() {
    let messages: [&[u8]; 3] =
        [b"{\"n\":1}", b"{\"n\":2,\"pad\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}", b"{\"n\":3}"];
    let fragments = [masked(TEXT, &messages[1][..10]), masked(FINAL, &messages[1][10..])].concat();
    let frames = [masked(FINAL | TEXT, messages[0]), fragments, masked(FINAL | TEXT, messages[2])];
    let stream = frames.concat();
    for cut in 0..=stream.len() {
        let (mut raw, mut source, _sink) = connection(1024, &limits());
        raw.send(&stream[..cut]).await;
        drop(raw);
        let mut ends = frames.iter().scan(0, |end, frame| {
            *end += frame.len();
            Some(*end)
        });
        for message in messages {
            if ends.next().is_some_and(|end| end <= cut) {
                assert_eq!(
                    soon("a message", source.next()).await.unwrap().unwrap(),
                    message,
                    "cut at {cut}"
                );
            }
        }
        assert!(
            matches!(soon("the fault", source.next()).await, Err(ReadError::Io(_))),
            "cut at {cut}"
        );
    }
}

#[tokio::test]
async fn noise_and_flipped_bits_only_end_the_connection() {
    let mut seed = 7_u32;
    let mut random = move || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        seed >> 16
    };
    let good = [
        masked(FINAL | TEXT, b"{\"n\":1}"),
        masked(FINAL | PING, b"?"),
        masked(TEXT, "é".as_bytes()),
        masked(FINAL, b"x"),
    ]
    .concat();
    for round in 0..3000 {
        let mut bytes = good.clone();
        if round % 2 == 0 {
            let at = random() as usize % bytes.len();
            bytes[at] ^= 1 << (random() % 8);
        } else {
            bytes.iter_mut().for_each(|byte| *byte = random() as u8);
        }
        let (mut raw, mut source, _sink) = connection(1024, &limits());
        raw.send(&bytes).await;
        drop(raw);
        // Whole messages of valid text come first, then the fault. A flipped bit in a payload may
        // stay unnoticed, but an end without a close frame is always an error.
        let fault = loop {
            match soon("an outcome", source.next()).await {
                Ok(Some(message)) => assert!(str::from_utf8(&message).is_ok()),
                Ok(None) => panic!("round {round}: {bytes:?} ended in order"),
                Err(fault) => break fault,
            }
        };
        assert!(!matches!(fault, ReadError::Cancelled), "round {round}");
        assert!(soon("the end", source.next()).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn w_04_text_that_is_not_utf_8_is_refused() {
    for text in [&b"\xff"[..], b"\xc0\xaf", b"\xed\xa0\x80", b"ok \xe2\x82", b"\xf5\x80\x80\x80"] {
        assert!(
            matches!(fault(&masked(FINAL | TEXT, text)).await, ReadError::InvalidUtf8),
            "{text:?}"
        );
    }
    // With fragments, the error comes with the fragment that makes it certain, which is not the
    // last one.
    let fragments = [
        masked(TEXT, b"\xce"),
        masked(0, b"\xba\xe1"),
        masked(0, b"\xbd\xb9\xff"),
        masked(0, b"never looked at"),
    ]
    .concat();
    assert!(matches!(fault(&fragments).await, ReadError::InvalidUtf8));
    let unfinished = [masked(TEXT, b"\xe2"), masked(FINAL, b"\x82")].concat();
    assert!(matches!(fault(&unfinished).await, ReadError::InvalidUtf8));

    let (mut raw, mut source, _sink) = connection(1024, &limits());
    raw.send(
        &[
            masked(TEXT, b"\xe2"),
            masked(0, b"\x82"),
            masked(0, b""),
            masked(FINAL | PING, b""),
            masked(FINAL, b"\xac"),
        ]
        .concat(),
    )
    .await;
    assert_eq!(soon("a message", source.next()).await.unwrap().unwrap(), "€");
}

#[tokio::test]
async fn w_05_a_too_large_message_is_refused_by_its_declared_length() {
    // Two to the power of 63 sets a bit that must be zero, but the excess size takes precedence. No
    // payload follows.
    for length in [MESSAGE_BYTES_MAX as u64 + 1, 1 << 32, 1 << 63, u64::MAX] {
        let announced = [&b"\x81\xff"[..], &length.to_be_bytes(), &[0; 4]].concat();
        assert!(
            matches!(fault(&announced).await, ReadError::TooLong { limit: MESSAGE_BYTES_MAX }),
            "{length}"
        );
    }
    // With fragments, the error comes at the head of the fragment that exceeds the limit.
    let half = vec![b'x'; MESSAGE_BYTES_MAX / 2];
    let fragments =
        [masked(TEXT, &half), masked(0, &half), masked(0, b""), masked(FINAL, b"x")[..6].to_vec()]
            .concat();
    assert!(matches!(fault(&fragments).await, ReadError::TooLong { .. }));
}

#[tokio::test]
async fn w_05_twenty_thousand_empty_fragments_are_one_message() {
    let (mut raw, mut source, _sink) = connection(1024 * 1024, &limits());
    raw.send(&masked(TEXT, b"{")).await;
    let empty = masked(0, b"");
    raw.send(&empty.repeat(20_000)).await;
    raw.send(&masked(FINAL, b"}")).await;
    assert_eq!(soon("the message", source.next()).await.unwrap().unwrap(), "{}");
}

#[tokio::test]
async fn w_05_a_flood_of_pings_gets_only_as_many_pongs_as_the_peer_reads() {
    let (mut raw, mut source, _sink) = connection(4096, &limits());
    let (mut from_server, mut to_server) = tokio::io::split(raw.io);
    let flooding = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        for number in 0..50_000_u32 {
            to_server.write_all(&masked(FINAL | PING, &number.to_be_bytes())).await.unwrap();
        }
        to_server.write_all(&masked(FINAL | TEXT, b"{}")).await.unwrap();
        to_server
    });
    // The peer has read no pong so far, and the message after the flood still arrives.
    assert_eq!(soon("the message", source.next()).await.unwrap().unwrap(), "{}");
    let to_server = flooding.await.unwrap();
    // The peer then reads the pong in progress and the kept answers. The last pong answers the last
    // ping.
    let mut pongs = Vec::new();
    while pongs.last() != Some(&49_999_u32.to_be_bytes()) {
        use tokio::io::AsyncReadExt;
        let mut pong = [0; 6];
        tokio::select! {
            read = from_server.read_exact(&mut pong) => { read.unwrap(); }
            end = source.next() => panic!("{end:?}"),
        }
        assert_eq!(pong[..2], [FINAL | PONG, 4]);
        pongs.push(*pong.last_chunk().unwrap());
    }
    assert!(pongs.len() < 1000, "{} answers were kept for a peer that read none", pongs.len());
    assert!(pongs.is_sorted());
    raw = super::Raw { io: from_server.unsplit(to_server) };
    drop(raw);
}

#[tokio::test]
async fn w_06_a_binary_frame_is_refused_unread() {
    assert!(matches!(fault(&masked(FINAL | BINARY, b"{}")).await, ReadError::NotText));
    assert!(matches!(fault(b"\x82\xff").await, ReadError::NotText));
    assert!(matches!(fault(&masked(BINARY, b"{}")).await, ReadError::NotText));
}

#[tokio::test]
async fn w_06_several_messages_in_one_frame_are_several_messages() {
    let (mut raw, mut source, _sink) = connection(1024, &limits());
    let text =
        "\n{\"a\":1}\r\n{\n  \"b\": \"}\\\"{\",\n  \"c\": [\n1]\n}\n\n  \n[2]{\"d\":4}\n\"e\"";
    raw.send(&masked(FINAL | TEXT, text.as_bytes())).await;
    raw.send(&masked(FINAL | TEXT, b" \r\n ")).await;
    raw.send(&masked(FINAL | TEXT, b"{\"last\":true}")).await;
    for expected in [
        "{\"a\":1}",
        "{\n  \"b\": \"}\\\"{\",\n  \"c\": [\n1]\n}",
        "[2]{\"d\":4}",
        "\"e\"",
        "{\"last\":true}",
    ] {
        assert_eq!(soon("a message", source.next()).await.unwrap().unwrap(), expected);
    }
}

/// A peer that sends the same frame without end.
struct Endless(Vec<u8>);

impl AsyncRead for Endless {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while out.remaining() >= self.0.len() {
            out.put_slice(&self.0);
        }
        Poll::Ready(Ok(()))
    }
}

/// A task without tokio's budget must still get its thread back.
#[tokio::test]
async fn frames_without_a_message_do_not_hold_the_thread() {
    for (opcode, payload) in [(FINAL | PING, ""), (FINAL | PONG, ""), (FINAL | TEXT, "\n \n")] {
        let peer = Endless(masked(opcode, payload.as_bytes()));
        let (mut source, _sink) = server_over(peer, tokio::io::sink(), Bytes::new(), &limits());
        let first_poll = unconstrained(source.next()).now_or_never();
        assert!(first_poll.is_none(), "{opcode}: {first_poll:?}");
    }
    let (first, others) = (Bytes::from(masked(TEXT, b"[")), Endless(masked(0, b"")));
    let (mut source, _sink) = server_over(others, tokio::io::sink(), first, &limits());
    let first_poll = unconstrained(source.next()).now_or_never();
    assert!(first_poll.is_none(), "empty fragments: {first_poll:?}");
}
