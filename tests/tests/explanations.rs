//! Explanations against the loaded BPF object: random frames through `BPF_PROG_TEST_RUN`, and the
//! same frames explained from a copy of the object's own maps and of the kernel's own routes.
//!
//! Needs root. `VIADUCT_SEED` repeats a run. Fragments are left out: an explanation is about whole
//! packets, and its copy has no fragment tables.

#[path = "packets/bench.rs"]
#[expect(dead_code, reason = "another test uses the rest")]
mod bench;
#[path = "packets/object.rs"]
mod object;
#[path = "packets/random_frames.rs"]
mod random_frames;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use abi::{EndpointFlags, SettingsFlags};
use anyhow::{Context as _, Result, ensure};
use bench::{Bench, on_bench, on_machine_with};
use explain::{LinkFacts, Lookups, Node, Snapshot};
use kernel::{DatapathReader, NodeLookups};
use random_frames::{Dice, keep_flows, opposite, reflected, seed, send};
use steps::{ForwardTables, FoundRoute, FoundSocket, RouteDecision, RoutedPacket};
use verdict::Verdict;
use verdict::simulator::{Place, World, example};

/// Random nodes, each with tables of its own.
const NODES: u32 = 5;
/// Frames that are compared on each node.
const FRAMES: u32 = 2_000;
/// Capacity of the flow table: more than the frames of a node can fill, with two entries each.
const FLOW_ENTRIES: usize = 8_192;
/// Directory of the test's own bpffs in which the object's maps are pinned as an agent's.
const BPFFS: &str = "/sys/fs/bpf/explained";

#[derive(Debug)]
struct Kernel(Mutex<Opened>);

struct Opened(NodeLookups);

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Opened")
    }
}

impl Lookups for Kernel {
    fn route(&self, packet: &RoutedPacket) -> FoundRoute {
        let mut kernel = self.0.lock().expect("no lookup panics");
        kernel.0.route(packet).unwrap_or_else(|error| FoundRoute {
            decision: RouteDecision::Unreachable,
            route: error.to_string(),
        })
    }

    fn socket(&self, protocol: u8, source: SocketAddr, destination: SocketAddr) -> FoundSocket {
        let kernel = self.0.lock().expect("no lookup panics");
        kernel.0.socket(protocol, source, destination)
    }
}

/// Pins the object's maps where [`DatapathReader`] looks for those of an agent.
fn pin(bench: &mut Bench) -> Result<DatapathReader> {
    let directory = format!("{BPFFS}/v{}/maps", abi::ABI_VERSION);
    std::fs::create_dir_all(&directory)?;
    // Sections of constants have a dot in their names, and no pin.
    let maps = bench.object.loaded.maps();
    for (name, map) in maps.filter(|(name, _)| !name.contains('.')) {
        map.pin(Path::new(&directory).join(name))
            .context(name.to_owned())?;
    }
    Ok(DatapathReader::new(Path::new(BPFFS)))
}

/// What no frame changes: links, filter tables and routes.
struct Surroundings {
    links: BTreeMap<u32, LinkFacts>,
    filters: ForwardTables,
    lookups: Arc<Kernel>,
}

impl Surroundings {
    fn read(mac: abi::Mac) -> Result<Self> {
        let mut kernel = NodeLookups::open()?;
        let links = kernel.links()?.into_iter().map(|(name, link)| {
            let facts = LinkFacts {
                name: name.to_string(),
                mac,
                mtu: link.mtu,
            };
            (link.index, facts)
        });
        Ok(Self {
            links: links.collect(),
            filters: kernel.filters()?,
            lookups: Arc::new(Kernel(Mutex::new(Opened(kernel)))),
        })
    }

    /// Copies the node as it is now.
    fn node(&self, reader: &DatapathReader) -> Result<Node> {
        let tables = reader.read()?;
        ensure!(tables.is_consistent, "no agent writes the tables");
        Ok(Node::new(Snapshot {
            tables,
            links: self.links.clone(),
            pods: BTreeMap::new(),
            policies: BTreeMap::new(),
            subnets: BTreeMap::new(),
            filters: Some(self.filters.clone()),
            translations: None,
            lookups: self.lookups.clone(),
        }))
    }
}

/// Returns whether a packet, or one that it may quote, is a fragment or has a fragment header.
fn has_fragment(packet: &[u8]) -> bool {
    let is_v4_fragment = |at: usize| {
        let header = packet.get(at..at + 8);
        header.is_some_and(|it| it[0] >> 4 == 4 && (it[6] & 0x3f != 0 || it[7] != 0))
    };
    // Any byte that may be the number of the fragment header: some whole packets are left out, too.
    let is_v6 = |at: usize| packet.get(at).is_some_and(|first| first >> 4 == 6);
    let may_have_header = packet.contains(&44);
    is_v4_fragment(0)
        || (0..packet.len()).any(|at| at >= 28 && is_v4_fragment(at))
        || may_have_header && (0..packet.len()).any(is_v6)
}

