//! TCP connections of pods, and those of the node with pods: told the limits on their way, so that they send no faster,
//! and that whoever is far away sends them no faster. Enforcing does not depend on it: it spares the packets that a
//! bucket would drop.
//!
//! Asked when a connection is made, and then whenever its round-trip time is measured, or an answer to somebody far away
//! is about to go: a limit's burst is for whoever comes first, and limits change.

use core::ptr;

use abi::{Address, SettingsFlags};
use aya_ebpf::bindings::{
    BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_HDR_OPT_LEN_CB,
    BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB, BPF_SOCK_OPS_RTT_CB, BPF_SOCK_OPS_RTT_CB_FLAG,
    BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG, SO_MAX_PACING_RATE, SOL_SOCKET, bpf_sock_ops,
};
use aya_ebpf::helpers;
use aya_ebpf::macros::sock_ops;
use aya_ebpf::maps::LruHashMap;
use aya_ebpf::programs::SockOpsContext;
use verdict::Node as _;
use verdict::shape::{Pacing, UNPACED, WIDEST, pace_of, pace_with, window_of};

use crate::hostport_from_node::tables;
use crate::maps::{BOUNDED, PACED};

const GO_ON: u32 = 1;
const AF_INET: u32 = 2;
/// `IPPROTO_TCP`.
const SOL_TCP: u32 = 6;
/// `include/uapi/linux/tcp.h`.
const TCP_WINDOW_CLAMP: u32 = 10;

#[sock_ops]
fn pace(context: SockOpsContext) -> u32 {
    let connection = Connection {
        context: context.ops,
    };
    match connection.operation() {
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB | BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB => {
            connection.subscribe();
        }
        BPF_SOCK_OPS_RTT_CB => connection.pace(),
        BPF_SOCK_OPS_HDR_OPT_LEN_CB => connection.clamp_window(),
        _ => {}
    }
    GO_ON
}

/// Whether the agent wants senders to be told.
#[inline(always)]
fn is_enabled() -> bool {
    tables()
        .settings()
        .is_some_and(|settings| settings.flags & SettingsFlags::PACE != 0)
}

/// An option of a socket that is a number.
#[derive(Clone, Copy)]
struct SocketOption {
    level: u32,
    option: u32,
}

const PACE: SocketOption = SocketOption {
    level: SOL_SOCKET,
    option: SO_MAX_PACING_RATE,
};

const WINDOW: SocketOption = SocketOption {
    level: SOL_TCP,
    option: TCP_WINDOW_CLAMP,
};

/// A TCP connection, as the kernel shows it to a program on a cgroup.
#[derive(Clone, Copy)]
struct Connection {
    context: *mut bpf_sock_ops,
}

impl Connection {
    #[inline(always)]
    fn operation(self) -> u32 {
        // SAFETY: the context is valid for as long as the program runs.
        unsafe { ptr::read_volatile(&raw const (*self.context).op) }
    }

    #[inline(always)]
    fn cookie(self) -> u64 {
        // SAFETY: the helper takes the context.
        unsafe { helpers::bpf_get_socket_cookie(self.context.cast()) }
    }

    /// Asks to be called again where a limit is on the way.
    #[inline(always)]
    fn subscribe(self) {
        if !is_enabled() {
            return;
        }
        let (local, remote) = self.addresses();
        let mut calls = 0;
        if pace_of(&mut tables(), &local, &remote, Pacing::ByAll) != UNPACED {
            calls |= BPF_SOCK_OPS_RTT_CB_FLAG;
        }
        if self.window(&local, &remote).is_some() {
            calls |= BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
        }
        if calls != 0 {
            self.enable_callbacks(calls);
        }
    }

    /// Lets the socket send no faster than the limits on its way allow.
    #[inline(always)]
    fn pace(self) {
        let cookie = self.cookie();
        // SAFETY: values of the map are plain numbers that stay readable until the program ends.
        let ours = unsafe { PACED.get(cookie) };
        // One that has been told a pace keeps to its limits, in debt or not.
        let pacing = match ours {
            Some(_) => Pacing::ByAll,
            None => Pacing::ByThoseInDebt,
        };
        let rate = if is_enabled() {
            let (local, remote) = self.addresses();
            pace_of(&mut tables(), &local, &remote, pacing)
        } else {
            UNPACED
        };
        self.set_option(PACE, &PACED, cookie, ours, rate);
    }

