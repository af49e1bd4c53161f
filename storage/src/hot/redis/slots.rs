//! Hash slots of Redis Cluster: which slot a key has, and which node serves a slot.

use std::collections::BTreeMap;

use redis::Value;

const SLOTS: u16 = 16_384;

/// Host and port.
pub(super) type NodeAddress = (String, u16);

/// Returns the slot of a key, by its hash tag if it has one.
pub(super) fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let hashed = tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16(hashed.as_bytes()) % SLOTS
}

/// CRC-16/XMODEM, as the specification of Redis Cluster requires.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, byte| {
        (0..8).fold(sum ^ u16::from(*byte) << 8, |sum: u16, _| {
            if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ 0x1021 }
        })
    })
}

/// The nodes of a cluster, as one of them lists them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SlotMap {
    /// By the first slot of a range: its last slot and its master.
    ranges: BTreeMap<u16, (u16, NodeAddress)>,
    masters: Vec<NodeAddress>,
    /// All nodes, with the masters.
    nodes: Vec<NodeAddress>,
}

impl SlotMap {
    /// Reads an answer to `CLUSTER SLOTS` of this node. Returns `None` if it names no master.
    pub(super) fn read(answer: &Value, responder: &NodeAddress) -> Option<Self> {
        let Value::Array(ranges) = answer else { return None };
        let mut map = Self::default();
        for range in ranges {
            let Value::Array(parts) = range else { return None };
            let [Value::Int(first), Value::Int(last), nodes @ ..] = parts.as_slice() else {
                return None;
            };
            let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
            for (index, node) in nodes.iter().enumerate() {
                let Some(node) = read_node(node, responder) else { continue };
                if index == 0 {
                    map.ranges.insert(first, (last, node.clone()));
                    add(&mut map.masters, &node);
                }
                add(&mut map.nodes, &node);
            }
        }
        (!map.masters.is_empty()).then_some(map)
    }

    pub(super) fn master(&self, slot: u16) -> Option<&NodeAddress> {
        let (_, (last, node)) = self.ranges.range(..=slot).next_back()?;
        (slot <= *last).then_some(node)
    }

    pub(super) fn masters(&self) -> &[NodeAddress] {
        &self.masters
    }

    pub(super) fn nodes(&self) -> &[NodeAddress] {
        &self.nodes
    }
}

fn add(nodes: &mut Vec<NodeAddress>, node: &NodeAddress) {
    if !nodes.contains(node) {
        nodes.push(node.clone());
    }
}

/// Reads one node. A node that does not know its own host leaves it out.
fn read_node(node: &Value, responder: &NodeAddress) -> Option<NodeAddress> {
    let Value::Array(parts) = node else { return None };
    let [host, Value::Int(port), ..] = parts.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        Value::Nil => "",
        _ => return None,
    };
    node_address(host, u16::try_from(*port).ok()?, responder)
}

/// Reads the node of a redirection: `HOST:PORT`.
pub(super) fn redirected(to: &str, responder: &NodeAddress) -> Option<NodeAddress> {
    let (host, port) = to.rsplit_once(':')?;
    node_address(host, port.parse().ok()?, responder)
}

fn node_address(host: &str, port: u16, responder: &NodeAddress) -> Option<NodeAddress> {
    match host {
        "?" => None,
        "" => Some((responder.0.clone(), port)),
        host => Some((host.to_owned(), port)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, port: u16) -> NodeAddress {
        (host.to_owned(), port)
    }

    #[test]
    fn keys_have_the_slots_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot("foo"), 12_182);
        assert_eq!(slot("{user1000}.following"), slot("{user1000}.followers"));
        assert_eq!(slot("foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot("foo{{bar}}zap"), crc16(b"{bar") % SLOTS);
        assert_eq!(slot("foo{bar}{zap}"), slot("bar"));
    }

    #[test]
    fn an_answer_names_the_masters_and_all_nodes() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let server = |host: Value, port: i64| {
            Value::Array(vec![host, Value::Int(port), text("id"), Value::Array(vec![])])
        };
        let range = |first: i64, last: i64, nodes: Vec<Value>| {
            Value::Array([vec![Value::Int(first), Value::Int(last)], nodes].concat())
        };
        let answer = Value::Array(vec![
            range(0, 99, vec![server(text("a"), 1), server(text("b"), 2)]),
            range(200, 299, vec![server(text(""), 3), server(text("?"), 9)]),
            range(300, 300, vec![server(Value::Nil, 4)]),
            range(400, 500, vec![server(text("a"), 1)]),
        ]);
        let map = SlotMap::read(&answer, &node("asked", 7)).unwrap();
        let masters = [0, 99, 100, 200, 300, 301, 450, 16_383].map(|slot| map.master(slot));
        let [a, third, fourth] = [node("a", 1), node("asked", 3), node("asked", 4)];
        assert_eq!(
            masters,
            [Some(&a), Some(&a), None, Some(&third), Some(&fourth), None, Some(&a), None]
        );
        assert_eq!(map.masters(), [a.clone(), third.clone(), fourth.clone()]);
        assert_eq!(map.nodes(), [a, node("b", 2), third, fourth]);
        for odd in [Value::Nil, Value::Array(vec![]), Value::Array(vec![Value::Int(1)])] {
            assert_eq!(SlotMap::read(&odd, &node("asked", 7)), None);
        }
        assert_eq!(redirected("b:7", &node("a", 1)), Some(node("b", 7)));
        assert_eq!(redirected(":7", &node("a", 1)), Some(node("a", 7)));
        assert_eq!(redirected("fd00::1:7", &node("a", 1)), Some(node("fd00::1", 7)));
        assert_eq!(
            (redirected("?:7", &node("a", 1)), redirected("b", &node("a", 1))),
            (None, None)
        );
    }
}
