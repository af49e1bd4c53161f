//! Tests of the QUIC binding from outside: streams of requests, cancellation, migration, restart,
//! goodbyes.

mod hostile_clients;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use transport::{
    ClientAuth, CloseReason, FrameSink, FrameSource, ReadError, close_gracefully,
    quic::{Limits, ListenerSecret, QuicClient, QuicConnection, QuicListener, QuicSource},
};

use crate::{
    DEADLINE,
    certificates::Authority,
    conformance::{
        Setup,
        wires::{QuicEnd, quic_connection, quic_limits, quic_listener},
    },
    soon, until,
};

const ANYWHERE: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

fn limits() -> Limits {
    quic_limits(Setup { frame_bytes_max: 1024 * 1024, slice_bytes: None })
}

/// Returns both sides of a connection, and the listener.
async fn pair(limits: Limits) -> (QuicListener, (QuicConnection, QuicEnd), (QuicClient, QuicEnd)) {
    let (listener, tls) = quic_listener(limits.clone());
    let (server, client) = quic_connection(&listener, &tls, &limits).await;
    (listener, server, client)
}

fn frame(text: &str) -> Bytes {
    Bytes::from(text.to_owned())
}

async fn next(source: &mut QuicSource) -> Option<Bytes> {
    soon("a message", source.next()).await.unwrap()
}

#[tokio::test]
async fn each_request_has_a_stream_and_no_stream_waits_for_another() {
    let (_listener, (connection, mut server), (client, mut control)) = pair(limits()).await;
    let asking = async {
        let mut asked = Vec::new();
        for number in 0..50 {
            asked.push(client.open_request(frame(&format!("{{\"n\":{number}}}"))).await.unwrap());
        }
        asked
    };
    let hearing = async {
        let mut streams = Vec::new();
        for number in 0..50 {
            let mut stream = connection.accept_request().await.unwrap();
            assert_eq!(stream.receive().await.unwrap().unwrap(), format!("{{\"n\":{number}}}"));
            streams.push(stream);
        }
        streams
    };
    let (mut asked, streams) = soon("all streams", async { tokio::join!(asking, hearing) }).await;
    // The answers go out from the last to the first, with a message before each answer.
    for (number, stream) in streams.into_iter().enumerate().rev() {
        let (mut sink, _cancellation) = stream.into_response_sink();
        sink.send_all(&mut vec![
            frame("{\"progress\":1}"),
            frame(&format!("{{\"answer\":{number}}}")),
        ])
        .await
        .unwrap();
        sink.close(CloseReason::Done).await;
        let asked = &mut asked[number];
        assert_eq!(next(&mut asked.source).await.unwrap(), "{\"progress\":1}");
        assert_eq!(next(&mut asked.source).await.unwrap(), format!("{{\"answer\":{number}}}"));
        assert_eq!(next(&mut asked.source).await, None);
    }
    // The control stream has stayed open all the time.
    server.sink.send_all(&mut vec![frame("{\"all\":true}")]).await.unwrap();
    assert_eq!(next(&mut control.source).await.unwrap(), "{\"all\":true}");
}

#[tokio::test]
async fn a_cancelled_stream_cancels_only_its_own_request() {
    let (_listener, (connection, _server), (client, _control)) = pair(limits()).await;
    let mut given_up = client.open_request(frame("{\"n\":1}")).await.unwrap();
    let mut kept = client.open_request(frame("{\"n\":2}")).await.unwrap();
    let mut first = soon("a stream", connection.accept_request()).await.unwrap();
    first.receive().await.unwrap();
    let mut second = soon("a stream", connection.accept_request()).await.unwrap();
    second.receive().await.unwrap();
    let (sink, mut cancellation) = first.into_response_sink();
    let (mut second_sink, mut second_cancellation) = second.into_response_sink();
    tokio::select! { biased;
        () = cancellation.cancelled(&sink) => panic!("nobody has cancelled"),
        () = std::future::ready(()) => {}
    }
    given_up.cancel();
    soon("the cancellation", cancellation.cancelled(&sink)).await;
    second_sink.send_all(&mut vec![frame("{\"answer\":2}")]).await.unwrap();
    second_sink.finish();
    assert_eq!(next(&mut kept.source).await.unwrap(), "{\"answer\":2}");
    tokio::select! { biased;
        () = second_cancellation.cancelled(&second_sink) => panic!("an answered request is not cancelled"),
        () = tokio::time::sleep(Duration::from_millis(50)) => {}
    }
}

