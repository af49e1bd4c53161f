//! Checks a backend's transport: the rules that its types do not express.

use std::{collections::BTreeMap, path::Path};

use super::{
    field_error::{FieldError, element, join},
    spec::{TcpTls, as_http_url, is_server_name, split_host_port},
    stdio,
    transport_spec::TransportSpec,
};

/// Largest number of arguments, and of environment variables, of one child process.
const PROCESS_TEXTS_MAX: usize = 256;
/// Largest argument, and largest name or value of an environment variable, in bytes.
const PROCESS_TEXT_BYTES_MAX: usize = 32 * 1024;

const HTTP_ALLOWED: &str = "an absolute http:// or https:// URL without user name and fragment";
const WEBSOCKET_ALLOWED: &str = "an absolute ws:// or wss:// URL without user name and fragment";
const SERVER_NAME_ALLOWED: &str = "a host name or an IP address";
const ADDRESS_ALLOWED: &str = "HOST:PORT, such as tools.internal:7000 or [fd00::5]:7000";
const PROCESS_TEXT_ALLOWED: &str = "text of at most 32KiB without NUL";

pub(super) fn check(transport: &TransportSpec, faults: &mut Vec<FieldError>) {
    let mut check = TransportCheck { faults };
    match transport {
        TransportSpec::Http { url } | TransportSpec::Sse { url } => check.http_url(url),
        TransportSpec::Websocket { url } => check.websocket_url(url),
        TransportSpec::Tcp { address, tls } => {
            check.address(address);
            let server_name =
                tls.as_ref().and_then(TcpTls::settings).and_then(|settings| settings.server_name);
            check.server_name("transport.tls.server_name", server_name.as_deref());
        }
        TransportSpec::Quic { address, server_name, .. } => {
            check.address(address);
            check.server_name("transport.server_name", server_name.as_deref());
        }
        TransportSpec::Stdio { command, args, env, cwd, limits } => {
            stdio::check_limits(limits, check.faults);
            check.command(command);
            check.arguments(args);
            check.environment(env);
            check.working_directory(cwd.as_deref());
        }
    }
}

/// Collects the faults of one transport.
struct TransportCheck<'a> {
    faults: &'a mut Vec<FieldError>,
}

impl TransportCheck<'_> {
    fn fault(&mut self, path: impl Into<String>, wrong: &str, allowed: &str) {
        self.faults.push(FieldError::new(path, wrong, allowed));
    }

    fn http_url(&mut self, url: &str) {
        if let Err(error) = ::transport::parse_http_url(url) {
            let wrong = format!("is not a usable URL: {error}");
            self.fault("transport.url", &wrong, HTTP_ALLOWED);
        }
    }

    fn websocket_url(&mut self, url: &str) {
        let wrong = match as_http_url(url).as_deref().map(::transport::parse_http_url) {
            Some(Ok(_)) => return,
            Some(Err(error)) => format!("is not a usable URL: {error}"),
            None => "is not the URL of a WebSocket".to_owned(),
        };
        self.fault("transport.url", &wrong, WEBSOCKET_ALLOWED);
    }

    fn address(&mut self, address: &str) {
        if split_host_port(address).is_none() {
            self.fault("transport.address", "is not a host and port", ADDRESS_ALLOWED);
        }
    }

    fn server_name(&mut self, path: &str, name: Option<&str>) {
        if name.is_some_and(|name| !is_server_name(name)) {
            self.fault(path, "is not the name of a server", SERVER_NAME_ALLOWED);
        }
    }

    fn command(&mut self, command: &str) {
        if !is_process_text(command) || command.trim().is_empty() {
            let wrong = "is empty, too long or holds a NUL";
            self.fault("transport.command", wrong, "the name or path of a program");
        }
    }

    fn arguments(&mut self, arguments: &[String]) {
        self.number_of_texts("transport.args", arguments.len());
        for (index, _) in arguments.iter().enumerate().filter(|(_, text)| !is_process_text(text)) {
            let path = element("transport.args", index);
            self.fault(path, "is too long or holds a NUL", PROCESS_TEXT_ALLOWED);
        }
    }

    fn environment(&mut self, variables: &BTreeMap<String, String>) {
        self.number_of_texts("transport.env", variables.len());
        for (name, value) in variables {
            if name.is_empty() || name.contains('=') || !is_process_text(name) {
                let wrong = "has a name that is empty, too long or holds = or NUL";
                self.fault("transport.env", wrong, "names such as LOG_LEVEL");
            } else if !is_process_text(value) {
                let path = join("transport.env", name);
                self.fault(path, "is too long or holds a NUL", PROCESS_TEXT_ALLOWED);
            }
        }
    }

    fn number_of_texts(&mut self, path: &str, number: usize) {
        if number > PROCESS_TEXTS_MAX {
            let allowed = format!("at most {PROCESS_TEXTS_MAX}");
            self.fault(path, "has too many entries", &allowed);
        }
    }

    fn working_directory(&mut self, folder: Option<&str>) {
        if folder.is_some_and(|folder| !is_process_text(folder) || !Path::new(folder).is_absolute())
        {
            let allowed = "an absolute path, such as /srv/tools";
            self.fault("transport.cwd", "is not an absolute path", allowed);
        }
    }
}

fn is_process_text(text: &str) -> bool {
    text.len() <= PROCESS_TEXT_BYTES_MAX && !text.contains('\0')
}
