//! Tests of newline framing: splits, limits, ends, cancelled reads and partial writes.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::{
    io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, duplex},
    task::unconstrained,
};
use transport::{FrameSource as _, LineReader, LineWriter, ReadError};

use crate::soon;

/// Returns all lines in the chunks. Each chunk arrives by itself.
async fn lines_of(chunks: &[&[u8]], line_bytes_max: usize) -> Result<Vec<String>, ReadError> {
    let (mut near, far) = duplex(1024 * 1024);
    let mut reader = LineReader::new(far, line_bytes_max);
    let mut lines = Vec::new();
    for chunk in chunks {
        near.write_all(chunk).await.unwrap();
        // Takes the complete lines. The pending `next` is dropped, and must lose no bytes.
        loop {
            tokio::select! { biased;
                line = reader.next() => lines.push(text(line?.expect("the stream has not ended"))),
                () = std::future::ready(()) => break,
            }
        }
    }
    drop(near);
    while let Some(line) = soon("the end of the stream", reader.next()).await? {
        lines.push(text(line));
    }
    assert!(reader.next().await?.is_none(), "the end stays the end");
    Ok(lines)
}

fn text(line: Bytes) -> String {
    String::from_utf8(line.to_vec()).unwrap()
}

#[tokio::test]
async fn every_split_of_a_stream_gives_the_same_lines() {
    let stream = "{\"a\":1}\r\n\n\r\n{\"b\":\"\u{e9}\u{2028}\\n\"}\n{\"c\":3}\rx\nlast".as_bytes();
    let expected = ["{\"a\":1}", "{\"b\":\"\u{e9}\u{2028}\\n\"}", "{\"c\":3}\rx", "last"];
    for first in 0..stream.len() {
        for second in first..stream.len() {
            let chunks = [&stream[..first], &stream[first..second], &stream[second..]];
            assert_eq!(
                lines_of(&chunks, 64).await.unwrap(),
                expected,
                "split at {first} and {second}"
            );
        }
    }
}

#[tokio::test]
async fn a_line_may_be_as_long_as_the_limit_and_not_one_byte_longer() {
    assert_eq!(lines_of(&[b"12345678\n12345678\r\n12345678"], 8).await.unwrap(), ["12345678"; 3]);
    for stream in [
        &b"ok\n123456789\n"[..],
        b"ok\n123456789\r\n",
        b"ok\n123456789",
        b"ok\n1234567890123456789",
    ] {
        let (mut near, far) = duplex(1024);
        near.write_all(stream).await.unwrap();
        near.shutdown().await.unwrap();
        let mut reader = LineReader::new(far, 8);
        assert_eq!(reader.next().await.unwrap().unwrap(), "ok");
        assert!(
            matches!(soon("a refusal", reader.next()).await, Err(ReadError::TooLong { limit: 8 })),
            "{stream:?}"
        );
        assert!(soon("the end", reader.next()).await.unwrap().is_none(), "an error is said once");
    }
}

#[tokio::test]
async fn an_endless_line_is_refused_without_waiting_for_its_end() {
    let mut reader = LineReader::new(tokio::io::repeat(b'x'), 1_000_000);
    let refusal = soon("a refusal", reader.next()).await;
    assert!(matches!(refusal, Err(ReadError::TooLong { limit: 1_000_000 })));
}

#[tokio::test]
async fn a_long_line_arrives_whole() {
    let line = "y".repeat(3_000_000);
    let (mut near, far) = duplex(4096);
    let mut reader = LineReader::new(far, line.len());
    let sent = line.clone();
    let writing = tokio::spawn(async move {
        near.write_all(sent.as_bytes()).await.unwrap();
        near.write_all(b"\n{}\n").await.unwrap();
    });
    assert!(soon("the long line", reader.next()).await.unwrap().unwrap() == line);
    assert_eq!(soon("the short line", reader.next()).await.unwrap().unwrap(), "{}");
    assert!(reader.next().await.unwrap().is_none());
    writing.await.unwrap();
}

#[tokio::test]
async fn frames_are_written_in_order_through_a_narrow_pipe() {
    for pipe_bytes in [1, 2, 7, 64, 100_000] {
        let (near, mut far) = duplex(pipe_bytes);
        let mut frames: Vec<Bytes> = (0..300)
            .map(|n| Bytes::from(format!("{{\"n\":{n},\"pad\":\"{}\"}}", "p".repeat(n % 50))))
            .collect();
        let expected: String =
            frames.iter().map(|frame| format!("{}\n", text(frame.clone()))).collect();
        let reading = tokio::spawn(async move {
            let mut read = String::new();
            far.read_to_string(&mut read).await.unwrap();
            read
        });
        let mut writer = LineWriter::new(near);
        soon("the write", writer.send_all(&mut frames)).await.unwrap();
        assert!(frames.is_empty());
        soon("an empty write", writer.send_all(&mut frames)).await.unwrap();
        drop(writer);
        assert!(reading.await.unwrap() == expected, "pipe of {pipe_bytes}");
    }
}

