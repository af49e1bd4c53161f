//! The behaviours. `near` sends, `far` receives.

use std::{cell::Cell, future::ready, pin::pin, time::Duration};

use bytes::Bytes;
use transport::{CloseReason, FrameSink, FrameSource, ReadError, close_gracefully};

use super::End;
use crate::soon;

pub(crate) const LIMIT: usize = 1000;

/// Returns a JSON text of exactly this many bytes.
fn frame(number: usize, bytes: usize) -> Bytes {
    let (head, tail) = (format!("{{\"n\":{number},\"pad\":\""), "\"}");
    let pad = bytes.saturating_sub(head.len() + tail.len());
    Bytes::from(format!("{head}{}{}{tail}", "é".repeat(pad / 2), "x".repeat(pad % 2)))
}

async fn received(source: &mut impl FrameSource) -> Bytes {
    soon("a frame", source.next()).await.expect("no fault").expect("no end")
}

/// Sends and receives at once, because no wire has space for all frames.
async fn arrives<R: FrameSource, W: FrameSink>(
    near: &mut End<impl FrameSource, W>,
    far: &mut End<R, impl FrameSink>,
    frames: &[Bytes],
    batch: usize,
) {
    let sending = async {
        for frames in frames.chunks(batch) {
            let mut frames = frames.to_vec();
            near.sink.send_all(&mut frames).await.unwrap();
            assert!(frames.is_empty());
        }
    };
    let receiving = async {
        for (number, expected) in frames.iter().enumerate() {
            let frame = far.source.next().await.unwrap().expect("no end");
            assert!(
                frame == expected,
                "frame {number}: {} bytes instead of {}",
                frame.len(),
                expected.len()
            );
        }
    };
    soon("all frames", async { tokio::join!(sending, receiving) }).await;
}

pub(super) async fn frames_arrive_whole_and_in_order(
    mut near: End<impl FrameSource, impl FrameSink>,
    mut far: End<impl FrameSource, impl FrameSink>,
) {
    let frames: Vec<Bytes> = (0..5000).map(|number| frame(number, 20 + number * 7 % 900)).collect();
    for batch in [1, 3, 64, 700] {
        arrives(&mut near, &mut far, &frames[..batch.max(200) * 2], batch).await;
    }
    arrives(&mut near, &mut far, &frames, frames.len()).await;
}

pub(super) async fn both_directions_at_once(
    near: End<impl FrameSource, impl FrameSink>,
    far: End<impl FrameSource, impl FrameSink>,
) {
    async fn send(mut sink: impl FrameSink) -> impl FrameSink {
        for number in 0..300 {
            sink.send_all(&mut vec![frame(number, 3000), frame(number, 30)]).await.unwrap();
        }
        sink
    }
    async fn receive(mut source: impl FrameSource) -> impl FrameSource {
        for number in 0..300 {
            assert!(source.next().await.unwrap().unwrap() == frame(number, 3000));
            assert!(source.next().await.unwrap().unwrap() == frame(number, 30));
        }
        source
    }
    let all = async {
        tokio::join!(send(near.sink), receive(near.source), send(far.sink), receive(far.source))
    };
    soon("all frames both ways", all).await;
}

pub(super) async fn megabytes_arrive_as_sent(
    mut near: End<impl FrameSource, impl FrameSink>,
    mut far: End<impl FrameSource, impl FrameSink>,
) {
    let frames = [
        frame(1, 1024 * 1024),
        frame(2, 100),
        frame(3, 3 * 1024 * 1024),
        frame(4, 64 * 1024),
        frame(5, 65_535),
    ];
    arrives(&mut near, &mut far, &frames, 2).await;
}

pub(super) async fn frames_sent_byte_by_byte_arrive_unchanged(
    mut near: End<impl FrameSource, impl FrameSink>,
    mut far: End<impl FrameSource, impl FrameSink>,
) {
    arrives(&mut near, &mut far, &[frame(1, 17), frame(2, 300), frame(3, 126), frame(4, 125)], 2)
        .await;
}

