//! Time of each hook for a packet of an established flow on this machine. For information only.
//!
//! Packets and map contents are those of the simulator's example. The kernel's statistics
//! (`BPF_ENABLE_STATS`) include the programs alone, not the test-run call.

use std::collections::BTreeMap;

use abi::maps::{self, programs};
use anyhow::{Context as _, Result, anyhow};
use aya::Ebpf;
use aya::maps::{Array, HashMap, LpmTrie, MapData, lpm_trie};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use aya::sys::{Stats, enable_stats};
use verdict::simulator::World;
use verdict::simulator::example;
use verdict::simulator::frame::{Body, Frame};
use zerocopy::{Immutable, IntoBytes};

/// Number of packets for each hook: enough for warm caches and a stable mean.
const PACKETS: u64 = 20_000;

/// Returns the nanoseconds per packet, by program.
pub(crate) fn measure(loaded: &mut Ebpf) -> Result<BTreeMap<String, u64>> {
    fill(loaded, &example::world())?;
    let (pod, node, remote) = (example::pod()[0], example::node()[0], example::remote()[0]);
    let query = Body::Udp(40_000, 53, vec![0; 64]);
    let reply = Body::Udp(53, 40_000, vec![0; 64]);
    let out = Frame::new(pod, remote, query)
        .sent_by(example::mac())
        .bytes();
    // Packets arrive at the loopback, whose MAC address is zero.
    let back = Frame::new(remote, node, reply.clone())
        .from_to(example::mac(), abi::Mac::default())
        .bytes();
    let inside = Frame::new(remote, pod, reply).bytes();
    let hooks = [
        (programs::UPLINK_OUT, &out),
        (programs::UPLINK_IN, &back),
        (programs::FROM_POD, &out),
        (programs::TO_POD, &inside),
    ];
    let _counting = enable_stats(Stats::RunTime).context("cannot count run times")?;
    let mut times = BTreeMap::new();
    for (name, packet) in hooks {
        times.insert(name.to_owned(), nanoseconds(loaded, name, packet)?);
    }
    Ok(times)
}

/// Returns the mean nanoseconds per packet of a program. Each packet is a test run of its own: with
/// the kernel's repetition, each run would get the packet that the previous one has rewritten.
pub(crate) fn nanoseconds(loaded: &mut Ebpf, name: &str, packet: &[u8]) -> Result<u64> {
    let program = loaded.program_mut(name);
    let program: &mut SchedClassifier = program
        .with_context(|| format!("the object has no program {name}"))?
        .try_into()?;
    let before = program.info()?;
    for _ in 0..PACKETS {
        let mut options = TestRunOptions::new();
        options.data_in = Some(packet);
        program.test_run(options)?;
    }
    let after = program.info()?;
    let time = after.run_time().saturating_sub(before.run_time());
    let runs = after.run_count().saturating_sub(before.run_count());
    let time = u64::try_from(time.as_nanos())?;
    Ok(time.checked_div(runs).unwrap_or(0))
}

fn fill(loaded: &mut Ebpf, world: &World) -> Result<()> {
    set::<64>(loaded, maps::SETTINGS.name, 0, &world.settings)?;
    for (slot, pod) in (0..).zip(&world.pods).filter(|(_, pod)| pod.interface != 0) {
        set::<64>(loaded, maps::PODS.name, slot, pod)?;
    }
    for (interface, of) in &world.interfaces {
        insert::<4, 8>(loaded, maps::INTERFACES.name, interface, of)?;
    }
    for (address, endpoint) in &world.endpoints {
        insert::<16, 24>(loaded, maps::ENDPOINTS.name, address, endpoint)?;
    }
    for (interface, uplink) in &world.uplinks {
        insert::<4, 208>(loaded, maps::UPLINKS.name, interface, uplink)?;
    }
    for address in &world.locals {
        insert::<16, 4>(loaded, maps::LOCALS.name, address, &1_u32)?;
    }
    for (prefix, class) in &world.prefixes {
        let mut map =
            LpmTrie::<&mut MapData, [u8; 16], u32>::try_from(map(loaded, maps::PREFIXES.name)?)?;
        let key = lpm_trie::Key::new(prefix.prefix_len, prefix.address.bytes());
        map.insert(&key, *class, 0)?;
    }
    Ok(())
}

pub(crate) fn insert<const K: usize, const V: usize>(
    loaded: &mut Ebpf,
    name: &str,
    key: &(impl IntoBytes + Immutable),
    value: &(impl IntoBytes + Immutable),
) -> Result<()> {
    let mut map = HashMap::<&mut MapData, [u8; K], [u8; V]>::try_from(map(loaded, name)?)?;
    Ok(map.insert(array(key)?, array(value)?, 0)?)
}

pub(crate) fn set<const V: usize>(
    loaded: &mut Ebpf,
    name: &str,
    index: u32,
    value: &(impl IntoBytes + Immutable),
) -> Result<()> {
    let mut map = Array::<&mut MapData, [u8; V]>::try_from(map(loaded, name)?)?;
    Ok(map.set(index, array::<V>(value)?, 0)?)
}

fn map<'a>(loaded: &'a mut Ebpf, name: &str) -> Result<&'a mut aya::maps::Map> {
    let map = loaded.map_mut(name);
    map.with_context(|| format!("the object has no map {name}"))
}

fn array<const N: usize>(value: &(impl IntoBytes + Immutable)) -> Result<[u8; N]> {
    let bytes = value.as_bytes().try_into();
    bytes.map_err(|_| anyhow!("the layout's size differs from the map's"))
}
