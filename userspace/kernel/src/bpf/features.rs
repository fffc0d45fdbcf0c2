//! Probes which optional kernel features exist, and reports what is used where one is missing.
//!
//! Features are probed, not derived from the kernel's version: distributions backport features, and
//! builds leave some out.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;

use aya::programs::{ProgramType, SchedClassifier, TcAttachType};
use aya::sys::{BpfHelper, is_helper_supported};
use nix::errno::Errno;
use nix::sys::time::TimeValLike as _;
use nix::time::{ClockId, clock_getres};
use steps::SocketHook;

use crate::bpf::instructions::{CALL, EXIT, MOVE, instruction, low_bits, offset_bits};
use crate::bpf::probe_redirect_peer;
use crate::error::{OpenError, io_error, is};
use crate::syscall;

/// `BPF_F_IPV6` of `bpf_l4_csum_replace`.
const CHECKSUM_OF_IPV6: u64 = 0x80;

/// `BPF_FIB_LOOKUP_MARK` of `bpf_fib_lookup`.
const LOOKUP_BY_MARK: u64 = 1 << 5;

/// Constants of the object: whether the kernel has these helpers.
const HAS_SET_RETVAL: &str = "HAS_SET_RETVAL";
const HAS_SKB_SET_TSTAMP: &str = "HAS_SKB_SET_TSTAMP";

/// Nanoseconds of the shortest and the longest jiffy (`CONFIG_HZ` 1000 and 100).
const JIFFIES: RangeInclusive<u64> = 1_000_000..=10_000_000;

/// An optional feature of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Stable name in kebab case, such as `routes-by-mark`.
    pub name: &'static str,
    /// Whether this kernel has it.
    pub available: bool,
    /// What the agent uses, as a short sentence.
    pub chosen: String,
    /// The kernel's error; empty if the feature is available.
    pub reason: String,
}

/// Results of the probes that run before the programs are loaded, since they decide how to load
/// them.
#[derive(Debug)]
pub(crate) struct Probed {
    tcx: io::Result<()>,
    checksum: io::Result<()>,
    mark: io::Result<()>,
    scrub: io::Result<()>,
    departure: io::Result<()>,
    retval: io::Result<()>,
    jiffy: u64,
}

impl Probed {
    /// Probes the kernel in the network namespace of the calling thread.
    pub(crate) fn probe() -> Self {
        Self {
            tcx: tcx(),
            checksum: checksum(),
            mark: lookup_by_mark(),
            scrub: probe_redirect_peer::probe(),
            departure: departure(),
            retval: retval(),
            jiffy: jiffy(),
        }
    }

    /// Whether programs can be attached by TCX links.
    pub(crate) fn has_tcx(&self) -> bool {
        self.tcx.is_ok()
    }

    /// Returns the flag for `bpf_l4_csum_replace` on IPv6 packets, or 0 where the kernel has none.
    pub(crate) fn checksum_flag(&self) -> u64 {
        if self.checksum.is_ok() {
            CHECKSUM_OF_IPV6
        } else {
            0
        }
    }

    /// Returns the nanoseconds of a jiffy.
    pub(crate) fn jiffy(&self) -> u64 {
        self.jiffy
    }

    /// Whether `bpf_redirect_peer` scrubs the packets that it redirects.
    pub(crate) fn peers_scrub(&self) -> bool {
        self.scrub.is_ok()
    }

    /// Whether the departure time of a packet outlives its redirection.
    pub(crate) fn keeps_departure_times(&self) -> bool {
        self.departure.is_ok()
    }