    /// Lets the socket's other end, if it is far away, send no faster than the pod's limit allows.
    #[inline(always)]
    fn clamp_window(self) {
        let cookie = self.cookie();
        // SAFETY: as above.
        let ours = unsafe { BOUNDED.get(cookie) };
        let window = if is_enabled() {
            let (local, remote) = self.addresses();
            self.window(&local, &remote)
        } else {
            None
        };
        self.set_option(WINDOW, &BOUNDED, cookie, ours, window.unwrap_or(WIDEST));
    }

    /// How much the other end may have under way, if a limit counts and it is far away.
    #[inline(always)]
    fn window(self, local: &Address, remote: &Address) -> Option<u32> {
        // SAFETY: the context is valid for as long as the program runs.
        let (round_trip, segment) = unsafe {
            (
                ptr::read_volatile(&raw const (*self.context).srtt_us),
                ptr::read_volatile(&raw const (*self.context).mss_cache),
            )
        };
        // The kernel keeps eight times of it.
        let round_trip = round_trip / 8;
        window_of(
            &mut tables(),
            local,
            remote,
            round_trip,
            segment.saturating_mul(4),
        )
    }

    /// Both addresses, the socket's own first. Everything is read whatever the family is: from two branches the compiler
    /// would make one that computes where it reads, which the verifier does not allow.
    #[inline(always)]
    fn addresses(self) -> (Address, Address) {
        let context = self.context;
        // SAFETY: as above. Words are read one by one: the verifier knows no others.
        unsafe {
            let family = ptr::read_volatile(&raw const (*context).family);
            let local4 = ptr::read_volatile(&raw const (*context).local_ip4);
            let remote4 = ptr::read_volatile(&raw const (*context).remote_ip4);
            let local6 = read_words(&raw const (*context).local_ip6);
            let remote6 = read_words(&raw const (*context).remote_ip6);
            if family == AF_INET {
                (
                    Address::from_v4_word(local4),
                    Address::from_v4_word(remote4),
                )
            } else {
                (Address::from_words(local6), Address::from_words(remote6))
            }
        }
    }

    /// Asks to be called again for `calls`.
    #[inline(always)]
    fn enable_callbacks(self, calls: u32) {
        // SAFETY: as above; the helper takes the context and a number.
        unsafe {
            let enabled = ptr::read_volatile(&raw const (*self.context).bpf_sock_ops_cb_flags);
            let enabled = enabled | calls;
            // Without it the connection goes on as it is.
            helpers::bpf_sock_ops_cb_flags_set(self.context, enabled as i32);
        }
    }

    /// Tells the socket, which was told `ours` by us, no more than `most`, and than whoever owns it wants.
    #[inline(always)]
    fn set_option(
        self,
        which: SocketOption,
        applied: &LruHashMap<u64, u32>,
        cookie: u64,
        ours: Option<&u32>,
        most: u32,
    ) {
        const LENGTH: i32 = size_of::<u32>() as i32;
        let (context, level, option) =
            (self.context.cast(), which.level as i32, which.option as i32);
        let mut now = UNPACED;
        // SAFETY: the helper is given the context, and `LENGTH` bytes that are there.
        let got = unsafe {
            helpers::bpf_getsockopt(context, level, option, (&raw mut now).cast(), LENGTH)
        };
        if got != 0 {
            return;
        }
        let mut new = pace_with(now, ours.copied(), most);
        if new == now {
            return;
        }
        // SAFETY: as above.
        let set = unsafe {
            helpers::bpf_setsockopt(context, level, option, (&raw mut new).cast(), LENGTH)
        };
        if set == 0 {
            // Without it the number is taken for the owner's own wish, and never raised again.
            let _ = applied.insert(cookie, new, 0);
        }
    }
}

/// Four words of a context, one by one.
///
/// # Safety
/// `words` must be in a context that may be read.
#[inline(always)]
unsafe fn read_words(words: *const [u32; 4]) -> [u32; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        [
            ptr::read_volatile(&raw const (*words)[0]),
            ptr::read_volatile(&raw const (*words)[1]),
            ptr::read_volatile(&raw const (*words)[2]),
            ptr::read_volatile(&raw const (*words)[3]),
        ]
    }
}
