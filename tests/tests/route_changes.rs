//! Established flows follow changes of routes, routing rules and neighbours: at once while an agent
//! reports them to the programs (decision 117), and after a few jiffies without one.

use std::net::{SocketAddr, UdpSocket};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{
    Agent, Config, Echo, Pod, Sandbox, UPLINK, WORLD, udp_gets_no_answer, udp_seen_as, udp_source,
    until,
};

const PORT: u16 = 7000;
/// Requests after which the flow's verdicts are cached.
const REQUESTS: usize = 50;
/// Times that each change is made.
const TIMES: usize = 7;
/// Packets, one in a millisecond, that may follow an old route. Without reports, cached verdicts
/// last for 80 to 1,000 milliseconds after the last lookup.
const LATE: usize = 40;
/// Packets that are too many in any case.
const MOST_LATE: usize = 20_000;

struct Node {
    sandbox: Sandbox,
    agent: Agent,
    pod: Pod,
    _server: Echo,
}

/// A change after which the world gets no packets of the pod, and its reverse.
struct Change {
    breaks: String,
    restores: String,
}

fn changes() -> [Change; 3] {
    let world = WORLD[0];
    [
        Change {
            breaks: format!(
                "ip neigh replace {world} lladdr 02:00:00:00:00:99 dev {UPLINK} nud permanent"
            ),
            restores: format!("ip neigh del {world} dev {UPLINK}"),
        },
        Change {
            breaks: format!("ip route add blackhole {world}"),
            restores: format!("ip route del blackhole {world}"),
        },
        Change {
            breaks: format!("ip rule add to {world} blackhole"),
            restores: format!("ip rule del to {world} blackhole"),
        },
    ]
}

impl Node {
    fn new() -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let agent = Agent::start(&sandbox.node, &[])?;
        let mut pod = sandbox.pod("pod")?;
        pod.add_with(Config::new("1.1.0"))?.success()?;
        let server = Echo::start(&sandbox.world, PORT)?;
        until("the fast path is active", || {
            let status = agent.get("/v1/status")?;
            Ok((status["bypass"]["active"] == true).then_some(()))
        })?;
        Ok(Self {
            sandbox,
            agent,
            pod,
            _server: server,
        })
    }

    fn client(&self) -> Result<UdpSocket> {
        let world = SocketAddr::new(WORLD[0], PORT);
        Ok(udp_source(&self.pod.machine, 0, world)?.1)
    }

    /// Makes a change while the flow's verdicts are cached, and reverts it when the flow has
    /// followed. Returns the number of packets until then.
    fn follow(&self, socket: &UdpSocket, change: &Change) -> Result<usize> {
        for _ in 0..REQUESTS {
            udp_seen_as(socket)?;
        }
        self.sandbox.node.call(&change.breaks)?;
        let mut late = 0;
        while !udp_gets_no_answer(socket)? {
            late += 1;
            ensure!(late < MOST_LATE, "{}: no effect", change.breaks);
            sleep(Duration::from_millis(1));
        }
        self.sandbox.node.call(&change.restores)?;
        until("the flow continues", || Ok(udp_seen_as(socket).ok()))?;
        Ok(late)
    }
}

#[test]
fn an_established_flow_follows_a_changed_route_and_neighbour_at_once() -> Result<()> {
    let node = Node::new()?;
    let socket = node.client()?;
    for change in changes() {
        let mut late = [0; TIMES];
        for count in &mut late {
            *count = node.follow(&socket, &change)?;
        }
        late.sort_unstable();
        let median = late[TIMES / 2];
        ensure!(median <= LATE, "{}: {late:?}", change.breaks);
    }
    Ok(())
}

#[test]
fn an_established_flow_follows_a_changed_route_and_neighbour_without_an_agent() -> Result<()> {
    let mut node = Node::new()?;
    let socket = node.client()?;
    node.agent.kill()?;
    for change in changes() {
        node.follow(&socket, &change)?;
    }
    Ok(())
}