    /// Returns the object's constants for helpers that not all supported kernels have.
    pub(crate) fn helpers(&self) -> [(&'static str, u64); 2] {
        constants_of(&self.retval, &self.departure)
    }

    /// Returns all features; `unavailable` are the cgroup programs that cannot be attached, and
    /// why.
    pub(crate) fn list(&self, unavailable: &BTreeMap<SocketHook, String>) -> Vec<Feature> {
        let tcx = feature(
            "tcx",
            &self.tcx,
            "programs of uplinks are TCX links; high-traffic pods get the TCX fast path",
            "programs of uplinks are clsact filters; there is no TCX fast path for high-traffic pods",
        );
        let checksum = feature(
            "checksum-of-ipv6",
            &self.checksum,
            "checksums computed by hardware (CHECKSUM_COMPLETE) stay valid when IPv6 is translated",
            "checksums computed by hardware are discarded for translated IPv6 packets; the kernel computes them",
        );
        let mark = feature(
            "routes-by-mark",
            &self.mark,
            "policy routing by fwmark is honoured when the SNAT source address of a new flow is chosen",
            "policy routing by fwmark is ignored when the SNAT source address of a new flow is chosen; rules by interface and prefix are honoured",
        );
        let scrub = feature(
            "peers-scrub",
            &self.scrub,
            "bpf_redirect_peer scrubs the packets that are redirected to a pod",
            "bpf_redirect_peer does not scrub packets; our programs do, with one more helper call for each packet",
        );
        let departure = feature(
            "departure-times",
            &self.departure,
            "packets of limited pods can get an earliest departure time, which the qdisc fq honours",
            "packets get no departure time; limits are enforced by policing, and TCP sockets are paced",
        );
        let retval = feature(
            "bind-errors",
            &self.retval,
            "bind to a hostport fails with EADDRINUSE, as for a port in use",
            "bind to a hostport fails with EPERM",
        );
        let sockets = sockets(unavailable);
        vec![tcx, checksum, mark, scrub, departure, retval, sockets]
    }
}

fn feature(name: &'static str, tried: &io::Result<()>, with: &str, without: &str) -> Feature {
    Feature {
        name,
        available: tried.is_ok(),
        chosen: if tried.is_ok() { with } else { without }.to_owned(),
        reason: tried
            .as_ref()
            .err()
            .map(ToString::to_string)
            .unwrap_or_default(),
    }
}

fn sockets(unavailable: &BTreeMap<SocketHook, String>) -> Feature {
    let missing: Vec<String> = unavailable
        .iter()
        .map(|(hook, why)| format!("{hook}: {why}"))
        .collect();
    let chosen = if missing.is_empty() {
        "processes of the node reach hostports at all addresses of the node"
    } else {
        "processes of the node do not reach all hostports"
    };
    Feature {
        name: "socket-hooks",
        available: missing.is_empty(),
        chosen: chosen.to_owned(),
        reason: missing.join("; "),
    }
}

/// Returns the nanoseconds of a jiffy, which are the resolution of the kernel's coarse clock
/// (`KTIME_LOW_RES`). Where that cannot be read, those of the longest: then cache entries expire
/// early, and none late.
fn jiffy() -> u64 {
    clock_getres(ClockId::CLOCK_MONOTONIC_COARSE)
        .ok()
        .and_then(|resolution| u64::try_from(resolution.num_nanoseconds()).ok())
        .filter(|resolution| JIFFIES.contains(resolution))
        .unwrap_or(*JIFFIES.end())
}

/// Returns the object's constants for the helpers of this kernel, for loaders other than the
/// agent's.
pub fn helper_constants() -> [(&'static str, u64); 2] {
    constants_of(&retval(), &departure())
}

fn constants_of(retval: &io::Result<()>, departure: &io::Result<()>) -> [(&'static str, u64); 2] {
    [
        (HAS_SET_RETVAL, retval.is_ok().into()),
        (HAS_SKB_SET_TSTAMP, departure.is_ok().into()),
    ]
}

/// Fails on a kernel without what all programs need: walks over maps (`bpf_for_each_map_elem`,
/// Linux 5.13). A kernel that cannot be probed passes: its verifier has the last word.
pub(crate) fn required() -> Result<(), OpenError> {
    let walk = BpfHelper::BPF_FUNC_for_each_map_elem;
    match is_helper_supported(ProgramType::SchedClassifier, walk) {
        Ok(false) => Err(OpenError::Kernel {
            helper: "bpf_for_each_map_elem",
        }),
        Ok(true) | Err(_) => Ok(()),
    }
}

/// Since Linux 5.18.
fn departure() -> io::Result<()> {
    helper(
        ProgramType::SchedClassifier,
        BpfHelper::BPF_FUNC_skb_set_tstamp,
        "bpf_skb_set_tstamp",
    )
}

/// Since Linux 6.1 for these programs.
fn retval() -> io::Result<()> {
    helper(
        ProgramType::CgroupSockAddr,
        BpfHelper::BPF_FUNC_set_retval,
        "bpf_set_retval",
    )
}

/// Returns `Ok` where programs of this type can call the helper.
pub(crate) fn helper(kind: ProgramType, helper: BpfHelper, name: &str) -> io::Result<()> {
    match is_helper_supported(kind, helper) {
        Ok(true) => Ok(()),
        Ok(false) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("this kernel has no {name} for such programs"),
        )),
        Err(error) => Err(io_error(&error)),
    }
}

/// Queries the TCX programs of `lo`. A kernel before 6.6, or one built without TCX, returns an
/// error.
fn tcx() -> io::Result<()> {
    match SchedClassifier::query_tcx("lo", TcAttachType::Ingress) {
        Ok(_) => Ok(()),
        Err(error) => match io_error(&error) {
            // TCX exists, and no program is attached.
            error if is(&error, Errno::ENOENT) => Ok(()),
            error => Err(error),
        },
    }
}

/// Calls `bpf_l4_csum_replace` with the IPv6 flag. An unknown flag is `EINVAL`, whatever the packet
/// is.
fn checksum() -> io::Result<()> {
    helper_result(syscall::run_classifier(&call_of_checksum_helper(
        CHECKSUM_OF_IPV6,
    ))?)
}

/// Calls `bpf_fib_lookup` with the mark flag. A kernel before 6.10 returns `EINVAL` for the flag; a
/// later one returns `EAFNOSUPPORT`, because there is no address family 0.
fn lookup_by_mark() -> io::Result<()> {
    match helper_result(syscall::run_classifier(&call_of_lookup_helper(
        LOOKUP_BY_MARK,
    ))?) {
        Err(error) if is(&error, Errno::EAFNOSUPPORT) => Ok(()),
        result => result,
    }
}

/// Converts the return value of a helper.
fn helper_result(result: i32) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(-result))
    }
}