#[tokio::test]
async fn every_way_to_abandon_a_stream_is_a_cancellation() {
    for way in 0..4 {
        let (_listener, (connection, _server), (client, control)) = pair(limits()).await;
        // The sink is not finished, because a reset of the request's direction must count as well.
        let mut stream = client.open_stream().await.unwrap();
        stream.sink.send_all(&mut vec![frame("{\"n\":1}")]).await.unwrap();
        let mut accepted = soon("a stream", connection.accept_request()).await.unwrap();
        accepted.receive().await.unwrap();
        let (mut sink, mut cancellation) = accepted.into_response_sink();
        match way {
            0 => stream.cancel(),
            1 => stream.sink.close(CloseReason::Policy).await,
            2 => drop(stream),
            _ => client.close(CloseReason::Done),
        }
        soon("the cancellation", cancellation.cancelled(&sink)).await;
        if way != 1 {
            let writing = async { while sink.send_all(&mut vec![frame("{}")]).await.is_ok() {} };
            soon("an error", writing).await;
        }
        drop(control);
    }
}

#[tokio::test]
async fn a_request_reset_before_it_was_complete_is_cancelled() {
    let (_listener, (connection, _server), (client, _control)) = pair(limits()).await;
    let mut stream = client.open_stream().await.unwrap();
    stream.sink.send_all(&mut vec![Bytes::new()]).await.unwrap();
    let mut accepted = soon("a stream", connection.accept_request()).await.unwrap();
    stream.cancel();
    assert!(matches!(soon("the end", accepted.receive()).await, Err(ReadError::Cancelled)));
}

#[tokio::test]
async fn a_truncated_message_is_never_accepted() {
    let (_listener, (connection, _server), (client, _control)) = pair(limits()).await;
    let mut asked = client.open_request(frame("{}")).await.unwrap();
    let mut accepted = soon("a stream", connection.accept_request()).await.unwrap();
    accepted.receive().await.unwrap();
    let (mut sink, _cancellation) = accepted.into_response_sink();
    // The message exceeds the windows, so the call is dropped in the middle of it.
    let long = Bytes::from(vec![b'7'; 8 * 1024 * 1024]);
    let sending =
        tokio::time::timeout(Duration::from_millis(100), sink.send_all(&mut vec![long])).await;
    assert!(sending.is_err());
    drop(sink);
    assert!(matches!(
        soon("the end", asked.source.next()).await,
        Err(ReadError::Cancelled | ReadError::TooLong { .. })
    ));
}

#[tokio::test]
async fn a_delivered_stream_is_complete_at_the_end_of_its_connection() {
    let (_listener, (connection, _server), (client, _control)) = pair(limits()).await;
    let mut asked = client.open_request(frame("{}")).await.unwrap();
    let mut accepted = soon("a stream", connection.accept_request()).await.unwrap();
    accepted.receive().await.unwrap();
    let (mut sink, _cancellation) = accepted.into_response_sink();
    let long = frame(&format!("{{\"pad\":\"{}\"}}", "x".repeat(500_000)));
    let answering = async {
        sink.send_all(&mut vec![long.clone()]).await.unwrap();
        sink.finish_delivered().await;
        connection.close(CloseReason::Done);
    };
    let reading = asked.source.next();
    let ((), answer) = soon("the answer", async { tokio::join!(answering, reading) }).await;
    assert!(answer.unwrap().unwrap() == long);
}

