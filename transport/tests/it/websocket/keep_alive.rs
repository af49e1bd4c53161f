//! Tests of pings, pongs and silence (W-07), and that neither half waits for the other.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use transport::{CloseReason, FrameSink, FrameSource, ReadError, websocket::Limits};

use super::{CLOSE, FINAL, PING, PONG, TEXT, connection, impatient, limits, masked};
use crate::soon;

#[tokio::test]
async fn a_silent_peer_is_pinged_and_then_disconnected() {
    let (mut raw, mut source, _sink) = connection(1024, &impatient());
    let began = Instant::now();
    let silence = soon("the end of patience", source.next()).await.unwrap_err();
    assert!(matches!(silence, ReadError::IdleTimeout { .. }), "{silence}");
    assert!(began.elapsed() >= impatient().idle_timeout);
    assert_eq!(silence.close_reason().ws_code(), 1008);
    assert_eq!(raw.receive().await, Some((PING, vec![])));
}

#[tokio::test]
async fn a_peer_that_answers_pings_stays_connected() {
    let (mut raw, mut source, _sink) = connection(1024, &impatient());
    let answering = async {
        let began = Instant::now();
        while began.elapsed() < impatient().idle_timeout * 3 {
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
async fn a_peer_is_pinged_before_its_silence_ends_the_connection() {
    let limits = Limits { ping_interval: Duration::from_secs(3_600), ..impatient() };
    let (mut raw, mut source, _sink) = connection(1024, &limits);
    tokio::select! {
        frame = raw.receive() => assert_eq!(frame, Some((PING, vec![]))),
        end = source.next() => panic!("it got no ping: {end:?}"),
    }
}

#[tokio::test]
async fn messages_received_while_no_one_reads_count_as_activity() {
    let (mut raw, mut source, _sink) = connection(1024, &impatient());
    raw.send(&masked(FINAL | TEXT, b"{}")).await;
    tokio::time::sleep(impatient().idle_timeout * 2).await;
    assert_eq!(soon("the message", source.next()).await.unwrap().unwrap(), "{}");
}

#[tokio::test]
async fn a_ping_is_answered_while_no_message_is_sent() {
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
        to_server.write_all(&masked(FINAL | PING, b"?")).await.unwrap();
        to_server.write_all(&masked(FINAL | TEXT, b"{}")).await.unwrap();
        source.next().await.unwrap().unwrap()
    };
    let reading = async {
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
    let (_sink, message, kinds) =
        soon("all of it", async { tokio::join!(sending, pinging, reading) }).await;
    assert_eq!(message, "{}");
    // The pong is never inside a frame, and does not wait until the end.
    assert_eq!(kinds.iter().filter(|kind| **kind == FINAL | PONG).count(), 1);
    assert_ne!(kinds.last(), Some(&(FINAL | PONG)), "{kinds:?}");
}

#[tokio::test]
async fn a_close_waits_for_its_answer_and_drops_messages_before_it() {
    let (mut raw, mut source, mut sink) = connection(1024, &limits());
    let began = Instant::now();
    let leaving = transport::close_gracefully(&mut source, &mut sink, CloseReason::GoingAway);
    let answering = async {
        assert_eq!(
            raw.receive().await,
            Some((CLOSE, [&1001_u16.to_be_bytes()[..], b"going away"].concat()))
        );
        raw.send(&masked(FINAL | TEXT, b"{}")).await;
        raw.send(&masked(FINAL | CLOSE, &1001_u16.to_be_bytes())).await;
    };
    soon("the farewell", async { tokio::join!(leaving, answering) }).await;
    assert!(began.elapsed() < transport::CLOSE_TIMEOUT, "an answer ends the waiting");
    assert!(source.next().await.unwrap().is_none());
}

#[tokio::test]
async fn a_peer_that_never_reads_does_not_block_a_close() {
    let (raw, mut source, mut sink) = connection(16, &limits());
    let stuck = tokio::time::timeout(
        Duration::from_millis(50),
        sink.send_all(&mut vec![Bytes::from_static(&[b'x'; 1000])]),
    )
    .await;
    assert!(stuck.is_err());
    soon(
        "the farewell",
        transport::close_gracefully(&mut source, &mut sink, CloseReason::SlowReader),
    )
    .await;
    drop(raw);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn halves_on_two_threads_lose_no_message_and_keep_frames_intact() {
    const MESSAGES: u32 = 3000;
    // The pipe is so narrow that every frame is written in pieces and every write waits.
    let (raw, mut source, mut sink) =
        connection(61, &Limits { ping_interval: Duration::from_millis(1), ..limits() });
    let (from_server, mut to_server) = tokio::io::split(raw.io);
    let sending = tokio::spawn(async move {
        for number in (0..MESSAGES).step_by(3) {
            let frames = (number..number + 3).map(|number| {
                Bytes::from(format!("{{\"n\":{number}}}{}", " ".repeat(number as usize % 100)))
            });
            sink.send_all(&mut frames.collect()).await.unwrap();
        }
        sink
    });
    let receiving = tokio::spawn(async move {
        for number in 0..MESSAGES {
            assert_eq!(source.next().await.unwrap().unwrap(), format!("{{\"n\":{number}}}"));
        }
        // The source answers pings until the peer has sent its close frame.
        assert!(source.next().await.unwrap().is_none());
        source
    });
    let talking = tokio::spawn(async move {
        for number in 0..MESSAGES {
            to_server.write_all(&masked(FINAL | PING, &number.to_be_bytes())).await.unwrap();
            to_server
                .write_all(&masked(FINAL | TEXT, format!("{{\"n\":{number}}}").as_bytes()))
                .await
                .unwrap();
        }
        to_server
    });
    let listening = tokio::spawn(async move {
        let mut from_server = from_server;
        let (mut texts, mut pongs) = (0, Vec::new());
        while texts < MESSAGES {
            let [first, length] =
                [from_server.read_u8().await.unwrap(), from_server.read_u8().await.unwrap()];
            let mut payload = vec![0; usize::from(length)];
            from_server.read_exact(&mut payload).await.unwrap();
            match first & 0x0f {
                TEXT => {
                    assert!(payload.starts_with(format!("{{\"n\":{texts}}}").as_bytes()));
                    texts += 1;
                }
                PONG => pongs.push(u32::from_be_bytes(payload.try_into().unwrap())),
                PING => assert!(payload.is_empty()),
                other => panic!("opcode {other}"),
            }
        }
        assert!(pongs.is_sorted() && !pongs.is_empty());
        // The peer keeps reading: after the last text the sink may have pongs to write, for which
        // the pipe has no space.
        let mut rest = Vec::new();
        from_server.read_to_end(&mut rest).await.unwrap();
        rest
    });
    let sink = soon("all sent", sending).await.unwrap();
    let mut to_server = soon("all said", talking).await.unwrap();
    soon("a goodbye", to_server.write_all(&masked(FINAL | CLOSE, &1000_u16.to_be_bytes())))
        .await
        .unwrap();
    let source = soon("all received", receiving).await.unwrap();
    drop((source, sink));
    let rest = soon("all heard", listening).await.unwrap();
    assert!(rest.ends_with(&[FINAL | CLOSE, 2, 0x03, 0xe8]), "{rest:?}");
}
