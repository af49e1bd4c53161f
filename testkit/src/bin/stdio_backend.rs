//! An MCP server on standard input and output, whose command line sets its good or bad behaviour.
//!
//! The broker starts it in tests (see `testkit::stdio`). It ends by itself after [`LIFE_MAX`], so
//! that a test that fails leaves no process behind.

#[path = "stdio_backend/hostile.rs"]
mod hostile;

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io::Write,
    process::{Command, ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

/// Longest life of a child, whatever it ignores.
const LIFE_MAX: Duration = Duration::from_secs(90);

#[derive(Default, Clone)]
struct Script {
    record: Option<String>,
    record_starts: Option<String>,
    grandchildren: usize,
    ignore_sigterm: bool,
    ignore_stdin_close: bool,
    banner: bool,
    noisy_stderr: bool,
    broken: bool,
    grandchild: bool,
    version: String,
    marker: Option<String>,
}

fn parse(arguments: impl Iterator<Item = String>) -> Script {
    let mut script = Script { version: "2025-11-25".to_owned(), ..Script::default() };
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_default();
        match argument.as_str() {
            "--record" => script.record = Some(value()),
            "--record-starts" => script.record_starts = Some(value()),
            "--grandchildren" => script.grandchildren = value().parse().unwrap_or(0),
            "--ignore-sigterm" => script.ignore_sigterm = true,
            "--ignore-stdin-close" => script.ignore_stdin_close = true,
            "--banner" => script.banner = true,
            "--noisy-stderr" => script.noisy_stderr = true,
            "--broken" => script.broken = true,
            "--grandchild" => script.grandchild = true,
            "--version" => script.version = value(),
            "--marker" => script.marker = Some(value()),
            other => {
                eprintln!("unknown argument {other}");
                std::process::exit(64);
            }
        }
    }
    script
}

fn main() -> ExitCode {
    let script = parse(std::env::args().skip(1));
    if script.broken {
        eprintln!("this backend is broken on purpose");
        return ExitCode::from(3);
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let _ignored = script
            .ignore_sigterm
            .then(|| signal(SignalKind::terminate()).expect("signals can be handled"));
        if script.grandchild {
            tokio::time::sleep(LIFE_MAX).await;
            return ExitCode::SUCCESS;
        }
        make_traffic_folder();
        start_grandchildren(&script);
        tokio::select! {
            () = serve(script) => {}
            () = tokio::time::sleep(LIFE_MAX) => {}
        }
        // A thread that cannot be stopped reads standard input.
        std::process::exit(0)
    })
}

fn start_grandchildren(script: &Script) {
    let Ok(me) = std::env::current_exe() else { return };
    for _ in 0..script.grandchildren {
        let mut command = Command::new(&me);
        command.args(["--grandchild", "--ignore-sigterm"]);
        if let Some(marker) = &script.marker {
            command.args(["--marker", marker]);
        }
        // Standard output and error stay those of the parent: the pipes remain open until this
        // child ends.
        let _ = command.stdin(Stdio::null()).spawn();
    }
}

struct Server {
    script: Script,
    pending_requests: Mutex<HashMap<String, oneshot::Sender<Value>>>,
    requests_sent: AtomicU64,
    extra_tool: AtomicBool,
    level: Mutex<String>,
}

async fn serve(script: Script) {
    if let Some(path) = &script.record_starts {
        append(path, format!("{}\n", std::process::id()).as_bytes());
    }
    if script.banner {
        write_line("*** welcome to the backend ***");
        write_line("[1, 2");
    }
    if script.noisy_stderr {
        eprintln!("ERROR: nothing is wrong, this is only said loudly");
    }
    let server = Arc::new(Server {
        script,
        pending_requests: Mutex::default(),
        requests_sent: AtomicU64::new(0),
        extra_tool: AtomicBool::new(false),
        level: Mutex::new("info".to_owned()),
    });
    let mut input = BufReader::new(tokio::io::stdin());
    let mut line = Vec::new();
    while let Ok(count) = input.read_until(b'\n', &mut line).await {
        if count == 0 {
            break;
        }
        record_traffic("< ", &line);
        if let Some(path) = &server.script.record {
            append(path, &line);
        }
        if let Ok(message) = serde_json::from_slice::<Value>(&line) {
            tokio::spawn(server.clone().handle(message));
        }
        line.clear();
    }
    if server.script.ignore_stdin_close {
        std::future::pending::<()>().await;
    }
}

