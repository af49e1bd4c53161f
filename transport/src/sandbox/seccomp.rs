//! Seccomp filter of children: refuses system calls that no MCP server needs and that could break
//! the sandbox.
//!
//! All other calls are allowed. A refused call fails with an error that programs can handle:
//! `EPERM`, or `ENOSYS` if programs then try an older call. Calls of other architectures end the
//! process.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp,
    SeccompCondition, SeccompFilter, SeccompRule, TargetArch, apply_filter, sock_filter,
};

use super::{Network, Sandbox, SandboxError};

/// Calls refused with all arguments: other processes' memory, mounts, namespaces, keys, the kernel
/// itself, the clock.
const REFUSED: &[i64] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    KEXEC_FILE_LOAD,
    libc::SYS_keyctl,
    libc::SYS_migrate_pages,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_move_pages,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];
#[cfg(target_arch = "x86_64")]
const KEXEC_FILE_LOAD: i64 = 320;
#[cfg(not(target_arch = "x86_64"))]
const KEXEC_FILE_LOAD: i64 = 294;
const OPEN_TREE_ATTR: i64 = 467;

/// Calls that fail with `ENOSYS`. `clone3` has its flags in memory, which a filter cannot read;
/// programs then use `clone`. Operations of an io_uring pass no filter.
const MISSING: &[i64] = &[
    libc::SYS_clone3,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// Flags of `clone` that create namespaces.
const NAMESPACES: [u64; 7] =
    [0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000];
/// Requests of `ioctl` that insert input into a terminal.
const TYPING: [u64; 2] = [0x5412, 0x541c];
/// Requests of `ioctl` and `fcntl` that cause later signals.
const SIGNAL_REQUESTS: [u64; 2] = [0x8901, 0x8902];
const SIGNAL_OPTIONS: [u64; 3] = [8, 10, 15];
/// `MSG_FASTOPEN`: connects without `connect`, so Landlock does not see it.
const FAST_OPEN: u64 = 0x2000_0000;
/// Protocols of the internet: the default, ICMP, TCP, UDP, ICMPv6. Others, such as MPTCP and SMC,
/// open connections without the Landlock check.
const INTERNET_PROTOCOLS: [u64; 5] = [0, 1, 6, 17, 58];
/// Bit in the numbers of the x32 calls, which duplicate those of x86-64.
const X32: u32 = 0x4000_0000;

type SyscallRules = BTreeMap<i64, Vec<SeccompRule>>;

pub(super) fn enforce(sandbox: &Sandbox) -> Result<(), SandboxError> {
    let own = std::process::id();
    for program in programs(sandbox, own).map_err(seccompiler::Error::from)? {
        apply_filter(&program)?;
    }
    Ok(())
}

/// Returns one program for each error that refused calls fail with.
fn programs(sandbox: &Sandbox, own: u32) -> Result<Vec<BpfProgram>, BackendError> {
    let missing = MISSING.iter().map(|call| (*call, Vec::new())).collect();
    [
        (refused(sandbox, own)?, libc::EPERM),
        (missing, libc::ENOSYS),
        (sockets(sandbox)?, libc::EAFNOSUPPORT),
    ]
    .into_iter()
    .map(|(rules, error)| program(rules, error))
    .collect()
}

fn program(rules: SyscallRules, error: i32) -> Result<BpfProgram, BackendError> {
    let target = TargetArch::try_from(std::env::consts::ARCH)?;
    let refuse = |error: i32| SeccompAction::Errno(error.unsigned_abs());
    let mut program = BpfProgram::try_from(SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        refuse(error),
        target,
    )?)?;
    if cfg!(target_arch = "x86_64") {
        // These instructions follow the architecture check, which has three. They load the call
        // number and refuse x32 calls.
        let load = sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };
        let if_x32 = sock_filter { code: 0x35, jt: 0, jf: 1, k: X32 };
        let refused = sock_filter { code: 0x06, jt: 0, jf: 0, k: u32::from(refuse(libc::ENOSYS)) };
        program.splice(3..3, [load, if_x32, refused]);
    }
    Ok(program)
}

fn refused(sandbox: &Sandbox, own: u32) -> Result<SyscallRules, BackendError> {
    let mut rules: SyscallRules = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let mut ioctl: Vec<u64> = TYPING.to_vec();
    // `prlimit` could change the limits of other processes of the same user, processor time
    // included.
    rules.insert(libc::SYS_prlimit64, vec![all([unlike(0, 0)?])?]);
    rules.insert(
        libc::SYS_clone,
        NAMESPACES.iter().map(|flag| all([has(0, *flag)?])).collect::<Result<_, _>>()?,
    );
    for (call, flags) in [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)] {
        rules.insert(call, vec![all([has(flags, FAST_OPEN)?])?]);
    }
    if sandbox.own_signals_only {
        let (own, group) = (u64::from(own), u64::from(own.wrapping_neg()));
        rules.insert(
            libc::SYS_kill,
            vec![all([unlike(0, 0)?, unlike(0, own)?, unlike(0, group)?])?],
        );
        for call in [libc::SYS_tgkill, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo] {
            rules.insert(call, vec![all([unlike(0, own)?])?]);
        }
        rules.extend([libc::SYS_tkill, libc::SYS_pidfd_send_signal].map(|call| (call, Vec::new())));
        rules.insert(
            libc::SYS_fcntl,
            SIGNAL_OPTIONS
                .iter()
                .map(|option| all([like(1, *option)?]))
                .collect::<Result<_, _>>()?,
        );
        ioctl.extend(SIGNAL_REQUESTS);
    }
    rules.insert(
        libc::SYS_ioctl,
        ioctl.into_iter().map(|request| all([like(1, request)?])).collect::<Result<_, _>>()?,
    );
    Ok(rules)
}

/// Refuses all sockets except those of netlink and, unless the network is off, those with the
/// protocols in [`INTERNET_PROTOCOLS`].
///
/// A child with its own user also gets Unix sockets, because file modes guard them. A child with
/// the broker's user could connect to services of that user.
fn sockets(sandbox: &Sandbox) -> Result<SyscallRules, BackendError> {
    let mut families = vec![libc::AF_NETLINK];
    if sandbox.network != Network::None {
        families.extend([libc::AF_INET, libc::AF_INET6]);
    }
    if sandbox.user.is_some() {
        families.push(libc::AF_UNIX);
    }
    let others: Vec<SeccompCondition> = families
        .into_iter()
        .map(|family| unlike(0, u64::from(family.unsigned_abs())))
        .collect::<Result<_, _>>()?;
    let rules = vec![
        SeccompRule::new(others)?,
        other_protocols(libc::AF_INET)?,
        other_protocols(libc::AF_INET6)?,
    ];
    Ok(SyscallRules::from([(libc::SYS_socket, rules)]))
}

/// Matches sockets of a family with a protocol outside [`INTERNET_PROTOCOLS`].
fn other_protocols(family: i32) -> Result<SeccompRule, BackendError> {
    let mut conditions = vec![like(0, u64::from(family.unsigned_abs()))?];
    for protocol in INTERNET_PROTOCOLS {
        conditions.push(unlike(2, protocol)?);
    }
    SeccompRule::new(conditions)
}

fn all<const N: usize>(conditions: [SeccompCondition; N]) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions.into())
}

fn like(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, Dword, SeccompCmpOp::Eq, value)
}

fn unlike(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, Dword, SeccompCmpOp::Ne, value)
}

fn has(argument: u8, flag: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, Dword, SeccompCmpOp::MaskedEq(flag), flag)
}
