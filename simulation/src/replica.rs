//! One replica: the real broker in a runtime of its own. Each life of it begins on the same
//! configuration file.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use broker::{
    control::{Author, NewKey},
    persistence::Stores,
    serve::EmbeddedBroker,
};
use protocol::ids::TenantId;
use serde_json::json;
use tokio::sync::watch;

use crate::{
    network::at,
    redis::SimulatedRedis,
    scheduler::Machine,
    store::{Engine, SimulatedStore},
    strangers::{HIDDEN_FROM, HIDDEN_TOOL},
    weather::Weather,
};

/// Port of the door to the backend.
pub(crate) const BACKEND_DOOR: u16 = 9_000;
/// Secret of all replicas. It protects nothing.
const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// What all replicas share.
#[derive(Clone)]
pub(crate) struct SharedServers {
    pub(crate) machine: Machine,
    pub(crate) engine: Arc<Engine>,
    pub(crate) redis: Arc<SimulatedRedis>,
    pub(crate) weather: Weather,
}

/// State of the current life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Life {
    Starting,
    Serving,
    /// It ended by itself. With the error, if it was none that was asked for.
    Ended(Option<String>),
}

pub(crate) struct SimulatedReplica {
    number: u16,
    config: PathBuf,
    servers: SharedServers,
    life: watch::Sender<Life>,
    /// Increased to request a drain.
    drains: watch::Sender<u64>,
}

impl SimulatedReplica {
    /// Creates the replica without a life. Numbers begin at 1.
    pub(crate) fn new(
        number: u16,
        folder: &Path,
        lease: &str,
        servers: &SharedServers,
    ) -> io::Result<Self> {
        let door = format!("http://{}/mcp", at(BACKEND_DOOR));
        let policy = json!({"rules": [{
            "id": "hidden",
            "effect": "deny",
            "subjects": {"principals": [HIDDEN_FROM]},
            "objects": {"tools": [format!("b/{HIDDEN_TOOL}")]},
        }]});
        let config = json!({
            "listen": {
                "http": at(8_000 + number).to_string(),
                "admin": at(8_100 + number).to_string(),
                "internal": at(8_200 + number).to_string(),
            },
            "node": {"id": format!("r{number}"), "secret": SECRET, "advertise": at(Self::peer_door_of(number)).to_string()},
            "storage": {"url": "postgres://simulated@127.0.0.1/simulated"},
            "session": {"lease": lease},
            "auth": {"required": true},
            "egress": {"allow": ["127.0.0.0/8"]},
            "stdio": {"sandbox": "off"},
            "overload": {"queue_delay": "0s"},
            "limits": {"sessions_per_principal": 10_000, "sessions_per_tenant": 10_000, "connections_per_address": 10_000},
            "tasks": {"running_per_tenant": 10_000, "stored_per_tenant": 100_000, "poll_interval": "100ms", "promote_after": "500ms"},
            "shutdown": {"grace": "20s"},
            "tenants": {"default": {"policy": policy}},
            "backends": {"b": {"transport": {"type": "http", "url": door}}},
        });
        let path = folder.join(format!("r{number}.yaml"));
        fs::write(&path, config.to_string())?;
        Ok(Self {
            number,
            config: path,
            servers: servers.clone(),
            life: watch::Sender::new(Life::Ended(None)),
            drains: watch::Sender::new(0),
        })
    }

    /// Returns the port of the door through which other replicas reach it.
    pub(crate) const fn peer_door_of(number: u16) -> u16 {
        9_200 + number
    }

    pub(crate) const fn peer_door(&self) -> u16 {
        Self::peer_door_of(self.number)
    }

    pub(crate) const fn http_port(&self) -> u16 {
        8_000 + self.number
    }

    pub(crate) const fn internal_port(&self) -> u16 {
        8_200 + self.number
    }

    /// Returns its index among the runtimes.
    pub(crate) fn machine_index(&self) -> usize {
        self.number.into()
    }

    /// Begins a life. `keys`: principals that get a key first.
    pub(crate) fn start(&self, keys: Vec<String>) -> watch::Receiver<Vec<String>> {
        let (sender, receiver) = watch::channel(Vec::new());
        let (config, servers, life) =
            (self.config.clone(), self.servers.clone(), self.life.clone());
        let drains = self.drains.subscribe();
        life.send_replace(Life::Starting);
        self.servers.machine.start(self.machine_index(), move || async move {
            let ended = live(config, servers, life.clone(), drains, keys, sender).await;
            life.send_replace(Life::Ended(ended.err()));
        });
        receiver
    }

    /// Requests its end in good order.
    pub(crate) fn drain(&self) {
        self.drains.send_modify(|count| *count += 1);
    }

    /// Notes that the life was ended from outside.
    pub(crate) fn record_killed(&self) {
        self.life.send_replace(Life::Ended(None));
    }

    /// Waits until it is in another life than these.
    pub(crate) async fn wait_until_not(&self, states: &[Life]) -> Life {
        let mut seen = self.life.subscribe();
        let next = seen.wait_for(|life| !states.contains(life)).await;
        next.map_or(Life::Ended(None), |life| life.clone())
    }
}

async fn live(
    config: PathBuf,
    servers: SharedServers,
    life: watch::Sender<Life>,
    mut drains: watch::Receiver<u64>,
    keys: Vec<String>,
    sender: watch::Sender<Vec<String>>,
) -> Result<(), String> {
    let store = SimulatedStore::new(&servers.engine, &servers.weather);
    let stores = Stores { durable: store.clone(), events: Some(store), hot: servers.redis.clone() };
    let broker = EmbeddedBroker::start(config, stores).await.map_err(|error| error.to_string())?;
    let control = broker.control();
    let mut texts = Vec::new();
    for principal in keys {
        let wanted = NewKey { principal: Some(principal), ..NewKey::default() };
        let tenant = TenantId::parse("default").map_err(|error| error.to_string())?;
        let made = control.create_key(tenant, wanted, Author::default()).await;
        texts.push(made.map_err(|error| error.to_string())?.key);
    }
    let running = Arc::clone(&control.broker);
    tokio::spawn(async move {
        if drains.changed().await.is_ok() {
            running.drain();
        }
    });
    sender.send_replace(texts);
    life.send_replace(Life::Serving);
    broker.run().await.map_err(|error| error.to_string())
}
