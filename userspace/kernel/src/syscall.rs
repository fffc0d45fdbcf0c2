//! System calls that neither aya nor nix wraps.
//!
//! Information, update and detach of pinned links; attaching without a link; reading maps in
//! batches; loading and running programs of a few instructions for probes; the address of a link;
//! the cookie of a network namespace.

#![expect(unsafe_code, reason = "system calls that no crate we use wraps")]

use std::ffi::CString;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{LinkAddr, SockaddrLike as _};

use crate::bpf::program_load::{is_interruption, retry};

/// Commands of `bpf(2)` (`enum bpf_cmd`).
const PROG_LOAD: libc::c_int = 5;
const OBJ_GET: libc::c_int = 7;
const PROG_ATTACH: libc::c_int = 8;
const PROG_DETACH: libc::c_int = 9;
const PROG_TEST_RUN: libc::c_int = 10;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const LINK_UPDATE: libc::c_int = 29;
const LINK_DETACH: libc::c_int = 34;

/// `BPF_PROG_TYPE_SCHED_CLS`.
const CLASSIFIER: u32 = 3;

/// `BPF_PROG_TYPE_SK_REUSEPORT`.
const SOCKET_SELECTOR: u32 = 21;
/// `SO_ATTACH_REUSEPORT_EBPF` (`asm-generic/socket.h`).
const SO_ATTACH_REUSEPORT_EBPF: libc::c_int = 52;

/// `BPF_LINK_TYPE_CGROUP`.
const LINK_OF_CGROUP: u32 = 3;

/// `BPF_TCX_INGRESS`.
const TCX_INGRESS: u32 = 46;
/// `BPF_F_REPLACE`.
const REPLACE: u32 = 1 << 2;

/// `SO_PEERGROUPS` (`asm-generic/socket.h`).
const SO_PEERGROUPS: libc::c_int = 59;
/// `SO_NETNS_COOKIE` (`asm-generic/socket.h`).
const SO_NETNS_COOKIE: libc::c_int = 71;

/// A BPF link: a program and its target, a cgroup or a network interface.
pub(crate) struct ProgramLink {
    link: OwnedFd,
}

/// Program and target of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Linked {
    /// Id of the program.
    pub(crate) program: u32,
    /// Id of the cgroup, which is the inode of its directory, or index of the interface; 0 when it
    /// is gone.
    pub(crate) target: u64,
}

/// Arguments of `BPF_OBJ_GET`.
#[repr(C)]
struct ObjGet {
    path: u64,
    descriptor: u32,
    flags: u32,
}

/// Arguments of `BPF_OBJ_GET_INFO_BY_FD`.
#[repr(C)]
struct GetInfo {
    descriptor: RawFd,
    length: u32,
    info: u64,
}

/// The beginning of `struct bpf_link_info`. `target` is the id of the cgroup, or the index of the
/// interface followed by other fields.
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    padding: u32,
    target: [u8; 8],
    attach_type: u32,
    padding2: u32,
}

/// Arguments of `BPF_LINK_UPDATE`.
#[repr(C)]
struct LinkUpdate {
    link: RawFd,
    program: RawFd,
    flags: u32,
    old_program: u32,
}

/// Arguments of `BPF_LINK_DETACH`.
#[repr(C)]
struct LinkDetach {
    link: RawFd,
}

/// Arguments of `BPF_PROG_LOAD`, as far as they are used.
#[repr(C)]
struct ProgramLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log: [u64; 2],
    version: u32,
    flags: u32,
}

/// Arguments of `BPF_PROG_TEST_RUN`, as far as they are used.
#[repr(C)]
struct TestRun {
    program: RawFd,
    result: i32,
    length_in: u32,
    length_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
}

