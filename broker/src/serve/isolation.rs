//! What other processes of the host cannot reach: ports for operators, and the memory of this process.

use tokio::net::TcpListener;

use super::listener_task::BoundSocket;
use crate::broker::Broker;

/// Forbids children to connect to the listeners for operators and replicas.
pub(super) fn close_ports_to_children(
    broker: &Broker,
    admin: &BoundSocket,
    internal: Option<&TcpListener>,
) {
    let internal = internal.and_then(|listener| listener.local_addr().ok());
    let ports = admin.address().into_iter().chain(internal).map(|address| address.port());
    broker.shared.confinement.deny_ports(ports.collect());
}

/// Hides memory, environment and descriptors of this process from other processes of its user, such
/// as children. Root still has access. Also disables core dumps.
pub(super) fn disable_process_inspection() {
    if let Err(error) =
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
    {
        tracing::warn!(%error, "other processes of this user can read the broker's memory");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn processes_of_the_same_user_cannot_inspect_the_broker() {
        use rustix::process::{DumpableBehavior, dumpable_behavior};
        super::disable_process_inspection();
        assert!(matches!(dumpable_behavior(), Ok(DumpableBehavior::NotDumpable)));
    }
}