/// `return bpf_l4_csum_replace(packet, 16, 0, 0, flags)`.
fn call_of_checksum_helper(flags: u64) -> [u64; 6] {
    const L4_CSUM_REPLACE: u64 = 11;
    [
        instruction(MOVE, 2, 16),
        instruction(MOVE, 3, 0),
        instruction(MOVE, 4, 0),
        instruction(MOVE, 5, flags),
        instruction(CALL, 0, L4_CSUM_REPLACE),
        instruction(EXIT, 0, 0),
    ]
}

/// `return bpf_fib_lookup(packet, &zeros, 64, flags)`.
fn call_of_lookup_helper(flags: u64) -> Vec<u64> {
    const FIB_LOOKUP: u64 = 69;
    const STORE_8_BYTES: u64 = 0x7a;
    const COPY: u64 = 0xbf;
    const ADD: u64 = 0x07;
    const FRAME: u64 = 10;
    const LENGTH: i16 = 64;
    let zero = |offset: i16| instruction(STORE_8_BYTES, FRAME | offset_bits(offset), 0);
    let zeros = (1..=LENGTH / 8).map(|number| zero(-8 * number));
    let call = [
        instruction(COPY, 2 | FRAME << 4, 0),
        instruction(ADD, 2, low_bits(-LENGTH)),
        instruction(MOVE, 3, low_bits(LENGTH)),
        instruction(MOVE, 4, flags),
        instruction(CALL, 0, FIB_LOOKUP),
        instruction(EXIT, 0, 0),
    ];
    zeros.chain(call).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_features_are_listed_with_their_reason() {
        let probed = Probed {
            tcx: Err(Errno::EINVAL.into()),
            checksum: Ok(()),
            mark: Ok(()),
            scrub: Err(io::Error::other("it is not")),
            departure: Err(Errno::EINVAL.into()),
            retval: Ok(()),
            jiffy: jiffy(),
        };
        assert!(JIFFIES.contains(&probed.jiffy()), "{probed:?}");
        assert!(!probed.has_tcx());
        assert!(!probed.peers_scrub());
        assert_eq!(
            probed.helpers(),
            [(HAS_SET_RETVAL, 1), (HAS_SKB_SET_TSTAMP, 0)]
        );
        assert_eq!(probed.checksum_flag(), CHECKSUM_OF_IPV6);
        let unavailable = BTreeMap::from([(SocketHook::Bind4, "no".to_owned())]);
        let list = probed.list(&unavailable);
        let of = |name: &str| {
            list.iter()
                .find(|it| it.name == name)
                .map(|it| it.available)
        };
        assert_eq!(of("tcx"), Some(false));
        assert_eq!(of("checksum-of-ipv6"), Some(true));
        assert_eq!(of("peers-scrub"), Some(false));
        assert_eq!(of("departure-times"), Some(false));
        assert_eq!(of("bind-errors"), Some(true));
        assert_eq!(of("socket-hooks"), Some(false));
        assert!(list.iter().all(|it| it.available == it.reason.is_empty()));
    }
}
