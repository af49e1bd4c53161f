//! Sockets of the simulated thread. A TCP socket over IPv4 is a Unix socket below: the kernel
//! delivers its bytes at once and in order, no port of the machine is taken, and no other process
//! can reach it.
//!
//! A listener has the abstract name of its port. A socket that connects gets a name too, which is
//! the address that the accepting side sees. Names contain the number of the process.

use std::{
    cell::{Cell, RefCell},
    ffi::{c_int, c_void},
    mem::offset_of,
    ptr,
};

use super::is_simulated;

/// Descriptors that can be sockets.
const DESCRIPTORS_MAX: usize = 16_384;
/// Port of the first socket that chooses none.
const FIRST_FREE_PORT: u16 = 20_000;
const NAME_AT: usize = offset_of!(libc::sockaddr_un, sun_path);

#[derive(Debug, Clone, Copy, Default)]
struct SimulatedSocket {
    is_one: bool,
    owner: usize,
    local: u16,
    peer: u16,
    is_listener: bool,
}

thread_local! {
    static SOCKETS: RefCell<Vec<SimulatedSocket>> = const { RefCell::new(Vec::new()) };
    static OWNER: Cell<usize> = const { Cell::new(0) };
    static NEXT_PORT: Cell<u16> = const { Cell::new(FIRST_FREE_PORT) };
}

/// Sets who owns the sockets that are made from now on.
pub(crate) fn set_owner(owner: usize) {
    OWNER.set(owner);
}

/// Closes every socket of this owner, as the kernel does when a process dies.
pub(crate) fn close_sockets_of(owner: usize) {
    let mut ports = Vec::new();
    for descriptor in 0..DESCRIPTORS_MAX {
        let socket = socket_of(descriptor as c_int).filter(|socket| socket.owner == owner);
        let Some(socket) = socket else { continue };
        ports.extend(socket.is_listener.then_some(socket.local));
        // SAFETY: the runtime that has the descriptor never runs again.
        unsafe { close(descriptor as c_int) };
    }
    // A listener may have a second descriptor.
    for descriptor in 3..DESCRIPTORS_MAX as c_int {
        let mut address = empty_address();
        let mut length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        // SAFETY: a valid address of this length.
        let named = unsafe {
            libc::syscall(libc::SYS_getsockname, descriptor, &raw mut address, &raw mut length)
        };
        if named == 0 && port_of(&address, length).is_some_and(|port| ports.contains(&port)) {
            // SAFETY: as above.
            unsafe { close(descriptor) };
        }
        // SAFETY: reads the error of this thread.
        if named != 0 && descriptor > 1_024 && unsafe { *libc::__errno_location() } == libc::EBADF {
            break;
        }
    }
}

fn socket_of(descriptor: c_int) -> Option<SimulatedSocket> {
    let at = usize::try_from(descriptor).ok().filter(|_| is_simulated())?;
    SOCKETS.with_borrow(|sockets| sockets.get(at).copied()).filter(|socket| socket.is_one)
}

fn record(descriptor: c_int, socket: SimulatedSocket) {
    let Ok(at) = usize::try_from(descriptor) else { return };
    SOCKETS.with_borrow_mut(|sockets| {
        if sockets.len() <= at {
            sockets.resize(at + 1, SimulatedSocket::default());
        }
        sockets[at] = socket;
    });
}

fn free_port() -> u16 {
    let port = NEXT_PORT.get();
    NEXT_PORT.set(port.checked_add(1).unwrap_or(FIRST_FREE_PORT));
    port
}

fn fail(error: c_int) -> c_int {
    // SAFETY: writes the error of this thread.
    unsafe { *libc::__errno_location() = error };
    -1
}

const fn empty_address() -> libc::sockaddr_un {
    libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] }
}

/// Returns the address of a port, and its length.
fn address_of(port: u16) -> (libc::sockaddr_un, libc::socklen_t) {
    // An abstract name begins with a zero byte.
    let name = format!("\0mcp-simulation-{}-{port:05}", std::process::id());
    let mut address = empty_address();
    for (to, from) in address.sun_path.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    (address, (NAME_AT + name.len()) as libc::socklen_t)
}

fn port_of(address: &libc::sockaddr_un, length: libc::socklen_t) -> Option<u16> {
    let length = (length as usize).checked_sub(NAME_AT)?;
    if address.sun_family != libc::AF_UNIX as libc::sa_family_t || address.sun_path[0] != 0 {
        return None;
    }
    let digits = address.sun_path.get(length.checked_sub(5)?..length)?;
    let digits: Vec<u8> = digits.iter().map(|digit| *digit as u8).collect();
    std::str::from_utf8(&digits).ok()?.parse().ok()
}

unsafe fn write_address(out: *mut libc::sockaddr, length: *mut libc::socklen_t, port: u16) {
    if out.is_null() || length.is_null() {
        return;
    }
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    };
    // SAFETY: the caller passes space for an address of this length, as for the C function.
    unsafe {
        let size = (*length as usize).min(size_of::<libc::sockaddr_in>());
        ptr::copy_nonoverlapping((&raw const address).cast::<u8>(), out.cast::<u8>(), size);
        *length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    }
}

unsafe fn read_port(address: *const libc::sockaddr) -> u16 {
    // SAFETY: the socket is one of IPv4, so the caller passes such an address.
    unsafe { u16::from_be((*address.cast::<libc::sockaddr_in>()).sin_port) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let is_tcp = domain == libc::AF_INET && kind & 0xf == libc::SOCK_STREAM && is_simulated();
    let (domain, protocol) = if is_tcp { (libc::AF_UNIX, 0) } else { (domain, protocol) };
    // SAFETY: no pointers.
    let made = unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) as c_int };
    if made >= 0 && is_simulated() {
        record(made, SimulatedSocket { is_one: is_tcp, owner: OWNER.get(), ..Default::default() });
    }
    made
}

