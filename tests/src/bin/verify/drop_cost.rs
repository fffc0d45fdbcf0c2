//! Time per dropped packet: counted only, and while the agent listens. For information only.

use abi::DropSampling;
use abi::maps::{self, programs};
use anyhow::{Context as _, Result};
use aya::Ebpf;
use aya::sys::{Stats, enable_stats};
use verdict::simulator::example;
use verdict::simulator::frame::{Body, Frame};

use crate::packet_time::{nanoseconds, set};

/// Returns what the agent does, and the nanoseconds per packet that a pod sends with a forged MAC
/// address.
pub(crate) fn measure(loaded: &mut Ebpf) -> Result<[(&'static str, u64); 2]> {
    let _counting = enable_stats(Stats::RunTime).context("cannot count run times")?;
    let (pod, remote) = (example::pod()[0], example::remote()[0]);
    let forged = Frame::new(pod, remote, Body::Udp(40_000, 53, vec![0; 64]))
        .sent_by(example::other_mac())
        .bytes();
    let counted = nanoseconds(loaded, programs::FROM_POD, &forged)?;
    let listening = DropSampling {
        until: u64::MAX,
        since: 0,
        interval: 100,
    };
    set::<24>(loaded, maps::DROP_SAMPLING.name, 0, &listening)?;
    let reported = nanoseconds(loaded, programs::FROM_POD, &forged)?;
    Ok([("does not listen", counted), ("listens", reported)])
}