/// The full number of streams may be open, although the client may open only a few before the
/// server accepts the first.
#[tokio::test]
async fn q_05_exactly_the_permitted_streams_can_be_open_at_once() {
    let (_listener, (connection, _server), (client, _control)) =
        pair(Limits { request_streams_max: 100, ..limits() }).await;
    let opening = async {
        let mut open = Vec::new();
        for number in 0..100 {
            open.push(client.open_request(frame(&format!("{{\"n\":{number}}}"))).await.unwrap());
        }
        open
    };
    let accepting = async {
        let mut accepted = Vec::new();
        for number in 0..100 {
            let mut stream = connection.accept_request().await.unwrap();
            assert_eq!(stream.receive().await.unwrap().unwrap(), format!("{{\"n\":{number}}}"));
            accepted.push(stream);
        }
        accepted
    };
    let (_open, _accepted) = soon("all streams", async { tokio::join!(opening, accepting) }).await;
    assert!(client.try_open_stream().is_none(), "more streams than allowed");
}

#[tokio::test]
async fn q_05_streams_are_limited_and_freed() {
    let (_listener, (connection, _server), (client, _control)) =
        pair(Limits { request_streams_max: 2, ..limits() }).await;
    let _first = client.open_request(frame("{}")).await.unwrap();
    let mut second = client.open_request(frame("{}")).await.unwrap();
    let third = client.open_request(frame("{\"n\":3}"));
    tokio::pin!(third);
    tokio::select! {
        _ = &mut third => panic!("more streams than allowed"),
        () = tokio::time::sleep(Duration::from_millis(50)) => {}
    }
    let mut accepted = Vec::new();
    for _ in 0..2 {
        let mut stream = soon("a stream", connection.accept_request()).await.unwrap();
        stream.receive().await.unwrap().unwrap();
        accepted.push(stream);
    }
    let (mut sink, cancellation) = accepted.pop().unwrap().into_response_sink();
    sink.finish();
    drop(cancellation);
    assert_eq!(next(&mut second.source).await, None);
    soon("a free permit", third).await.unwrap();
    assert_eq!(
        soon("the third", connection.accept_request())
            .await
            .unwrap()
            .receive()
            .await
            .unwrap()
            .unwrap(),
        "{\"n\":3}"
    );
}

#[tokio::test]
async fn close_codes_arrive_after_all_sent_messages() {
    for goodbye in CloseReason::ALL {
        let (_listener, (connection, mut server), (client, mut control)) = pair(limits()).await;
        let long = frame(&format!("{{\"pad\":\"{}\"}}", "x".repeat(200_000)));
        let saying = async {
            server.sink.send_all(&mut vec![long.clone(), frame("{\"last\":true}")]).await.unwrap();
            close_gracefully(&mut server.source, &mut server.sink, goodbye).await;
        };
        let hearing = async {
            assert!(control.source.next().await.unwrap().unwrap() == long);
            assert_eq!(control.source.next().await.unwrap().unwrap(), "{\"last\":true}");
            // The stream ends before the connection does, and only the connection has a reason.
            let end = control.source.next().await;
            client.closed().await;
            end
        };
        let ((), end) = soon("the end", async { tokio::join!(saying, hearing) }).await;
        assert!(matches!(end, Ok(None) | Err(ReadError::Closed { .. })), "{end:?}");
        let refused = client.open_request(frame("{}")).await.unwrap_err();
        assert!(refused.to_string().contains("closed"), "{refused}");
        connection.closed().await;
    }
}

#[tokio::test]
async fn an_immediate_close_contains_its_reason() {
    let (_listener, (connection, _server), (_client, mut control)) = pair(limits()).await;
    connection.close(CloseReason::Overloaded);
    match soon("the end", control.source.next()).await {
        Err(ReadError::Closed { code, reason }) => {
            assert_eq!((code, &*reason), (8, "overloaded, try again later"))
        }
        other => panic!("{other:?}"),
    }
    assert!(control.source.next().await.unwrap().is_none());
}