pub(super) async fn frames_sent_in_odd_pieces_arrive_unchanged(
    mut near: End<impl FrameSource, impl FrameSink>,
    mut far: End<impl FrameSource, impl FrameSink>,
) {
    let frames: Vec<Bytes> = (0..100).map(|number| frame(number, 900 + number * 13)).collect();
    arrives(&mut near, &mut far, &frames, 10).await;
}

pub(super) async fn the_limit_is_exact(
    mut near: End<impl FrameSource, impl FrameSink>,
    mut far: End<impl FrameSource, impl FrameSink>,
) {
    arrives(&mut near, &mut far, &[frame(1, LIMIT), frame(2, 20), frame(3, LIMIT)], 3).await;
}

pub(super) async fn a_frame_over_the_limit_is_reported_once(
    mut near: End<impl FrameSource, impl FrameSink>,
    mut far: End<impl FrameSource, impl FrameSink>,
) {
    near.sink.send_all(&mut vec![frame(1, 20), frame(2, LIMIT + 1), frame(3, 20)]).await.unwrap();
    assert_eq!(received(&mut far.source).await, frame(1, 20));
    let refusal = soon("a refusal", far.source.next()).await.unwrap_err();
    assert!(matches!(refusal, ReadError::TooLong { limit: LIMIT }), "{refusal:?}");
    assert_eq!(refusal.close_reason(), CloseReason::TooLarge);
    assert!(soon("the end", far.source.next()).await.unwrap().is_none());
}

pub(super) async fn empty_frames_are_nothing(
    mut near: End<impl FrameSource, impl FrameSink>,
    mut far: End<impl FrameSource, impl FrameSink>,
) {
    let empty = Bytes::new();
    near.sink
        .send_all(&mut vec![
            empty.clone(),
            frame(1, 30),
            empty.clone(),
            empty.clone(),
            frame(2, 30),
            empty,
        ])
        .await
        .unwrap();
    assert_eq!(received(&mut far.source).await, frame(1, 30));
    assert_eq!(received(&mut far.source).await, frame(2, 30));
    near.sink.send_all(&mut Vec::new()).await.unwrap();
}

pub(super) async fn line_breaks_inside_a_frame_become_spaces(
    mut near: End<impl FrameSource, impl FrameSink>,
    mut far: End<impl FrameSource, impl FrameSink>,
) {
    near.sink
        .send_all(&mut vec![Bytes::from_static(b"{\r\n  \"a\\n\": 1,\n\"b\":\r2}"), frame(1, 30)])
        .await
        .unwrap();
    assert_eq!(received(&mut far.source).await, "{    \"a\\n\": 1, \"b\": 2}");
    assert_eq!(received(&mut far.source).await, frame(1, 30));
}

