//! Tests against an independent implementation, in both roles.

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::HeaderMap;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::{
    accept_hdr_async, client_async,
    tungstenite::{Message, client::IntoClientRequest, protocol::CloseFrame},
};
use transport::{
    CloseReason, FrameSink, FrameSource, close_gracefully,
    tcp::Stream,
    websocket::{self, ConnectOptions, Limits},
};

use crate::{
    DEADLINE,
    certificates::Authority,
    conformance::wires::{egress, upgraded},
    soon,
};

fn sizes() -> impl Iterator<Item = String> {
    [1, 10, 125, 126, 127, 65_535, 65_536, 1_000_000].into_iter().map(|size| "x".repeat(size))
}

#[tokio::test]
async fn an_independent_client_can_use_the_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = async {
        let (stream, begun) = upgraded(Stream::Plain(listener.accept().await.unwrap().0)).await;
        let (mut source, mut sink) = websocket::server(stream, begun, &Limits::default());
        while let Some(frame) = source.next().await.unwrap() {
            sink.send_all(&mut vec![frame]).await.unwrap();
        }
        close_gracefully(&mut source, &mut sink, CloseReason::Done).await;
    };
    let asking = async {
        let mut request = format!("ws://{address}/ws").into_client_request().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", "mcp".parse().unwrap());
        let (mut peer, response) =
            client_async(request, TcpStream::connect(address).await.unwrap()).await.unwrap();
        assert_eq!(response.headers()["sec-websocket-protocol"], "mcp");
        for text in sizes() {
            peer.send(Message::text(text.clone())).await.unwrap();
            assert!(peer.next().await.unwrap().unwrap() == Message::text(text));
        }
        peer.send(Message::Ping(Bytes::from_static(b"there?"))).await.unwrap();
        assert_eq!(
            peer.next().await.unwrap().unwrap(),
            Message::Pong(Bytes::from_static(b"there?"))
        );
        peer.close(Some(CloseFrame { code: 1000.into(), reason: "bye".into() })).await.unwrap();
        let Message::Close(Some(answer)) = peer.next().await.unwrap().unwrap() else {
            panic!("no close frame")
        };
        assert_eq!(u16::from(answer.code), 1000);
        assert!(peer.next().await.is_none());
    };
    soon("the talk", async { tokio::join!(serving, asking) }).await;
}

#[tokio::test]
async fn the_client_can_use_an_independent_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/ws", listener.local_addr().unwrap()).parse().unwrap();
    let serving = async {
        #[expect(clippy::result_large_err, reason = "the callback's type is theirs")]
        let choose = |_: &http::Request<()>, mut response: http::Response<()>| {
            response.headers_mut().insert("sec-websocket-protocol", "mcp".parse().unwrap());
            Ok(response)
        };
        let mut peer = accept_hdr_async(listener.accept().await.unwrap().0, choose).await.unwrap();
        peer.send(Message::Ping(Bytes::from_static(b"there?"))).await.unwrap();
        let mut answers = 0;
        while let Some(Ok(message)) = peer.next().await {
            answers += usize::from(message == Message::Pong(Bytes::from_static(b"there?")));
            if message.is_text() {
                peer.send(message).await.unwrap();
            }
        }
        assert_eq!(answers, 1);
    };
    let asking = async {
        let (egress, tls, limits) = (egress(), Authority::new().client(), Limits::default());
        let options = ConnectOptions {
            url: &url,
            headers: HeaderMap::new(),
            egress: &egress,
            tls: &tls,
            limits: &limits,
            timeout: DEADLINE,
        };
        let (mut source, mut sink) = websocket::connect(options).await.unwrap();
        for text in sizes() {
            sink.send_all(&mut vec![text.clone().into(), Bytes::from_static(b"{}")]).await.unwrap();
            assert!(source.next().await.unwrap().unwrap() == text);
            assert_eq!(source.next().await.unwrap().unwrap(), "{}");
        }
        close_gracefully(&mut source, &mut sink, CloseReason::Done).await;
    };
    soon("the talk", async { tokio::join!(serving, asking) }).await;
}