fn append(path: &str, bytes: &[u8]) {
    let file: Option<File> = OpenOptions::new().create(true).append(true).open(path).ok();
    if let Some(mut file) = file {
        let _ = file.write_all(bytes);
    }
}

/// Makes the folder for [`record_traffic`] in the home of a child of a broker under test.
fn make_traffic_folder() {
    let is_home = std::env::current_dir()
        .ok()
        .filter(|folder| std::env::var_os("HOME").is_some_and(|home| folder.as_os_str() == home));
    if is_home.is_some_and(|home| home.to_string_lossy().contains("/mcp-broker-test-")) {
        let _there_already = std::fs::create_dir("traffic");
    }
}

/// Notes a line of either direction for the judge, if there is a folder for it.
fn record_traffic(direction: &str, line: &[u8]) {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    append(
        &format!("traffic/{}", std::process::id()),
        &[direction.as_bytes(), line, b"\n"].concat(),
    );
}

fn write_line(line: &str) {
    record_traffic("> ", line.as_bytes());
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(line.as_bytes());
    let _ = out.write_all(b"\n");
    let _ = out.flush();
}

fn send(message: Value) {
    write_line(&message.to_string());
}

fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

impl Server {
    async fn handle(self: Arc<Self>, message: Value) {
        let id = message.get("id").cloned();
        match (message["method"].as_str(), id) {
            (Some(method), Some(id)) => {
                if self.script.noisy_stderr {
                    eprintln!("ERROR: {method}");
                }
                let answer = self.answer(method, &message, &id).await;
                match answer {
                    Some(Ok(result)) => send(json!({"jsonrpc": "2.0", "id": id, "result": result})),
                    Some(Err(error)) => send(json!({"jsonrpc": "2.0", "id": id, "error": error})),
                    None => {}
                }
            }
            (None, Some(id)) => {
                let waiting = self.pending_requests.lock().remove(&id.to_string());
                if let Some(waiting) = waiting {
                    let _ = waiting.send(message);
                }
            }
            _ => {}
        }
    }

    async fn answer(
        &self,
        method: &str,
        message: &Value,
        id: &Value,
    ) -> Option<Result<Value, Value>> {
        let params = &message["params"];
        let result = match method {
            "initialize" => json!({
                "protocolVersion": self.script.version, "serverInfo": {"name": "stdio-backend", "version": "1"},
                "capabilities": {
                    "tools": {"listChanged": true}, "logging": {},
                    "resources": {"subscribe": true}, "prompts": {},
                },
            }),
            "ping" | "resources/subscribe" | "resources/unsubscribe" => json!({}),
            "logging/setLevel" => {
                *self.level.lock() = params["level"].as_str().unwrap_or("").to_owned();
                json!({})
            }
            "tools/list" => json!({"tools": self.tools()}),
            "resources/list" => json!({"resources": [{"uri": "test://one", "name": "one"}]}),
            "resources/templates/list" => json!({"resourceTemplates": []}),
            "prompts/list" => json!({"prompts": []}),
            "resources/read" => json!({"contents": [{"uri": params["uri"], "text": "one"}]}),
            "tools/call" => return self.call(params, id).await,
            other => {
                return Some(Err(json!({"code": -32601, "message": format!("no {other} here")})));
            }
        };
        Some(Ok(result))
    }