#[tokio::test]
async fn a_frame_with_line_breaks_becomes_one_line_of_the_same_json() {
    let (near, far) = duplex(1024);
    let pretty = Bytes::from_static(b"{\r\n  \"a\\n\": \"b\\r\\n\",\n  \"c\":\r2\n}\n");
    LineWriter::new(near).send_all(&mut vec![pretty, Bytes::from_static(b"{}")]).await.unwrap();
    let mut reader = LineReader::new(far, 1024);
    assert_eq!(reader.next().await.unwrap().unwrap(), "{    \"a\\n\": \"b\\r\\n\",   \"c\": 2 } ");
    assert_eq!(reader.next().await.unwrap().unwrap(), "{}");
    assert!(reader.next().await.unwrap().is_none());
}

#[tokio::test]
async fn writing_to_a_closed_pipe_is_an_error() {
    let (near, far) = duplex(16);
    drop(far);
    let mut frames = vec![Bytes::from_static(b"{}")];
    let error = LineWriter::new(near).send_all(&mut frames).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    assert!(frames.is_empty());
}

#[tokio::test]
async fn a_writer_that_accepts_no_bytes_is_an_error() {
    struct Full;
    impl AsyncWrite for Full {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<std::io::Result<usize>> {
            Poll::Ready(Ok(0))
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }
    let error =
        soon("an error", LineWriter::new(Full).send_all(&mut vec![Bytes::from_static(b"{}")]))
            .await
            .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WriteZero);
}

#[tokio::test]
async fn a_kept_small_line_does_not_keep_the_read_buffer() {
    let (mut near, far) = duplex(1024);
    let mut reader = LineReader::new(far, 1024);
    let mut addresses = Vec::new();
    for _ in 0..3 {
        near.write_all(b"{\"kept\":true}\r\n").await.unwrap();
        let line = soon("the line", reader.next()).await.unwrap().unwrap();
        assert_eq!(line, "{\"kept\":true}");
        // Bytes that own an allocation of exactly their size can be converted back without a copy.
        addresses.push(line.try_into_mut().expect("nobody shares it").capacity());
    }
    assert_eq!(addresses, [13; 3]);
}

#[tokio::test]
async fn draining_reads_to_the_end_and_returns_no_line() {
    let (mut near, far) = duplex(64);
    let mut reader = LineReader::new(far, 8);
    let writing = tokio::spawn(async move {
        near.write_all(&[b'x'; 100_000]).await.unwrap();
    });
    assert!(reader.next().await.is_err());
    soon("the end", reader.drain()).await;
    writing.await.unwrap();
    assert!(reader.next().await.unwrap().is_none());
}

#[tokio::test]
async fn an_unterminated_last_line_is_reported() {
    for (stream, is_unended) in
        [("{}\n", false), ("{}\r\n\n", false), ("{}", true), ("{}\r", true), ("{}\n{\"a\":", true)]
    {
        let mut reader = LineReader::new(stream.as_bytes(), 8);
        let count = stream.matches('{').count();
        for remaining in (0..count).rev() {
            assert!(reader.next().await.unwrap().is_some());
            assert_eq!(reader.is_unterminated(), is_unended && remaining == 0, "{stream:?}");
        }
        assert!(reader.next().await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_large_line_shares_its_memory_with_no_other_line() {
    let large = "x".repeat(1_000_000);
    let (mut near, far) = duplex(1024);
    let mut reader = LineReader::new(far, 2_000_000);
    let stream = format!("{large}\n{{\"next\":1}}\n");
    let writing = tokio::spawn(async move { near.write_all(stream.as_bytes()).await });
    let line = soon("the large line", reader.next()).await.unwrap().unwrap();
    assert!(line.is_unique(), "the next line has begun elsewhere");
    assert_eq!(text(line), large);
    assert_eq!(text(soon("the next line", reader.next()).await.unwrap().unwrap()), "{\"next\":1}");
    writing.await.unwrap().unwrap();
}

/// A task without tokio's budget must still get its thread back.
#[tokio::test]
async fn empty_lines_without_end_do_not_hold_the_thread() {
    let mut reader = LineReader::new(tokio::io::repeat(b'\n'), 8);
    let first_poll = unconstrained(reader.next()).now_or_never();
    assert!(first_poll.is_none(), "{first_poll:?}");
}
