//! Sockets as channels of texts.

use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::mpsc,
};

/// Texts that wait in a test's client: enough for whatever a test asks at once.
const QUEUE: usize = 100_000;

/// Whole messages both ways. An `Err` is the end, and why.
#[derive(Debug)]
pub struct Wire {
    pub out: mpsc::Sender<String>,
    pub incoming: mpsc::Receiver<Result<String, String>>,
}

impl Wire {
    /// A message per line. The sending half is closed once nobody sends any more.
    pub fn lines(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self::halves(reader, writer)
    }

    pub fn halves(reader: impl AsyncRead + Unpin + Send + 'static, mut writer: impl AsyncWrite + Unpin + Send + 'static) -> Self {
        let (out, mut outgoing) = mpsc::channel::<String>(QUEUE);
        let (tell, incoming) = mpsc::channel(QUEUE);
        tokio::spawn(async move {
            while let Some(mut text) = outgoing.recv().await {
                text.push('\n');
                if writer.write_all(text.as_bytes()).await.is_err() || writer.flush().await.is_err() {
                    return;
                }
            }
            let _gone = writer.shutdown().await;
        });
        tokio::spawn(async move {
            let mut lines = BufReader::new(reader).lines();
            let why = loop {
                match lines.next_line().await {
                    Ok(Some(line)) => {
                        if tell.send(Ok(line)).await.is_err() {
                            return;
                        }
                    }
                    Ok(None) => break "the end".to_owned(),
                    Err(error) => break error.to_string(),
                }
            };
            let _gone = tell.send(Err(why)).await;
        });
        Self { out, incoming }
    }
}
