//! TCP connections of pods, and those of the node with pods: told the limits on their way, so that they send no faster.
//! Enforcing does not depend on it: it spares the packets that a bucket would drop.
//!
//! Asked when a connection is made, and then whenever its round-trip time is measured: a limit's burst is for whoever
//! comes first, and limits change.

use core::ptr;

use abi::{Address, SettingsFlags};
use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::{
    BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB, BPF_SOCK_OPS_RTT_CB,
    BPF_SOCK_OPS_RTT_CB_FLAG, SO_MAX_PACING_RATE, SOL_SOCKET, bpf_sock_ops,
};
use aya_ebpf::helpers;
use aya_ebpf::macros::sock_ops;
use aya_ebpf::programs::SockOpsContext;
use verdict::Node as _;
use verdict::shape::{Pacing, UNPACED, pace_of, pace_with};

use crate::dial::tables;
use crate::maps::PACED;

const GO_ON: u32 = 1;
const AF_INET: u32 = 2;

#[sock_ops]
fn pace(context: SockOpsContext) -> u32 {
    let connection = Connection {
        context: context.ops,
    };
    let operation = connection.operation();
    let is_new = operation == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB
        || operation == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB;
    if !is_new && operation != BPF_SOCK_OPS_RTT_CB {
        return GO_ON;
    }
    let paces = tables()
        .settings()
        .is_some_and(|settings| settings.flags & SettingsFlags::PACE != 0);
    // SAFETY: the helper takes the context; values of the map are plain numbers that stay readable until the program ends.
    let (cookie, ours) = unsafe {
        let cookie = helpers::bpf_get_socket_cookie(context.as_ptr());
        (cookie, PACED.get(cookie).copied())
    };
    // One that has been told a pace keeps to its limits, in debt or not.
    let pacing = if is_new || ours.is_some() {
        Pacing::ByAll
    } else {
        Pacing::ByThoseInDebt
    };
    let rate = if paces {
        connection.limit(pacing)
    } else {
        UNPACED
    };
    if !is_new {
        connection.pace(&context, cookie, ours, rate);
    } else if rate != UNPACED {
        connection.ask_again();
    }
    GO_ON
}

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

    /// Bytes per second that the limits on the way of the connection allow.
    #[inline(always)]
    fn limit(self, pacing: Pacing) -> u32 {
        let (local, remote) = self.ends();
        pace_of(&mut tables(), &local, &remote, pacing)
    }

    /// Both addresses, the socket's own first. Everything is read whatever the family is: from two branches the compiler
    /// would make one that computes where it reads, which the verifier does not allow.
    #[inline(always)]
    fn ends(self) -> (Address, Address) {
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

    /// Asks to be called again whenever the round-trip time is measured.
    #[inline(always)]
    fn ask_again(self) {
        // SAFETY: as above; the helper takes the context and a number.
        unsafe {
            let asked = ptr::read_volatile(&raw const (*self.context).bpf_sock_ops_cb_flags);
            let asked = asked | BPF_SOCK_OPS_RTT_CB_FLAG;
            // Without it the connection keeps the rate that it is told now.
            helpers::bpf_sock_ops_cb_flags_set(self.context, asked as i32);
        }
    }

    /// Lets the socket, which was told `ours` by us, send no faster than `rate`, and than whoever owns it wants.
    #[inline(always)]
    fn pace(self, context: &SockOpsContext, cookie: u64, ours: Option<u32>, rate: u32) {
        const LEVEL: i32 = SOL_SOCKET as i32;
        const OPTION: i32 = SO_MAX_PACING_RATE as i32;
        const LENGTH: i32 = size_of::<u32>() as i32;
        let mut now = UNPACED;
        // SAFETY: the helper is given the context, and `LENGTH` bytes that are there.
        let told = unsafe {
            let option = (&raw mut now).cast();
            helpers::bpf_getsockopt(context.as_ptr(), LEVEL, OPTION, option, LENGTH)
        };
        if told != 0 {
            return;
        }
        let mut new = pace_with(now, ours, rate);
        if new == now {
            return;
        }
        // SAFETY: as above.
        let set = unsafe {
            let option = (&raw mut new).cast();
            helpers::bpf_setsockopt(context.as_ptr(), LEVEL, OPTION, option, LENGTH)
        };
        if set == 0 {
            // Without it the rate is taken for the owner's own wish, and never raised again.
            let _ = PACED.insert(cookie, new, 0);
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
