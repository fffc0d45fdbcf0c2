//! What this kernel can do, tried and not guessed from its version, and what is used where it cannot.
//!
//! Distributions carry features back, and builds leave some out: only a trial tells.

use std::collections::BTreeMap;
use std::io;

use aya::programs::{SchedClassifier, TcAttachType};
use nix::errno::Errno;
use planner::SocketHook;

use crate::error::{io_error, is};
use crate::instructions::{CALL, EXIT, MOVE, low_bits, place, word};
use crate::{raw, scrub};

/// `BPF_F_IPV6` of `bpf_l4_csum_replace`.
const CHECKSUM_OF_IPV6: u64 = 0x80;

/// `BPF_FIB_LOOKUP_MARK` of `bpf_fib_lookup`.
const LOOKUP_BY_MARK: u64 = 1 << 5;

/// One thing that not every kernel can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// A word for machines, in kebab case.
    pub name: &'static str,
    /// Whether this kernel can do it.
    pub available: bool,
    /// What is used, as a short sentence for people.
    pub chosen: String,
    /// How the kernel says that it cannot; empty if it can.
    pub reason: String,
}

/// What was tried before programs are loaded, since it decides how.
#[derive(Debug)]
pub(crate) struct Probed {
    tcx: io::Result<()>,
    checksum: io::Result<()>,
    mark: io::Result<()>,
    scrub: io::Result<()>,
}

impl Probed {
    /// Asks the kernel, from within the network namespace of the calling thread.
    pub(crate) fn ask() -> Self {
        Self {
            tcx: tcx(),
            checksum: checksum(),
            mark: lookup_by_mark(),
            scrub: scrub::of_peers(),
        }
    }

    /// Whether programs can be attached by TCX links.
    pub(crate) fn has_tcx(&self) -> bool {
        self.tcx.is_ok()
    }

    /// What `bpf_l4_csum_replace` is told of packets of IPv6.
    pub(crate) fn checksum_flag(&self) -> u64 {
        if self.checksum.is_ok() {
            CHECKSUM_OF_IPV6
        } else {
            0
        }
    }

    /// Whether what is handed to the other end of a veth is for whoever is there.
    pub(crate) fn peers_scrub(&self) -> bool {
        self.scrub.is_ok()
    }

    /// All features, with those of the programs on sockets.
    pub(crate) fn list(&self, unavailable: &BTreeMap<SocketHook, String>) -> Vec<Feature> {
        let tcx = feature(
            "tcx",
            &self.tcx,
            "programs of uplinks are TCX links, and busy pods get a short way",
            "programs of uplinks are clsact filters, and busy pods get no short way",
        );
        let checksum = feature(
            "checksum-of-ipv6",
            &self.checksum,
            "checksums that hardware has summed up stay right when IPv6 is translated",
            "hardware's checksums of translated IPv6 packets are not kept; the kernel sums up itself",
        );
        let mark = feature(
            "routes-by-mark",
            &self.mark,
            "routes by mark decide which address a pod's new flow gets",
            "marks do not count where the address of a pod's new flow is chosen; rules by interface and prefix do",
        );
        let scrub = feature(
            "peers-scrub",
            &self.scrub,
            "what is handed to a pod is made its own by the kernel",
            "what is handed to a pod is made its own by our programs, with a call more for each packet",
        );
        vec![tcx, checksum, mark, scrub, sockets(unavailable)]
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
        "processes of the node reach hostports by all addresses of the node"
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

/// A kernel before 6.6, or one built without it, does not know the question.
fn tcx() -> io::Result<()> {
    match SchedClassifier::query_tcx("lo", TcAttachType::Ingress) {
        Ok(_) => Ok(()),
        Err(error) => match io_error(&error) {
            // The question is known, and there is nothing to tell.
            error if is(&error, Errno::ENOENT) => Ok(()),
            error => Err(error),
        },
    }
}

/// A flag that the helper does not know is an invalid argument, whatever the packet is.
fn checksum() -> io::Result<()> {
    told(raw::run_classifier(&call_of_checksum_helper(
        CHECKSUM_OF_IPV6,
    ))?)
}

/// A kernel before 6.10 takes the flag for an invalid argument; a later one finds that there is no address family 0.
fn lookup_by_mark() -> io::Result<()> {
    match told(raw::run_classifier(&call_of_lookup_helper(LOOKUP_BY_MARK))?) {
        Err(error) if is(&error, Errno::EAFNOSUPPORT) => Ok(()),
        told => told,
    }
}

/// What a helper has returned.
fn told(result: i32) -> io::Result<()> {
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
        word(MOVE, 2, 16),
        word(MOVE, 3, 0),
        word(MOVE, 4, 0),
        word(MOVE, 5, flags),
        word(CALL, 0, L4_CSUM_REPLACE),
        word(EXIT, 0, 0),
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
    let zero = |offset: i16| word(STORE_8_BYTES, FRAME | place(offset), 0);
    let zeros = (1..=LENGTH / 8).map(|number| zero(-8 * number));
    let call = [
        word(COPY, 2 | FRAME << 4, 0),
        word(ADD, 2, low_bits(-LENGTH)),
        word(MOVE, 3, low_bits(LENGTH)),
        word(MOVE, 4, flags),
        word(CALL, 0, FIB_LOOKUP),
        word(EXIT, 0, 0),
    ];
    zeros.chain(call).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_with_what_is_used_instead() {
        let probed = Probed {
            tcx: Err(Errno::EINVAL.into()),
            checksum: Ok(()),
            mark: Ok(()),
            scrub: Err(io::Error::other("it is not")),
        };
        assert!(!probed.has_tcx());
        assert!(!probed.peers_scrub());
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
        assert_eq!(of("socket-hooks"), Some(false));
        assert!(list.iter().all(|it| it.available == it.reason.is_empty()));
    }
}