/// Returns the example node with some of the tables that a node may have: other policies of its
/// pods, fewer checks, addresses, hostports and prefixes, other settings. Flow quotas are left out:
/// which flow gives way depends on chance, and on the order of a queue that cannot be read.
fn random_world(dice: &mut Dice) -> World {
    let mut world = example::world();
    let mut is_so = || dice.below(2) == 0;
    for flag in [
        SettingsFlags::BYPASS,
        SettingsFlags::EXIT_CHECK,
        SettingsFlags::DUPLICATES,
        SettingsFlags::ROUTES_BY_ADDRESS,
    ] {
        if is_so() {
            world.settings.flags |= flag;
        }
    }
    for slot in [example::POD, example::OTHER_POD] {
        let mut flags = world.pods[slot as usize].flags;
        for (flag, may_have) in [
            (EndpointFlags::MASQUERADE_V4, true),
            (EndpointFlags::MASQUERADE_V6, true),
            (EndpointFlags::SPOOF_CHECK, true),
            (EndpointFlags::SAME_BRIDGE, true),
            (EndpointFlags::INGRESS_ISOLATED, is_so()),
        ] {
            if is_so() && may_have {
                flags ^= flag;
            }
        }
        world.pods[slot as usize].flags = flags;
        for endpoint in world.endpoints.values_mut() {
            if endpoint.pod == slot {
                endpoint.flags = flags | endpoint.flags & EndpointFlags::PUBLISHED;
            }
        }
    }
    world.hostports.retain(|_, _| is_so());
    world.prefixes.retain(|_, _| is_so());
    world.locals.retain(|_| is_so());
    for uplink in world.uplinks.values_mut() {
        uplink.mtu = if is_so() { 1500 } else { 1280 };
    }
    world
}

/// Numbers of compared frames, and of those that were dropped and translated.
#[derive(Debug, Default)]
struct Compared {
    frames: u32,
    dropped: u32,
    changed: u32,
}

/// Compares random frames of a node: explained, and run by the loaded program.
fn compare(bench: &mut Bench, dice: &mut Dice, seed: u64, total: &mut Compared) -> Result<()> {
    keep_flows(bench)?;
    let reader = pin(bench)?;
    let around = Surroundings::read(bench.simulator.world.mac)?;
    let mut answer = None;
    let mut compared = 0;
    while compared < FRAMES {
        let (place, bytes) = answer.take().unwrap_or_else(|| send(dice));
        if has_fragment(&bytes[14..]) {
            continue;
        }
        let trace = around
            .node(&reader)?
            .run(place, example::INTERFACE, bytes.clone());
        let (verdict, after) = bench.run_object(place, &bytes, trace.run.verdict)?;
        let which = || {
            let steps = &trace.steps;
            format!("VIADUCT_SEED={seed}, {place:?}: {bytes:02x?}: {steps:#?}")
        };
        ensure!(trace.run.verdict == verdict, "{verdict:?}, {}", which());
        ensure!(trace.frame == after, "{after:02x?}, {}", which());
        if let Verdict::Drop(reason) = verdict {
            total.dropped += 1;
            let last = trace.steps.last().with_context(which)?;
            let is_named = last.ends && last.text.contains(reason.name());
            ensure!(is_named, "{}", which());
        }
        compared += 1;
        if after != bytes {
            total.changed += 1;
            if dice.below(2) == 0 {
                answer = Some((opposite(place), reflected(&after)));
            }
        }
    }
    total.frames += compared;
    Ok(())
}

#[test]
fn an_explanation_has_the_verdict_of_the_loaded_program_over_the_tables_of_random_nodes()
-> Result<()> {
    let seed = seed();
    let mut dice = Dice(seed);
    let mut total = Compared::default();
    for node in 0..NODES {
        // One node is the example itself: on it, frames take each of their ways.
        let mut world = if node == 0 {
            example::world()
        } else {
            random_world(&mut dice)
        };
        // The table is copied for each frame.
        world.flow_capacity = FLOW_ENTRIES;
        on_machine_with(world, |_, bench| {
            compare(bench, &mut dice, seed, &mut total)
        })?;
    }
    println!("seed {seed}: {total:?} on {NODES} nodes");
    let least = total.frames / 50;
    ensure!(total.dropped > least && total.changed > least);
    Ok(())
}

#[test]
fn a_copy_of_the_tables_has_what_was_written() -> Result<()> {
    on_bench(|bench| {
        let reader = pin(bench)?;
        let body = verdict::simulator::frame::Body::Udp(40_000, 53, vec![0; 40]);
        let frame =
            verdict::simulator::frame::Frame::new(example::pod()[0], example::remote()[0], body);
        bench.run(Place::UplinkOut, &frame.bytes())?;
        let tables = reader.read()?;
        let world = &bench.simulator.world;
        ensure!(tables.settings == world.settings);
        ensure!(tables.pods.len() == 2 && tables.pods[&example::POD] == world.pods[1]);
        ensure!(tables.endpoints == world.endpoints && tables.interfaces == world.interfaces);
        ensure!(tables.hostports == world.hostports && tables.networks == world.networks);
        ensure!(tables.uplinks == world.uplinks && tables.locals == world.locals);
        ensure!(tables.prefixes == world.prefixes, "{:?}", tables.prefixes);
        ensure!(tables.flows.len() == 2, "both directions of one flow");
        ensure!(
            tables.live == [(example::POD, 1)].into(),
            "{:?}",
            tables.live
        );
        Ok(())
    })
}
