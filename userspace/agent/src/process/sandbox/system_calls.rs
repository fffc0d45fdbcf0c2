//! Filter of system calls (seccomp), of all threads.
//!
//! Two filters: one ends the process at a call that only an attacker makes, the other lets pass
//! what the agent uses while it serves. All other calls fail with `ENOSYS`, for which libraries
//! have a fallback (`clone3`, `statx`), and which a log shows.

use std::collections::BTreeMap;
use std::env::consts::ARCH;

use anyhow::{Context as _, Result};
use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Rules of a system call, of which one must match; empty to match always.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Files, directories and descriptors.
const FILES: [i64; 48] = [
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_rm_watch,
    libc::SYS_ioctl,
    libc::SYS_linkat,
    libc::SYS_lseek,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pipe2,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat2,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_umask,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Memory, threads, signals, time and the identity of the process.
const PROCESS: [i64; 55] = [
    libc::SYS_brk,
    libc::SYS_capget,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_get_robust_list,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_prctl,
    libc::SYS_prlimit64,
    libc::SYS_pselect6,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sigaltstack,
    libc::SYS_signalfd4,
    libc::SYS_sysinfo,
    libc::SYS_tgkill,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    libc::SYS_times,
    libc::SYS_uname,
];

/// Sockets, eBPF, and the unmount of a BPF file system by an uninstall.
const NETWORK: [i64; 19] = [
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_bpf,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_socketpair,
    libc::SYS_umount2,
];

/// Older forms of the calls above, which x86-64 has and C libraries still use.
#[cfg(target_arch = "x86_64")]
const OLDER: [i64; 24] = [
    libc::SYS_access,
    libc::SYS_arch_prctl,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_dup2,
    libc::SYS_epoll_wait,
    libc::SYS_getdents,
    libc::SYS_getrlimit,
    libc::SYS_lchown,
    libc::SYS_link,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_rmdir,
    libc::SYS_select,
    libc::SYS_setrlimit,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
];
/// `renameat`, `getrlimit` and `setrlimit` of the generic table
/// (`include/uapi/asm-generic/unistd.h`), which the libc crate does not name.
#[cfg(not(target_arch = "x86_64"))]
const OLDER: [i64; 3] = [38, 163, 164];

#[cfg(target_arch = "x86_64")]
const KEXEC_FILE_LOAD: i64 = libc::SYS_kexec_file_load;
/// As in the generic table.
#[cfg(not(target_arch = "x86_64"))]
const KEXEC_FILE_LOAD: i64 = 294;

/// Calls at which the process ends: other processes' memory and descriptors, other programs, kernel
/// modules, and other kernels.
const FATAL: [i64; 16] = [
    libc::SYS_delete_module,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    KEXEC_FILE_LOAD,
    libc::SYS_kexec_load,
    libc::SYS_open_by_handle_at,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_reboot,
    libc::SYS_swapoff,
    libc::SYS_swapon,
];

/// Address families of sockets: the API, netlink, reservations of ports, neighbour announcements.
const FAMILIES: [libc::c_int; 5] = [
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
    libc::AF_PACKET,
];

/// Namespaces that `clone` may not create. A thread creates none.
const NEW_NAMESPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// Installs both filters on all threads of the process.
pub(super) fn filter() -> Result<()> {
    let fatal = (SeccompAction::Allow, SeccompAction::KillProcess);
    // In this order: the second filter denies the installation of others.
    for program in [
        compile(always(&FATAL).collect(), fatal)?,
        compile(allowed()?, (enosys(), SeccompAction::Allow))?,
    ] {
        seccompiler::apply_filter_all_threads(&program)?;
    }
    Ok(())
}

fn enosys() -> SeccompAction {
    SeccompAction::Errno(libc::ENOSYS.unsigned_abs())
}

/// Compiles a filter with an action for calls without a matching rule, and one for the others.
fn compile(rules: Rules, (other, matching): (SeccompAction, SeccompAction)) -> Result<BpfProgram> {
    let architecture = ARCH
        .try_into()
        .with_context(|| format!("no system call filter for {ARCH}"))?;
    Ok(SeccompFilter::new(rules, other, matching, architecture)?.try_into()?)
}

fn allowed() -> Result<Rules> {
    let mut rules: Rules = [&FILES[..], &PROCESS, &NETWORK, &OLDER]
        .into_iter()
        .flat_map(always)
        .collect();
    let families: Vec<SeccompRule> = FAMILIES
        .into_iter()
        .map(|family| argument(0, SeccompCmpOp::Eq, family))
        .collect::<Result<_>>()?;
    rules.insert(libc::SYS_socket, families);
    let net = libc::CLONE_NEWNET;
    rules.insert(libc::SYS_setns, vec![argument(1, SeccompCmpOp::Eq, net)?]);
    rules.insert(libc::SYS_unshare, vec![argument(0, SeccompCmpOp::Eq, net)?]);
    // The flags of `clone3` are behind a pointer: without it, C libraries call `clone`.
    let mask = u64::from(NEW_NAMESPACES.unsigned_abs());
    let thread = argument(0, SeccompCmpOp::MaskedEq(mask), 0)?;
    rules.insert(libc::SYS_clone, vec![thread]);
    Ok(rules)
}

fn always(calls: &[i64]) -> impl Iterator<Item = (i64, Vec<SeccompRule>)> {
    calls.iter().map(|call| (*call, Vec::new()))
}

/// Returns a rule for the lower 32 bits of an argument.
fn argument(index: u8, operator: SeccompCmpOp, value: libc::c_int) -> Result<SeccompRule> {
    let value = u64::from(value.unsigned_abs());
    let condition = SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value)?;
    Ok(SeccompRule::new(vec![condition])?)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::thread;

    use super::*;

    #[test]
    fn no_call_is_both_allowed_and_fatal() {
        let allowed = allowed().unwrap();
        for call in FATAL {
            assert!(!allowed.contains_key(&call), "{call}");
        }
    }

    /// On a thread of its own, because a filter stays as long as its thread.
    #[test]
    fn calls_that_are_not_allowed_fail_and_allowed_ones_succeed() {
        let filtered = thread::spawn(|| {
            let program = compile(allowed().unwrap(), (enosys(), SeccompAction::Allow)).unwrap();
            seccompiler::apply_filter(&program).unwrap();
            let spawned = thread::spawn(|| UdpSocket::bind("127.0.0.1:0").map(drop)).join();
            let inherited = spawned.unwrap();
            let mounted = nix::mount::umount("/nowhere");
            let denied = nix::unistd::chroot("/nowhere");
            (inherited, mounted, denied)
        });
        let (inherited, mounted, denied) = filtered.join().unwrap();
        inherited.unwrap();
        assert_ne!(mounted, Err(nix::errno::Errno::ENOSYS));
        assert_eq!(denied, Err(nix::errno::Errno::ENOSYS));
    }
}
