//! Time per packet to a hostport, with few and with many hostports in the map. For information
//! only.
//!
//! The entry refers to a pod that does not exist, so processing ends after the lookup, without a
//! change of state.

use abi::maps::{self, programs};
use abi::{Hostport, HostportKey, Port, protocol};
use anyhow::{Context as _, Result};
use aya::Ebpf;
use aya::sys::{Stats, enable_stats};
use verdict::simulator::example;
use verdict::simulator::frame::{Body, Frame};

use crate::packet_time::{insert, nanoseconds};

/// The first published port.
const FIRST: u16 = 10_000;

/// Returns pairs of the number of hostports, and the nanoseconds per packet to the last of them.
pub(crate) fn measure(loaded: &mut Ebpf) -> Result<Vec<(u16, u64)>> {
    let _counting = enable_stats(Stats::RunTime).context("cannot count run times")?;
    let (node, remote) = (example::node()[0], example::remote()[0]);
    let gone = Hostport {
        address: example::no_pod()[0],
        port: Port::new(80),
        pod: example::POD,
        generation: u32::MAX,
        ..Hostport::default()
    };
    let mut published = 0;
    let mut costs = Vec::new();
    for hostports in [1, 100, 10_000] {
        for port in FIRST + published..FIRST + hostports {
            let key = HostportKey::wildcard(node.family(), Port::new(port), protocol::UDP);
            insert::<{ size_of::<HostportKey>() }, { size_of::<Hostport>() }>(
                loaded,
                maps::HOSTPORTS.name,
                &key,
                &gone,
            )?;
        }
        published = hostports;
        let body = Body::Udp(40_000, FIRST + hostports - 1, vec![0; 64]);
        let packet = Frame::new(remote, node, body)
            .from_to(example::mac(), abi::Mac::default())
            .bytes();
        costs.push((
            hostports,
            nanoseconds(loaded, programs::UPLINK_IN, &packet)?,
        ));
    }
    Ok(costs)
}
