//! A bad network for one UDP client: packets are lost, doubled and overtaken, with chances that are
//! the same in every run.

use std::net::SocketAddr;

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
        let inside = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let outside = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        outside.connect(target).await.expect("the target is an address");
        let address = inside.local_addr().expect("it is bound");
        let task = tokio::spawn(async move {
            let (mut up, mut down) =
                (LossyDirection::new(weather, 1), LossyDirection::new(weather, 2));
            let mut client = None;
            let (mut from_client, mut from_target) = (vec![0; PACKET_BYTES], vec![0; PACKET_BYTES]);
            loop {
                tokio::select! {
                    Ok((count, from)) = inside.recv_from(&mut from_client) => {
                        client = Some(from);
                        for packet in up.carry(&from_client[..count]) {
                            let _ = outside.send(&packet).await;
                        }
                    }
                    Ok(count) = outside.recv(&mut from_target) => {
                        let Some(client) = client else { continue };
                        for packet in down.carry(&from_target[..count]) {
                            let _ = inside.send_to(&packet, client).await;
                        }
                    }
                    else => return,
                }
            }
        });
        Self { address, _task: AbortOnDrop(task) }
    }

    /// Returns the address that the client connects to.
    pub fn address(&self) -> SocketAddr {
        self.address
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