    fn tools(&self) -> Vec<Value> {
        let mut names = vec![
            "echo", "progress", "sample", "elicit", "late", "roots", "add_tool", "log", "exit",
            "hang", "twice", "stray", "garbage", "pid", "env", "touch",
        ];
        if self.extra_tool.load(Ordering::SeqCst) {
            names.push("extra");
        }
        names.into_iter().map(|name| json!({"name": name, "description": name, "inputSchema": {"type": "object"}})).collect()
    }

    async fn request(&self, method: &str, params: Value) -> Value {
        let (sender, answer) = oneshot::channel();
        let id = json!(self.requests_sent.fetch_add(1, Ordering::SeqCst));
        self.pending_requests.lock().insert(id.to_string(), sender);
        send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        answer.await.unwrap_or(Value::Null)
    }

    async fn call(&self, params: &Value, id: &Value) -> Option<Result<Value, Value>> {
        let arguments = &params["arguments"];
        let name = params["name"].as_str().unwrap_or("");
        if let Some(hostile) =
            hostile::call(name, arguments, id, &params["_meta"]["progressToken"]).await
        {
            return hostile.map(Ok);
        }
        let result = match params["name"].as_str().unwrap_or("") {
            "echo" => text(&arguments.to_string()),
            "progress" => {
                let token = &params["_meta"]["progressToken"];
                for step in 1..=3 {
                    let params = json!({"progressToken": token, "progress": step, "total": 3});
                    send(
                        json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}),
                    );
                }
                text("done")
            }
            "sample" => {
                let messages = json!([{"role": "user", "content": {"type": "text", "text": arguments["prompt"]}}]);
                text(
                    &self
                        .request(
                            "sampling/createMessage",
                            json!({"messages": messages, "maxTokens": 10}),
                        )
                        .await
                        .to_string(),
                )
            }
            "elicit" => {
                let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
                let params = json!({"message": arguments["message"], "requestedSchema": schema});
                text(&self.request("elicitation/create", params).await.to_string())
            }
            // Sends the request after a while, whatever became of the call meanwhile.
            "late" => {
                let progress =
                    json!({"progressToken": params["_meta"]["progressToken"], "progress": 1});
                send(
                    json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}),
                );
                tokio::time::sleep(std::time::Duration::from_millis(
                    arguments["pauseMs"].as_u64().unwrap_or(0),
                ))
                .await;
                let schema = json!({"type": "object", "properties": {}});
                let question = json!({"message": arguments["message"], "requestedSchema": schema});
                text(&self.request("elicitation/create", question).await.to_string())
            }
            "roots" => text(&self.request("roots/list", json!({})).await.to_string()),
            "add_tool" => {
                self.extra_tool.store(true, Ordering::SeqCst);
                send(json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}));
                text("added")
            }
            "log" => {
                let level = arguments["level"].as_str().unwrap_or("info");
                let params = json!({"level": level, "data": arguments["data"]});
                send(
                    json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params}),
                );
                text("logged")
            }
            "touch" => {
                send(
                    json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "test://one"}}),
                );
                text("touched")
            }
            "exit" => std::process::exit(7),
            "hang" => return None,
            "twice" => {
                send(json!({"jsonrpc": "2.0", "id": id, "result": text("first")}));
                text("second")
            }
            "stray" => {
                send(json!({"jsonrpc": "2.0", "id": 987_654_321, "result": text("stray")}));
                text("mine")
            }
            "garbage" => {
                write_line("this is not JSON");
                write_line("{\"jsonrpc\":\"2.0\",\"id\":");
                text("after the noise")
            }
            "pid" => text(&std::process::id().to_string()),
            "env" => text(&json!(std::env::vars().collect::<HashMap<_, _>>()).to_string()),
            "extra" => text("extra"),
            other => {
                return Some(Err(json!({"code": -32602, "message": format!("no tool {other}")})));
            }
        };
        Some(Ok(result))
    }
}