/// Forgets the socket, because the next descriptor of this number may be something else.
#[unsafe(no_mangle)]
unsafe extern "C" fn close(descriptor: c_int) -> c_int {
    if socket_of(descriptor).is_some() {
        record(descriptor, SimulatedSocket::default());
    }
    // SAFETY: the same argument for the same function of the kernel.
    unsafe { libc::syscall(libc::SYS_close, descriptor) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bind(
    descriptor: c_int,
    address: *const libc::sockaddr,
    length: libc::socklen_t,
) -> c_int {
    let Some(socket) = socket_of(descriptor) else {
        // SAFETY: the same arguments for the same function of the kernel.
        return unsafe { libc::syscall(libc::SYS_bind, descriptor, address, length) as c_int };
    };
    // SAFETY: as of the C function.
    let wanted = unsafe { read_port(address) };
    let port = if wanted == 0 { free_port() } else { wanted };
    let (address, length) = address_of(port);
    record(descriptor, SimulatedSocket { local: port, is_listener: true, ..socket });
    // SAFETY: a valid address of this length.
    unsafe { libc::syscall(libc::SYS_bind, descriptor, &raw const address, length) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn connect(
    descriptor: c_int,
    address: *const libc::sockaddr,
    length: libc::socklen_t,
) -> c_int {
    let Some(socket) = socket_of(descriptor) else {
        // SAFETY: the same arguments for the same function of the kernel.
        return unsafe { libc::syscall(libc::SYS_connect, descriptor, address, length) as c_int };
    };
    // SAFETY: as of the C function.
    let peer = unsafe { read_port(address) };
    let local = free_port();
    record(descriptor, SimulatedSocket { local, peer, ..socket });
    let (name, name_length) = address_of(local);
    let (address, length) = address_of(peer);
    // SAFETY: valid addresses of these lengths.
    let connected = unsafe {
        libc::syscall(libc::SYS_bind, descriptor, &raw const name, name_length);
        libc::syscall(libc::SYS_connect, descriptor, &raw const address, length)
    };
    if connected == 0 {
        return 0;
    }
    // SAFETY: reads the error of this thread.
    match unsafe { *libc::__errno_location() } {
        // The queue of the listener is full.
        libc::EAGAIN => fail(libc::ETIMEDOUT),
        error => fail(error),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept4(
    descriptor: c_int,
    address: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
    flags: c_int,
) -> c_int {
    let Some(listener) = socket_of(descriptor) else {
        // SAFETY: the same arguments for the same function of the kernel.
        return unsafe {
            libc::syscall(libc::SYS_accept4, descriptor, address, length, flags) as c_int
        };
    };
    let mut from = empty_address();
    let mut from_length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: a valid address of this length.
    let accepted = unsafe {
        libc::syscall(libc::SYS_accept4, descriptor, &raw mut from, &raw mut from_length, flags)
            as c_int
    };
    if accepted >= 0 {
        let peer = port_of(&from, from_length).unwrap_or(1);
        let socket = SimulatedSocket {
            is_one: true,
            owner: OWNER.get(),
            local: listener.local,
            peer,
            is_listener: false,
        };
        record(accepted, socket);
        // SAFETY: as of the C function.
        unsafe { write_address(address, length, peer) };
    }
    accepted
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getsockname(
    descriptor: c_int,
    address: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
) -> c_int {
    match socket_of(descriptor) {
        Some(socket) => {
            // SAFETY: as of the C function.
            unsafe { write_address(address, length, socket.local) };
            0
        }
        // SAFETY: the same arguments for the same function of the kernel.
        None => unsafe {
            libc::syscall(libc::SYS_getsockname, descriptor, address, length) as c_int
        },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getpeername(
    descriptor: c_int,
    address: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
) -> c_int {
    match socket_of(descriptor) {
        Some(socket) if socket.peer != 0 => {
            // SAFETY: as of the C function.
            unsafe { write_address(address, length, socket.peer) };
            0
        }
        Some(_) => fail(libc::ENOTCONN),
        // SAFETY: the same arguments for the same function of the kernel.
        None => unsafe {
            libc::syscall(libc::SYS_getpeername, descriptor, address, length) as c_int
        },
    }
}

/// Options of TCP, of the port and of filters have no meaning here.
const fn is_ignored(level: c_int, option: c_int) -> bool {
    level != libc::SOL_SOCKET
        || matches!(
            option,
            libc::SO_REUSEADDR | libc::SO_REUSEPORT | libc::SO_ATTACH_FILTER | libc::SO_KEEPALIVE
        )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn setsockopt(
    descriptor: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: libc::socklen_t,
) -> c_int {
    if socket_of(descriptor).is_some() && is_ignored(level, option) {
        return 0;
    }
    // SAFETY: the same arguments for the same function of the kernel.
    unsafe {
        libc::syscall(libc::SYS_setsockopt, descriptor, level, option, value, length) as c_int
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getsockopt(
    descriptor: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: *mut libc::socklen_t,
) -> c_int {
    if socket_of(descriptor).is_some() && is_ignored(level, option) {
        // SAFETY: the caller passes space for so many bytes, as for the C function.
        unsafe { ptr::write_bytes(value.cast::<u8>(), 0, *length as usize) };
        return 0;
    }
    // SAFETY: the same arguments for the same function of the kernel.
    unsafe {
        libc::syscall(libc::SYS_getsockopt, descriptor, level, option, value, length) as c_int
    }
}
