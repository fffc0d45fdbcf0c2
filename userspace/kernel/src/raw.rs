//! Calls that neither aya nor nix offers: what a pinned link of a cgroup is, another program in it or none, a few instructions
//! loaded or run to see what the kernel makes of them, the address of a link, and the cookie of a network namespace.

#![expect(unsafe_code, reason = "system calls that no crate we use wraps")]

use std::ffi::CString;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{LinkAddr, SockaddrLike as _};

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

/// `BPF_LINK_TYPE_CGROUP`.
const LINK_OF_CGROUP: u32 = 3;

/// `BPF_TCX_INGRESS`.
const TCX_INGRESS: u32 = 46;
/// `BPF_F_REPLACE`.
const REPLACE: u32 = 1 << 2;

const SO_NETNS_COOKIE: libc::c_int = 71;

/// A link between a program and what it is attached to: a cgroup, or a network interface.
pub(crate) struct ProgramLink {
    link: OwnedFd,
}

/// What a link links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Linked {
    /// The program's id.
    pub(crate) program: u32,
    /// The cgroup's id, which is the inode of its directory, or the interface's index; 0 when it is gone.
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

/// The beginning of `struct bpf_link_info`: `target` is a cgroup's id, or an interface's index and what else the kernel
/// says of such a link.
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
    /// Opens a pin; `None` when there is none.
    pub(crate) fn open(pin: &Path) -> io::Result<Option<Self>> {
        let path = CString::new(pin.as_os_str().as_bytes())?;
        let mut arguments = ObjGet {
            path: path.as_ptr() as u64,
            descriptor: 0,
            flags: 0,
        };
        match bpf(OBJ_GET, &mut arguments) {
            Ok(descriptor) => {
                // SAFETY: the kernel has just made the descriptor for us.
                let link = unsafe { OwnedFd::from_raw_fd(descriptor) };
                Ok(Some(Self { link }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What it links.
    pub(crate) fn linked(&self) -> io::Result<Linked> {
        let mut info = LinkInfo::default();
        let mut arguments = GetInfo {
            descriptor: self.link.as_raw_fd(),
            length: u32::try_from(size_of::<LinkInfo>()).map_err(io::Error::other)?,
            info: (&raw mut info) as u64,
        };
        bpf(OBJ_GET_INFO_BY_FD, &mut arguments)?;
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

    /// Puts another program into it: every socket meets the one or the other.
    pub(crate) fn update(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        let mut arguments = LinkUpdate {
            link: self.link.as_raw_fd(),
            program: program.as_raw_fd(),
            flags: 0,
            old_program: 0,
        };
        bpf(LINK_UPDATE, &mut arguments).map(|_| ())
    }

    /// Takes its program away from where it is attached; the link itself stays for as long as somebody holds it.
    pub(crate) fn detach(&self) -> io::Result<()> {
        let mut arguments = LinkDetach {
            link: self.link.as_raw_fd(),
        };
        bpf(LINK_DETACH, &mut arguments).map(|_| ())
    }
}

/// A program at an interface: arguments of `BPF_PROG_ATTACH` and `BPF_PROG_DETACH`.
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
    /// Where packets come in by an interface, before all filters and behind the programs that are there already.
    pub(crate) fn on_the_way_in(interface: u32, program: RawFd) -> Self {
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

    /// The same in the place of a program that is attached.
    pub(crate) fn replacing(self, program: RawFd) -> Self {
        Self {
            flags: REPLACE,
            replaced: program,
            ..self
        }
    }
}

/// Attaches a program, which stays for as long as the interface.
pub(crate) fn attach(mut attachment: Attachment) -> io::Result<()> {
    bpf(PROG_ATTACH, &mut attachment).map(|_| ())
}

/// Detaches it.
pub(crate) fn detach(mut attachment: Attachment) -> io::Result<()> {
    bpf(PROG_DETACH, &mut attachment).map(|_| ())
}

/// Loads a classifier of these instructions.
pub(crate) fn load_classifier(instructions: &[u64]) -> io::Result<OwnedFd> {
    let license = c"GPL";
    let mut load = ProgramLoad {
        kind: CLASSIFIER,
        count: u32::try_from(instructions.len()).map_err(io::Error::other)?,
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log: [0; 2],
        version: 0,
        flags: 0,
    };
    let descriptor = bpf(PROG_LOAD, &mut load)?;
    // SAFETY: the kernel has just made the descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// As [`load_classifier`], runs it once on an empty frame, and returns what it returned.
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
    bpf(PROG_TEST_RUN, &mut run)?;
    Ok(run.result)
}

/// One call of `bpf(2)`; what `arguments` points to must live.
pub(crate) fn bpf<T>(command: libc::c_int, arguments: &mut T) -> io::Result<RawFd> {
    // SAFETY: the kernel reads the arguments within the size given, and what they point to lives in the caller.
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

/// The address of what is sent and received by a link in frames of one type.
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
    // SAFETY: so many bytes of `address` are read.
    let address = unsafe { LinkAddr::from_raw((&raw const address).cast(), Some(length)) };
    address.ok_or_else(|| Errno::EINVAL.into())
}

/// The cookie of the network namespace that the calling thread is in.
pub(crate) fn netns_cookie() -> io::Result<u64> {
    // Not connected to anything: any socket knows its namespace.
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
