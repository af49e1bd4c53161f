//! A bad network for UDP clients: packets are lost, doubled and overtaken, with chances that are the
//! same in every run.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::SocketAddr,
    sync::Arc,
};

use tokio::net::UdpSocket;

use crate::abort_on_drop::AbortOnDrop;

/// The largest payload of UDP over IPv4.
const PACKET_BYTES: usize = 65_507;

/// Faults of packets, each in percent and in both directions.
#[derive(Debug, Clone, Copy)]
pub struct PacketFaults {
    pub lost: u32,
    pub duplicated: u32,
    /// Packets that are sent after the packet that follows them.
    pub reordered: u32,
}

/// A running proxy; gone when dropped.
#[derive(Debug)]
pub struct UdpProxy {
    address: SocketAddr,
    _task: AbortOnDrop,
}

impl UdpProxy {
    pub async fn start(target: SocketAddr, weather: PacketFaults) -> Self {
        let inside = Arc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a free port"));
        let address = inside.local_addr().expect("it is bound");
        let task = tokio::spawn(async move {
            let mut clients = HashMap::new();
            let mut packet = vec![0; PACKET_BYTES];
            while let Ok((count, from)) = inside.recv_from(&mut packet).await {
                let client = match clients.entry(from) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => {
                        new.insert(ClientPath::open(&inside, from, target, weather).await)
                    }
                };
                client.send(&packet[..count]).await;
            }
        });
        Self { address, _task: AbortOnDrop(task) }
    }

    /// Returns the address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The path of one client. It has its own socket towards the target, as behind a NAT: the answers to
/// one client must not reach another.
struct ClientPath {
    outside: Arc<UdpSocket>,
    up: LossyDirection,
    _answers: AbortOnDrop,
}

impl ClientPath {
    async fn open(
        inside: &Arc<UdpSocket>,
        client: SocketAddr,
        target: SocketAddr,
        weather: PacketFaults,
    ) -> Self {
        let outside = Arc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a free port"));
        outside.connect(target).await.expect("the target is an address");
        let (inside, answers) = (inside.clone(), outside.clone());
        let task = tokio::spawn(async move {
            let mut down = LossyDirection::new(weather, 2);
            let mut packet = vec![0; PACKET_BYTES];
            loop {
                // An error means that the target's port was closed when a packet came.
                let Ok(count) = answers.recv(&mut packet).await else { continue };
                for packet in down.carry(&packet[..count]) {
                    let _ = inside.send_to(&packet, client).await;
                }
            }
        });
        let up = LossyDirection::new(weather, 1);
        Self { outside, up, _answers: AbortOnDrop(task) }
    }

    async fn send(&mut self, packet: &[u8]) {
        for packet in self.up.carry(packet) {
            let _ = self.outside.send(&packet).await;
        }
    }
}

/// State of one direction.
struct LossyDirection {
    weather: PacketFaults,
    seed: u32,
    behind: Option<Vec<u8>>,
}

impl LossyDirection {
    fn new(weather: PacketFaults, seed: u32) -> Self {
        Self { weather, seed, behind: None }
    }

    fn chance(&mut self, of_a_hundred: u32) -> bool {
        self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.seed >> 16) % 100 < of_a_hundred
    }

    /// Returns the packets that leave when this packet comes.
    fn carry(&mut self, packet: &[u8]) -> Vec<Vec<u8>> {
        let mut leaving = Vec::new();
        if self.chance(self.weather.reordered) && self.behind.is_none() {
            self.behind = Some(packet.to_vec());
            return leaving;
        }
        if !self.chance(self.weather.lost) {
            leaving.push(packet.to_vec());
            if self.chance(self.weather.duplicated) {
                leaving.push(packet.to_vec());
            }
        }
        leaving.extend(self.behind.take());
        leaving
    }
}
