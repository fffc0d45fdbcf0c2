//! How long it takes to find a hostport among few and among many. For people, as the pace of the hooks is.
//!
//! The pod behind the port has gone, so each packet ends where the port has been found, and changes nothing.

use abi::maps::{self, programs};
use abi::{Hostport, HostportKey, Port, protocol};
use anyhow::{Context as _, Result};
use aya::Ebpf;
use aya::sys::{Stats, enable_stats};
use verdict::simulator::example;
use verdict::simulator::frame::{Body, Frame};

use crate::pace::{insert, pace};

/// The first port that is claimed.
const FIRST: u16 = 10_000;

/// How many ports are claimed, and the nanoseconds for a packet to the last of them.
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
    let mut claimed = 0;
    let mut costs = Vec::new();
    for claims in [1, 100, 10_000] {
        for port in FIRST + claimed..FIRST + claims {
            let key = HostportKey::wildcard(node.family(), Port::new(port), protocol::UDP);
            insert::<{ size_of::<HostportKey>() }, { size_of::<Hostport>() }>(
                loaded,
                maps::HOSTPORTS,
                &key,
                &gone,
            )?;
        }
        claimed = claims;
        let body = Body::Udp(40_000, FIRST + claims - 1, vec![0; 64]);
        let packet = Frame::new(remote, node, body).bytes();
        costs.push((claims, pace(loaded, programs::UPLINK_IN, &packet)?));
    }
    Ok(costs)
}
