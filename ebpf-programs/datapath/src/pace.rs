//! Sets pacing rates and receive windows of TCP sockets of limited pods, and of the node's
//! connections with pods.
//!
//! Local senders are paced (`SO_MAX_PACING_RATE`), and the windows that limited pods advertise to
//! distant senders are clamped. Limits are enforced without it: it avoids the packets that a bucket
//! would drop.
//!
//! Runs when a connection is established, then at each measurement of its round-trip time, and
//! before each reply to a distant sender: a limit's burst is for the first packets, and limits
//! change.

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
use verdict::shape::{Pacing, UNPACED, WIDEST, merge_pacing_rate, pacing_rate, window_limit};

use crate::hostport_from_node::tables;
use crate::maps::{BOUNDED, PACED};

const ALLOW: u32 = 1;
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
    ALLOW
}

/// Returns whether the agent has enabled pacing.
#[inline(always)]
fn is_enabled() -> bool {
    tables()
        .settings()
        .is_some_and(|settings| settings.flags & SettingsFlags::PACE != 0)
}

/// A socket option with a number as its value.
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

/// A TCP connection in the context of a cgroup program.
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

    /// Enables the callbacks of a connection where a limit applies to it.
    #[inline(always)]
    fn subscribe(self) {
        if !is_enabled() {
            return;
        }
        let (local, remote) = self.addresses();
        let mut callbacks = 0;
        if pacing_rate(&mut tables(), &local, &remote, Pacing::ByAll) != UNPACED {
            callbacks |= BPF_SOCK_OPS_RTT_CB_FLAG;
        }
        if self.window(&local, &remote).is_some() {
            callbacks |= BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
        }
        if callbacks != 0 {
            self.enable_callbacks(callbacks);
        }
    }

    /// Limits the socket's pacing rate to what the limits between its addresses allow.
    #[inline(always)]
    fn pace(self) {
        let cookie = self.cookie();
        // SAFETY: values of the map are plain numbers that stay readable until the program ends.
        let ours = unsafe { PACED.get(cookie) };
        // A socket that is paced already follows its limits, in debt or not.
        let pacing = match ours {
            Some(_) => Pacing::ByAll,
            None => Pacing::ByThoseInDebt,
        };
        let rate = if is_enabled() {
            let (local, remote) = self.addresses();
            pacing_rate(&mut tables(), &local, &remote, pacing)
        } else {
            UNPACED
        };
        self.set_option(PACE, &PACED, cookie, ours, rate);
    }

    /// Clamps the receive window that the socket advertises, if its peer is distant and a limit of
    /// the pod applies.
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

    /// Returns how many bytes the peer may have in flight, if a limit applies and the peer is
    /// distant.
    #[inline(always)]
    fn window(self, local: &Address, remote: &Address) -> Option<u32> {
        // SAFETY: the context is valid for as long as the program runs.
        let (round_trip, segment) = unsafe {
            (
                ptr::read_volatile(&raw const (*self.context).srtt_us),
                ptr::read_volatile(&raw const (*self.context).mss_cache),
            )
        };
        // `srtt_us` is eight times the round-trip time.
        let round_trip = round_trip / 8;
        window_limit(
            &mut tables(),
            local,
            remote,
            round_trip,
            segment.saturating_mul(4),
        )
    }

    /// Returns both addresses, the socket's own first. Reads the fields of both families: from two
    /// branches the compiler would make one that computes the offset, which the verifier rejects.
    #[inline(always)]
    fn addresses(self) -> (Address, Address) {
        let context = self.context;
        // SAFETY: as above. Words are read one by one: the verifier allows nothing else.
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

    /// Enables callbacks.
    #[inline(always)]
    fn enable_callbacks(self, callbacks: u32) {
        // SAFETY: as above; the helper takes the context and a number.
        unsafe {
            let enabled = ptr::read_volatile(&raw const (*self.context).bpf_sock_ops_cb_flags);
            let enabled = enabled | callbacks;
            // If it fails, the connection is not paced.
            helpers::bpf_sock_ops_cb_flags_set(self.context, enabled as i32);
        }
    }

    /// Sets a socket option to at most `limit`, and to no more than its owner has set. `ours` is
    /// the value that we have set before.
    #[inline(always)]
    fn set_option(
        self,
        which: SocketOption,
        applied: &LruHashMap<u64, u32>,
        cookie: u64,
        ours: Option<&u32>,
        limit: u32,
    ) {
        const LENGTH: i32 = size_of::<u32>() as i32;
        let (context, level, option) =
            (self.context.cast(), which.level as i32, which.option as i32);
        let mut current = UNPACED;
        // SAFETY: the helper is given the context, and `LENGTH` bytes that are there.
        let got = unsafe {
            helpers::bpf_getsockopt(context, level, option, (&raw mut current).cast(), LENGTH)
        };
        if got != 0 {
            return;
        }
        let mut new = merge_pacing_rate(current, ours.copied(), limit);
        if new == current {
            return;
        }
        // SAFETY: as above.
        let set = unsafe {
            helpers::bpf_setsockopt(context, level, option, (&raw mut new).cast(), LENGTH)
        };
        if set == 0 {
            // Without an entry, our value would be taken for the owner's, and never be raised
            // again.
            let _ = applied.insert(cookie, new, 0);
        }
    }
}

/// Reads four words of a context, one by one.
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