pub(super) async fn a_dropped_next_future_loses_no_frame(
    mut near: End<impl FrameSource, impl FrameSink>,
    mut far: End<impl FrameSource, impl FrameSink>,
) {
    let frames: Vec<Bytes> = (0..60).map(|number| frame(number, 20 + number * 5)).collect();
    let sending = async {
        for frame in &frames {
            near.sink.send_all(&mut vec![frame.clone()]).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    let receiving = async {
        let mut expected = frames.iter();
        while expected.len() > 0 {
            // Polls `next` once and drops it, over and over.
            let frame = tokio::select! { biased; frame = far.source.next() => frame, () = ready(()) => {
                tokio::task::yield_now().await;
                continue;
            } };
            assert_eq!(frame.unwrap().as_ref(), expected.next());
        }
    };
    soon("all frames", async { tokio::join!(sending, receiving) }).await;
}

pub(super) async fn a_slow_reader_delays_the_writer_and_loses_no_frame(
    mut near: End<impl FrameSource, impl FrameSink>,
    mut far: End<impl FrameSource, impl FrameSink>,
) {
    // This is more than any wire can buffer: a peer that does not read has to stop the writer.
    let frames: Vec<Bytes> = (0..24).map(|number| frame(number, 1024 * 1024)).collect();
    let sent = Cell::new(0);
    let sending = async {
        for frame in &frames {
            near.sink.send_all(&mut vec![frame.clone()]).await.unwrap();
            sent.set(sent.get() + 1);
        }
    };
    let mut sending = pin!(sending);
    tokio::select! {
        () = &mut sending => panic!("24 MiB were written to a peer that reads nothing"),
        () = standstill(&sent) => {}
    }
    let reading = async {
        for expected in &frames {
            assert!(received(&mut far.source).await == expected);
        }
    };
    soon("the rest", async { tokio::join!(sending, reading) }).await;
}

/// Resolves when the number has not changed for a while.
async fn standstill(number: &Cell<usize>) {
    let mut unchanged = 0;
    while unchanged < 30 {
        let before = number.get();
        tokio::time::sleep(Duration::from_millis(10)).await;
        unchanged = if number.get() == before { unchanged + 1 } else { 0 };
    }
}

pub(super) async fn an_orderly_end_ends_the_source(
    mut near: End<impl FrameSource, impl FrameSink>,
    mut far: End<impl FrameSource, impl FrameSink>,
) {
    near.sink.send_all(&mut (0..100).map(|number| frame(number, 500)).collect()).await.unwrap();
    let leaving = close_gracefully(&mut near.source, &mut near.sink, CloseReason::Done);
    let reading = async {
        for number in 0..100 {
            assert_eq!(received(&mut far.source).await, frame(number, 500));
        }
        for _ in 0..2 {
            assert!(soon("the end", far.source.next()).await.unwrap().is_none());
        }
        far.sink.close(CloseReason::Done).await;
        drop(far);
    };
    soon("the end of both", async { tokio::join!(leaving, reading) }).await;
    assert!(
        near.sink.send_all(&mut vec![frame(1, 20)]).await.is_err(),
        "nothing is sent after a goodbye"
    );
}

pub(super) async fn the_end_of_one_direction_keeps_the_other_open(
    mut near: End<impl FrameSource, impl FrameSink>,
    mut far: End<impl FrameSource, impl FrameSink>,
) {
    near.sink.send_all(&mut vec![frame(1, 30)]).await.unwrap();
    near.sink.close(CloseReason::Done).await;
    assert_eq!(received(&mut far.source).await, frame(1, 30));
    assert!(soon("the end", far.source.next()).await.unwrap().is_none());
    for number in 0..10 {
        far.sink.send_all(&mut vec![frame(number, 2000)]).await.unwrap();
        assert_eq!(received(&mut near.source).await, frame(number, 2000));
    }
    far.sink.close(CloseReason::Done).await;
    assert!(soon("the end", near.source.next()).await.unwrap().is_none());
}

pub(super) async fn a_vanished_peer_is_detected_without_a_partial_frame(
    mut near: End<impl FrameSource, impl FrameSink>,
    mut far: End<impl FrameSource, impl FrameSink>,
) {
    near.sink.send_all(&mut vec![frame(1, 30)]).await.unwrap();
    assert_eq!(received(&mut far.source).await, frame(1, 30));
    drop(near);
    assert!(matches!(soon("the end", far.source.next()).await, Ok(None) | Err(_)));
    assert!(soon("the end", far.source.next()).await.unwrap().is_none(), "a fault is said once");
}

pub(super) async fn writing_to_a_closed_peer_fails_eventually(
    near: End<impl FrameSource, impl FrameSink>,
    mut far: End<impl FrameSource, impl FrameSink>,
) {
    drop(near);
    let failing =
        async { while far.sink.send_all(&mut vec![frame(1, 64 * 1024)]).await.is_ok() {} };
    soon("an error", failing).await;
}