impl ProgramLink {
    /// Opens a pinned link; `None` when there is no pin.
    pub(crate) fn open(pin: &Path) -> io::Result<Option<Self>> {
        let path = CString::new(pin.as_os_str().as_bytes())?;
        let mut arguments = ObjGet {
            path: path.as_ptr() as u64,
            descriptor: 0,
            flags: 0,
        };
        // SAFETY: `path` ends with a NUL byte, and lives until the end of the function.
        match unsafe { bpf(OBJ_GET, &mut arguments) } {
            Ok(descriptor) => {
                // SAFETY: the kernel has just made the descriptor for us.
                let link = unsafe { OwnedFd::from_raw_fd(descriptor) };
                Ok(Some(Self { link }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the program and the target.
    pub(crate) fn linked(&self) -> io::Result<Linked> {
        let mut info = LinkInfo::default();
        let mut arguments = GetInfo {
            descriptor: self.link.as_raw_fd(),
            length: u32::try_from(size_of::<LinkInfo>()).map_err(io::Error::other)?,
            info: (&raw mut info) as u64,
        };
        // SAFETY: the kernel writes at most `length` bytes to `info`, which is its size.
        unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut arguments) }?;
        let [a, b, c, d, ..] = info.target;
        let target = match info.kind {
            LINK_OF_CGROUP => u64::from_ne_bytes(info.target),
            _ => u32::from_ne_bytes([a, b, c, d]).into(),
        };
        Ok(Linked {
            program: info.program,
            target,
        })
    }

    /// Replaces its program atomically: every packet or socket meets the old program or the new
    /// one.
    pub(crate) fn update(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        let mut arguments = LinkUpdate {
            link: self.link.as_raw_fd(),
            program: program.as_raw_fd(),
            flags: 0,
            old_program: 0,
        };
        // SAFETY: the arguments contain no pointers.
        unsafe { bpf(LINK_UPDATE, &mut arguments) }.map(|_| ())
    }

    /// Detaches its program from the target. The link itself exists until its last reference is
    /// closed.
    pub(crate) fn detach(&self) -> io::Result<()> {
        let mut arguments = LinkDetach {
            link: self.link.as_raw_fd(),
        };
        // SAFETY: the arguments contain no pointers.
        unsafe { bpf(LINK_DETACH, &mut arguments) }.map(|_| ())
    }
}

/// Program and interface: arguments of `BPF_PROG_ATTACH` and `BPF_PROG_DETACH`.
#[repr(C)]
pub(crate) struct Attachment {
    interface: u32,
    program: RawFd,
    attach_type: u32,
    flags: u32,
    replaced: RawFd,
    relative: u32,
    revision: u64,
}

impl Attachment {
    /// TCX ingress of an interface: before all filters, after the TCX programs that are attached
    /// already.
    pub(crate) fn tcx_ingress(interface: u32, program: RawFd) -> Self {
        Self {
            interface,
            program,
            attach_type: TCX_INGRESS,
            flags: 0,
            replaced: 0,
            relative: 0,
            revision: 0,
        }
    }

    /// Replaces an attached program instead of adding one.
    pub(crate) fn replacing(self, program: RawFd) -> Self {
        Self {
            flags: REPLACE,
            replaced: program,
            ..self
        }
    }
}

/// Attaches a program without a link: it stays attached for as long as the interface exists.
pub(crate) fn attach(mut attachment: Attachment) -> io::Result<()> {
    // SAFETY: the arguments contain no pointers.
    unsafe { bpf(PROG_ATTACH, &mut attachment) }.map(|_| ())
}

/// Detaches a program that was attached with [`attach`].
pub(crate) fn detach(mut attachment: Attachment) -> io::Result<()> {
    // SAFETY: the arguments contain no pointers.
    unsafe { bpf(PROG_DETACH, &mut attachment) }.map(|_| ())
}

/// Loads a classifier from these instructions.
pub(crate) fn load_classifier(instructions: &[u64]) -> io::Result<OwnedFd> {
    load(CLASSIFIER, instructions)
}

/// Loads a program that selects the socket of a group for each new connection, or refuses it.
pub(crate) fn load_socket_selector(instructions: &[u64]) -> io::Result<OwnedFd> {
    load(SOCKET_SELECTOR, instructions)
}

/// Sets the program of [`load_socket_selector`] for the group of a socket with `SO_REUSEPORT`.
pub(crate) fn attach_socket_selector(socket: &OwnedFd, program: &OwnedFd) -> io::Result<()> {
    let program = program.as_raw_fd();
    let length = libc::socklen_t::try_from(size_of::<RawFd>()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `length` bytes of the descriptor, which lives until the call
    // returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_ATTACH_REUSEPORT_EBPF,
            std::ptr::from_ref(&program).cast(),
            length,
        )
    };
    Errno::result(result).map(drop).map_err(io::Error::from)
}

fn load(kind: u32, instructions: &[u64]) -> io::Result<OwnedFd> {
    let license = c"GPL";
    let mut load = ProgramLoad {
        kind,
        count: u32::try_from(instructions.len()).map_err(io::Error::other)?,
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log: [0; 2],
        version: 0,
        flags: 0,
    };
    // SAFETY: the kernel reads `count` instructions and the licence, which live until the end of
    // the function.
    let load = || unsafe { bpf(PROG_LOAD, &mut load) };
    let descriptor = retry(load, is_interruption)?;
    // SAFETY: the kernel has just made the descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Loads a classifier, runs it once on an empty frame, and returns its return value.
pub(crate) fn run_classifier(instructions: &[u64]) -> io::Result<i32> {
    let program = load_classifier(instructions)?;
    let frame = [0_u8; 64];
    let mut run = TestRun {
        program: program.as_raw_fd(),
        result: 0,
        length_in: u32::try_from(frame.len()).map_err(io::Error::other)?,
        length_out: 0,
        data_in: frame.as_ptr() as u64,
        data_out: 0,
        repeat: 1,
        duration: 0,
    };
    // SAFETY: the kernel reads `length_in` bytes of the frame, which is its size, and writes none.
    unsafe { bpf(PROG_TEST_RUN, &mut run) }?;
    Ok(run.result)
}

/// Calls `bpf(2)`.
///
/// # Safety
///
/// `T` must be laid out as the beginning of the command's part of `union bpf_attr`. Each pointer in
/// `arguments` must be 0, or point to memory that lives until the call returns, and that the kernel
/// may read or write as the command does.
pub(crate) unsafe fn bpf<T>(command: libc::c_int, arguments: &mut T) -> io::Result<RawFd> {
    // SAFETY: the kernel reads and writes `size_of::<T>()` bytes of the arguments; the caller
    // guarantees the rest.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(arguments),
            size_of::<T>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    RawFd::try_from(result).map_err(io::Error::other)
}

/// Returns the address to bind a packet socket to: one link and one Ethertype.
pub(crate) fn link_address(index: u32, ethertype: u16) -> io::Result<LinkAddr> {
    let address = libc::sockaddr_ll {
        sll_family: libc::sa_family_t::try_from(libc::AF_PACKET).map_err(io::Error::other)?,
        sll_protocol: ethertype.to_be(),
        sll_ifindex: index.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = size_of_val(&address).try_into().map_err(io::Error::other)?;
    // SAFETY: `length` bytes of `address` are read, which is its size.
    let address = unsafe { LinkAddr::from_raw((&raw const address).cast(), Some(length)) };
    address.ok_or_else(|| Errno::EINVAL.into())
}

/// Lets a packet socket send by the driver itself, past the queueing discipline
/// (`PACKET_QDISC_BYPASS`): an error is returned then where a discipline would drop the frame.
pub(crate) fn bypass_queues(socket: &impl AsRawFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = libc::socklen_t::try_from(size_of_val(&on)).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `length` bytes of `on`.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_QDISC_BYPASS,
            (&raw const on).cast(),
            length,
        )
    };
    Errno::result(result).map(drop).map_err(io::Error::from)
}

/// Returns the cookie of the calling thread's network namespace.
pub(crate) fn netns_cookie() -> io::Result<u64> {
    // Any socket returns the cookie of its namespace; this one is not connected.
    let socket = UdpSocket::bind("127.0.0.1:0").or_else(|_| UdpSocket::bind("0.0.0.0:0"))?;
    let mut cookie = 0_u64;
    let mut length = libc::socklen_t::try_from(size_of::<u64>()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes, which is the size of `cookie`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(cookie)
}

/// Returns the supplementary groups that the peer of a Unix socket had when it connected.
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<libc::gid_t>> {
    let width = size_of::<libc::gid_t>();
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let room = groups.len() * width;
        let mut length = libc::socklen_t::try_from(room).map_err(io::Error::other)?;
        // SAFETY: the kernel writes at most `length` bytes, which is the size of `groups`.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let wanted = usize::try_from(length).map_err(io::Error::other)? / width;
        match Errno::result(result) {
            Ok(_) => {
                groups.truncate(wanted);
                return Ok(groups);
            }
            // The kernel has returned the size that it needs.
            Err(Errno::ERANGE) if wanted > groups.len() => groups.resize(wanted, 0),
            Err(errno) => return Err(errno.into()),
        }
    }
}