#[tokio::test]
async fn q_07_a_client_that_moves_keeps_its_streams() {
    let (_listener, (connection, mut server), (client, mut control)) = pair(limits()).await;
    let serving = {
        let connection = connection.clone();
        tokio::spawn(async move {
            while let Some(mut stream) = connection.accept_request().await {
                tokio::spawn(async move {
                    let request = stream.receive().await.unwrap().unwrap();
                    let (mut sink, _cancellation) = stream.into_response_sink();
                    for _ in 0..20 {
                        sink.send_all(&mut vec![request.clone()]).await.unwrap();
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    sink.close(CloseReason::Done).await;
                });
            }
        })
    };
    let mut streams = Vec::new();
    for number in 0..10 {
        streams.push(client.open_request(frame(&format!("{{\"n\":{number}}}"))).await.unwrap());
    }
    let before = connection.remote();
    for (number, stream) in streams.iter_mut().enumerate() {
        let mut seen = 0;
        while let Some(message) = next(&mut stream.source).await {
            assert_eq!(message, format!("{{\"n\":{number}}}"));
            seen += 1;
            if number == 0 && seen % 5 == 0 {
                client.rebind().unwrap();
            }
        }
        assert_eq!(seen, 20, "stream {number}");
    }
    control.sink.send_all(&mut vec![frame("{\"still\":1}")]).await.unwrap();
    assert_eq!(next(&mut server.source).await.unwrap(), "{\"still\":1}");
    until("the new address is known", || connection.remote() != before).await;
    assert_eq!(connection.remote().ip(), before.ip());
    client.close(CloseReason::Done);
    soon("the end", serving).await.unwrap();
}

#[tokio::test]
async fn q_10_a_restarted_listener_resets_old_connections() {
    let authority = Authority::new();
    let (tls, client_tls) = (Arc::new(authority.server(ClientAuth::None)), authority.client());
    let secret = ListenerSecret { shared: &[7; 32], name: "one" };
    // A separate runtime stands for the first process, because only the end of a runtime sends no
    // goodbye.
    let process =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let first = {
        let _inside = process.enter();
        QuicListener::bind(ANYWHERE, Arc::clone(&tls), limits(), Some(secret)).unwrap()
    };
    let address = first.local_addr().unwrap();
    let ((connection, server), (_client, mut control)) =
        quic_connection(&first, &client_tls, &limits()).await;
    // The test waits for the shutdown: while a task still runs, dropping the handles would send a
    // goodbye.
    tokio::task::spawn_blocking(move || process.shutdown_timeout(DEADLINE)).await.unwrap();
    drop((connection, server, first));
    let mut again = None;
    until("the address is free", || {
        again = QuicListener::bind(address, Arc::clone(&tls), limits(), Some(secret)).ok();
        again.is_some()
    })
    .await;
    let listening = tokio::spawn(async move { again.unwrap().accept().await.map(drop) });
    control.sink.send_all(&mut vec![frame("{\"who\":\"are you\"}")]).await.unwrap();
    let end = tokio::time::timeout(Duration::from_secs(1), control.source.next())
        .await
        .expect("the client knows within a second");
    assert!(matches!(end, Err(ReadError::Io(_))), "{end:?}");
    listening.abort();
}

#[tokio::test]
async fn a_closed_listener_closes_all_connections() {
    let (listener, (connection, server), (_client, mut control)) = pair(limits()).await;
    listener.stop_accepting();
    listener.close(CloseReason::GoingAway);
    assert!(next(&mut control.source).await.is_none());
    assert!(soon("the end of accepting", listener.accept()).await.is_none());
    drop((connection, server, control));
    soon("quiet", listener.wait_idle()).await;
}

#[test]
fn close_codes_on_the_wire_are_distinct() {
    let mut codes: Vec<u32> = CloseReason::ALL.iter().map(|goodbye| goodbye.quic_code()).collect();
    codes.dedup();
    assert_eq!(codes, (0..9).collect::<Vec<u32>>());
    for goodbye in CloseReason::ALL {
        assert!(goodbye.reason().len() <= 123, "fits into a close frame of WebSocket");
    }
}
