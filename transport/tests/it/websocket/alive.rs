//! Pings, pongs and silence (W-07), and that neither half waits for the other.

use std::time::{Duration, Instant};

use bytes::Bytes;
use transport::{FrameSink, FrameSource, Goodbye, ReadError};

use super::{CLOSE, FINAL, PING, PONG, TEXT, connection, impatient, limits, masked};
use crate::soon;

#[tokio::test]
async fn a_silent_peer_is_asked_and_then_given_up() {
    let (mut raw, mut source, _sink) = connection(1024, &impatient());
    let began = Instant::now();
    let silence = soon("the end of patience", source.next()).await.unwrap_err();
    assert!(matches!(silence, ReadError::Silent { .. }), "{silence}");
    assert!(began.elapsed() >= impatient().silence_max);
    assert_eq!(silence.goodbye().ws_code(), 1008);
    assert_eq!(raw.receive().await, Some((PING, vec![])));
}

#[tokio::test]
async fn a_peer_that_answers_lives_on() {
    let (mut raw, mut source, _sink) = connection(1024, &impatient());
    let answering = async {
        let began = Instant::now();
        while began.elapsed() < impatient().silence_max * 3 {
            let (opcode, payload) = raw.receive().await.unwrap();
            assert_eq!(opcode, PING);
            raw.send(&masked(FINAL | PONG, &payload)).await;
        }
        raw.send(&masked(FINAL | TEXT, b"{}")).await;
    };
    let ((), message) = soon("a message", async { tokio::join!(answering, source.next()) }).await;
    assert_eq!(message.unwrap().unwrap(), "{}");
}

#[tokio::test]
async fn a_peer_that_spoke_while_nobody_listened_is_not_called_silent() {
    let (mut raw, mut source, _sink) = connection(1024, &impatient());
    raw.send(&masked(FINAL | TEXT, b"{}")).await;
    tokio::time::sleep(impatient().silence_max * 2).await;
    assert_eq!(soon("the message", source.next()).await.unwrap().unwrap(), "{}");
}

#[tokio::test]
async fn a_ping_is_answered_while_nobody_sends() {
    let (mut raw, mut source, _sink) = connection(4096, &limits());
    for number in 0..10_u8 {
        raw.send(&masked(FINAL | PING, &[number; 125])).await;
    }
    let answers = async {
        for number in 0..10 {
            assert_eq!(raw.receive().await, Some((PONG, vec![number; 125])));
        }
    };
    tokio::select! {
        () = answers => {}
        end = source.next() => panic!("{end:?}"),
    }
}

#[tokio::test]
async fn a_ping_is_answered_between_frames_while_a_large_batch_is_sent() {
    let (raw, mut source, mut sink) = connection(1024, &limits());
    let (mut from_server, mut to_server) = tokio::io::split(raw.io);
    let frame = Bytes::from(vec![b'x'; 300_000]);
    let sending = async {
        sink.send_all(&mut vec![frame.clone(), frame.clone(), frame.clone()]).await.unwrap();
        sink
    };
    let pinging = async {
        use tokio::io::AsyncWriteExt;
        to_server.write_all(&masked(FINAL | PING, b"?")).await.unwrap();
        to_server.write_all(&masked(FINAL | TEXT, b"{}")).await.unwrap();
        source.next().await.unwrap().unwrap()
    };
    let reading = async {
        use tokio::io::AsyncReadExt;
        let mut kinds = Vec::new();
        for _ in 0..4 {
            let kind = from_server.read_u8().await.unwrap();
            let length = match from_server.read_u8().await.unwrap() {
                127 => usize::try_from(from_server.read_u64().await.unwrap()).unwrap(),
                short => usize::from(short),
            };
            let mut payload = vec![0; length];
            from_server.read_exact(&mut payload).await.unwrap();
            kinds.push(kind);
        }
        kinds
    };
    let (_sink, message, kinds) = soon("all of it", async { tokio::join!(sending, pinging, reading) }).await;
    assert_eq!(message, "{}");
    // Never inside a frame, and not only at the end.
    assert_eq!(kinds.iter().filter(|kind| **kind == FINAL | PONG).count(), 1);
    assert_ne!(kinds.last(), Some(&(FINAL | PONG)), "{kinds:?}");
}

#[tokio::test]
async fn a_goodbye_of_ours_waits_for_the_answer_and_drops_what_comes_before_it() {
    let (mut raw, mut source, mut sink) = connection(1024, &limits());
    let began = Instant::now();
    let leaving = transport::farewell(&mut source, &mut sink, Goodbye::GoingAway);
    let answering = async {
        assert_eq!(raw.receive().await, Some((CLOSE, [&1001_u16.to_be_bytes()[..], b"going away"].concat())));
        raw.send(&masked(FINAL | TEXT, b"{}")).await;
        raw.send(&masked(FINAL | CLOSE, &1001_u16.to_be_bytes())).await;
    };
    soon("the farewell", async { tokio::join!(leaving, answering) }).await;
    assert!(began.elapsed() < transport::CLOSE_TIMEOUT, "an answer ends the waiting");
    assert!(source.next().await.unwrap().is_none());
}

#[tokio::test]
async fn a_peer_that_never_reads_does_not_hold_up_a_goodbye() {
    let (raw, mut source, mut sink) = connection(16, &limits());
    let stuck = tokio::time::timeout(Duration::from_millis(50), sink.send_all(&mut vec![Bytes::from_static(&[b'x'; 1000])])).await;
    assert!(stuck.is_err());
    soon("the farewell", transport::farewell(&mut source, &mut sink, Goodbye::SlowReader)).await;
    drop(raw);
}
