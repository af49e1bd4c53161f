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
/// Character that suspends a process at most terminals, Ctrl-Z.
const SUSPEND: char = '\u{1a}';

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
    let value = value_of(&read?.map_err(failed)?, is_secret);
    match value.is_empty() {
        true => Err(ClientError::Usage(format!("{question}: a value is needed"))),
        false => Ok(value),
    }
}

/// Returns the value in a typed line. Ctrl-Z at a hidden prompt has no effect.
fn value_of(line: &str, is_secret: bool) -> String {
    let typed = line.trim_end_matches(['\r', '\n']);
    if is_secret { typed.replace(SUSPEND, "") } else { typed.to_owned() }
}

/// Returns the prompt for a question. Its text may come from an untrusted document.
fn shown(question: &str) -> String {
    format!("{}: ", table::clean(question))
}

/// A terminal that does not show what is typed. Its keys also do not suspend the process, because
/// the shell would get a terminal that shows nothing.
struct Silence {
    /// Settings of the terminal before, as `stty` reads them.
    settings: String,
}

impl Silence {
    fn start() -> Result<Self, ClientError> {
        let refused = || {
            let text = "the terminal cannot hide a secret; give it with --input NAME from a variable of this shell";
            ClientError::Usage(text.to_owned())
        };
        let settings = stty(&["-g"]).ok_or_else(refused)?;
        end_at_signals(&settings).map_err(|_| refused())?;
        let silence = Self { settings };
        stty(&["-echo", "susp", "undef"]).map(|_| silence).ok_or_else(refused)
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        stty(&[&self.settings]);
    }
}

/// Makes signals of the terminal end the process after it has restored the settings. They keep
/// this effect until the process ends.
fn end_at_signals(settings: &str) -> io::Result<()> {
    // Not SIGTERM: in the background, where the terminal would stop this process, it must end it.
    for kind in [SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()] {
        let (mut arrived, settings) = (signal(kind)?, settings.to_owned());
        tokio::spawn(async move {
            arrived.recv().await;
            stty(&[&settings]);
            let _unseen = writeln!(io::stderr());
            std::process::exit(EXIT_SIGNAL + kind.as_raw_value());
        });
    }
    Ok(())
}

/// Reads or changes the settings of the terminal at the standard input. Returns what `stty` prints,
/// or `None` if it failed.
fn stty(arguments: &[&str]) -> Option<String> {
    let output = Command::new("stty").args(arguments).stdin(Stdio::inherit()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ctrl_z_is_no_part_of_a_secret() {
        assert_eq!(value_of("k-e\u{1a}-y\r\n", true), "k-e-y");
        assert_eq!(value_of("\u{1a}\n", true), "");
        assert_eq!(value_of(" north \n", false), " north ");
    }

    #[test]
    fn a_question_cannot_control_the_terminal() {
        assert_eq!(shown("API_KEY (secret)  needed"), "API_KEY (secret)  needed: ");
        let hostile = shown("KEY\u{1b}[2J\u{202e}\r\nTOKEN");
        assert_eq!(hostile, "KEY\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}TOKEN: ");
    }
}
