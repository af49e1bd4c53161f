//! Questions to the person at the terminal.

use std::{
    io::{self, BufRead as _, IsTerminal as _, Write as _},
    process::{Command, Stdio},
};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

use super::{client::ClientError, table};

/// Exit code of a process that a signal ended, without the number of the signal.
const EXIT_SIGNAL: i32 = 128;

/// Returns whether a person can answer a prompt.
pub(super) fn is_possible() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Prompts for a value on the terminal. A secret is not shown while it is typed.
pub(super) async fn read_value(question: &str, is_secret: bool) -> Result<String, ClientError> {
    let silence = is_secret.then(Silence::start).transpose()?;
    let failed = |error: io::Error| ClientError::Usage(format!("the terminal: {error}"));
    let mut terminal = io::stderr();
    write!(terminal, "{}", shown(question)).and_then(|()| terminal.flush()).map_err(failed)?;
    // A thread reads, so that the event loop sees a signal meanwhile.
    let (sender, read) = oneshot::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _unheard = sender.send(io::stdin().lock().read_line(&mut line).map(|_| line));
    });
    let read = read.await.map_err(|_| ClientError::Internal("the terminal is not read".to_owned()));
    if silence.is_some() {
        let _unseen = writeln!(terminal); // the line end was not shown either
    }
    let line = read?.map_err(failed)?;
    let value = line.trim_end_matches(['\r', '\n']);
    match value.is_empty() {
        true => Err(ClientError::Usage(format!("{question}: a value is needed"))),
        false => Ok(value.to_owned()),
    }
}

/// Returns the prompt for a question. Its text may come from an untrusted document.
fn shown(question: &str) -> String {
    format!("{}: ", table::clean(question))
}

/// A terminal that does not show what is typed.
struct Silence;

impl Silence {
    fn start() -> Result<Self, ClientError> {
        match end_at_signals().is_ok() && set_echo("-echo") {
            true => Ok(Self),
            false => {
                let text = "the terminal cannot hide a secret; give it with --input NAME from a variable of this shell";
                Err(ClientError::Usage(text.to_owned()))
            }
        }
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        set_echo("echo");
    }
}

/// Makes signals of the terminal end the process after it has set the echo again. They keep this
/// effect until the process ends.
fn end_at_signals() -> io::Result<()> {
    // Not SIGTERM: in the background, where the terminal would stop this process, it must end it.
    for kind in [SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()] {
        let mut arrived = signal(kind)?;
        tokio::spawn(async move {
            arrived.recv().await;
            set_echo("echo");
            let _unseen = writeln!(io::stderr());
            std::process::exit(EXIT_SIGNAL + kind.as_raw_value());
        });
    }
    Ok(())
}

/// Sets the echo of the terminal at the standard input. Returns whether it did.
fn set_echo(mode: &str) -> bool {
    let mut stty = Command::new("stty");
    stty.arg(mode).stdin(Stdio::inherit()).stdout(Stdio::null()).stderr(Stdio::null());
    stty.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_cannot_control_the_terminal() {
        assert_eq!(shown("API_KEY (secret)  needed"), "API_KEY (secret)  needed: ");
        let hostile = shown("KEY\u{1b}[2J\u{202e}\r\nTOKEN");
        assert_eq!(hostile, "KEY\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}TOKEN: ");
    }
}
