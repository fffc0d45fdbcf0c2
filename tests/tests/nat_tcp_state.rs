//! TCP state of NAT flows: segments of a sender that is not on the path end nothing (RFC 5961),
//! those of the connection's own hosts do.

use std::net::{SocketAddr, TcpStream};

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Config, Echo, Machine, Mapping, NODE, Pod, RawSocket, Sandbox, TcpSegment, WORLD,
    tcp_echo, tcp_segment, tcp_source, until,
};
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::Value;

const SERVER: u16 = 7000;
const PUBLISHED: u16 = 8080;
/// The client's port of all connections.
const FROM: u16 = 41_000;
/// Exchanges: enough for entries in the flow cache.
const EXCHANGES: usize = 24;
/// Forged segments of each kind.
const FORGED: u32 = 50;

/// A node with a pod that publishes a port, a server in the pod and one in the world.
struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    pod: Pod,
    _echoes: [Echo; 2],
}

/// A connection by the node, and its tuple as the world sees it.
struct Open {
    stream: TcpStream,
    /// The host outside.
    outside: SocketAddr,
    /// The node's address and port.
    node: SocketAddr,
    /// The kind of its flow.
    kind: &'static str,
}

impl Scene {
    fn new(bypass: &str) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let agent = Agent::start(&sandbox.node, &["--bypass-netfilter", bypass])?;
        let mut pod = sandbox.pod("pod")?;
        pod.add_with(Config::new("1.1.0").publish(&Mapping::both(PUBLISHED, 80)))?;
        let echoes = [
            Echo::start(&pod.machine, 80)?,
            Echo::start(&sandbox.world, SERVER)?,
        ];
        Ok(Self {
            sandbox,
            agent,
            pod,
            _echoes: echoes,
        })
    }

    /// Opens a masqueraded connection, or one to the hostport.
    fn open(&self, family: usize, published: bool) -> Result<Open> {
        let (client, server): (&Machine, _) = if published {
            (
                &self.sandbox.world,
                SocketAddr::new(NODE[family], PUBLISHED),
            )
        } else {
            (&self.pod.machine, SocketAddr::new(WORLD[family], SERVER))
        };
        let (seen, stream) = tcp_source(client, FROM, server)?;
        for _ in 0..EXCHANGES {
            tcp_echo(&stream)?;
        }
        let (outside, node) = if published {
            (SocketAddr::new(WORLD[family], FROM), server)
        } else {
            (server, seen)
        };
        Ok(Open {
            stream,
            outside,
            node,
            kind: if published {
                "published"
            } else {
                "masqueraded"
            },
        })
    }

    /// Sends a segment from the world to the node.
    fn forge(&self, open: &Open, flags: u8, sequence: u32) -> Result<()> {
        let segment = TcpSegment {
            from: open.outside,
            to: open.node,
            sequence,
            acknowledgment: sequence.rotate_left(7),
            flags,
        };
        let socket = RawSocket::sender(&self.sandbox.world, open.node.ip())?;
        socket.send(&segment.packet()?, open.node.ip())
    }

    /// Returns the state of the flow of this kind with a host.
    fn state(&self, kind: &str, outside: SocketAddr) -> Result<String> {
        let view = self.agent.get(&format!("/v1/flows?port={FROM}"))?;
        let flows = view["flows"].as_array().context("no flows")?;
        let host = outside.ip().to_string();
        let is_ours = |flow: &&Value| flow["kind"] == kind && flow.to_string().contains(&host);
        let flow = flows.iter().find(is_ours).context("the flow is gone")?;
        Ok(flow["state"].as_str().unwrap_or_default().to_owned())
    }

    fn is_established(&self, open: &Open) -> Result<()> {
        let state = self.state(open.kind, open.outside)?;
        ensure!(state == "established", "the flow is {state}");
        Ok(())
    }

    fn becomes(&self, kind: &str, outside: SocketAddr, expected: &str) -> Result<()> {
        until(&format!("the flow is {expected}"), || {
            Ok((self.state(kind, outside)? == expected).then_some(()))
        })
    }
}

/// Forged segments with arbitrary sequence numbers leave the connection established, and it
/// continues.
fn forged_segments_end_nothing(bypass: &str) -> Result<()> {
    let scene = Scene::new(bypass)?;
    let kinds = [
        tcp_segment::RST,
        tcp_segment::RST | tcp_segment::ACK,
        tcp_segment::FIN | tcp_segment::ACK,
        tcp_segment::SYN,
    ];
    for family in [0, 1] {
        for published in [false, true] {
            let what = || format!("family {family}, hostport {published}");
            let open = scene.open(family, published)?;
            for flags in kinds {
                for number in 0..FORGED {
                    let sequence = number.wrapping_mul(0x9e37_79b9);
                    scene.forge(&open, flags, sequence)?;
                }
                scene.is_established(&open).with_context(what)?;
                tcp_echo(&open.stream).with_context(what)?;
            }
            for _ in 0..EXCHANGES {
                tcp_echo(&open.stream).with_context(what)?;
            }
            scene.is_established(&open).with_context(what)?;
            let Open {
                stream,
                outside,
                kind,
                ..
            } = open;
            reset(stream)?;
            scene.becomes(kind, outside, "reset").with_context(what)?;
        }
    }
    Ok(())
}

/// Closes a connection with a RST.
fn reset(stream: TcpStream) -> Result<()> {
    let at_once = linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(&stream, sockopt::Linger, &at_once)?;
    drop(stream);
    Ok(())
}

#[test]
fn forged_segments_end_no_connection_past_the_stack() -> Result<()> {
    forged_segments_end_nothing("always")
}

#[test]
fn forged_segments_end_no_connection_through_the_stack() -> Result<()> {
    forged_segments_end_nothing("never")
}

/// Both sides close after bulk data, most of which the flow cache has handled.
#[test]
fn a_closed_connection_is_closing_and_its_port_opens_another_one() -> Result<()> {
    let scene = Scene::new("always")?;
    for family in [0, 1] {
        for published in [false, true] {
            let Open {
                stream,
                outside,
                kind,
                ..
            } = scene.open(family, published)?;
            drop(stream);
            scene.becomes(kind, outside, "closing")?;
            // The client uses its port again.
            let again = scene.open(family, published)?;
            scene.is_established(&again)?;
            reset(again.stream)?;
            scene.becomes(kind, outside, "reset")?;
        }
    }
    Ok(())
}
