//! What is told to those who send, so that limits have nothing to drop: a pod's own sockets their pace, and senders far
//! away the window of whom they send to.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{Agent, Iperf, Machine, Sandbox, WORLD, measure_in, skipped};

const PORT: u16 = 7000;
/// How long a packet is under way to a world that is far away; half of a round trip.
const FAR: Duration = Duration::from_millis(10);

fn at(address: IpAddr) -> SocketAddr {
    SocketAddr::new(address, PORT)
}

/// Whether sockets can be told anything here; says so where they cannot.
fn tells(agent: &Agent) -> Result<bool> {
    if agent.cgroup().is_none() {
        skipped("no cgroup2");
        return Ok(false);
    }
    let paces = agent.get("/v1/status")?["shaper"]["paces"] == true;
    if !paces {
        skipped("sockets cannot be paced");
    }
    Ok(paces)
}

/// What a TCP socket of the pod, in a container's cgroup, is told by getsockopt, in bytes per second: as soon as it is
/// connected, and when so many bytes as the last argument says have arrived.
const ASK_PACE: &str = "\
import fcntl, os, socket, sys
open(os.path.join(sys.argv[1], 'cgroup.procs'), 'w').write('0')
stream = socket.create_connection((sys.argv[2], int(sys.argv[3])), 3)
def pace(): return stream.getsockopt(socket.SOL_SOCKET, 47) & 0xffffffff
def waiting(): return int.from_bytes(fcntl.ioctl(stream, 0x5411, bytes(4)), sys.byteorder)
first = pace()
stream.sendall(bytes(int(sys.argv[4])))
while waiting(): pass
print(first, pace())";

/// The other half of enforcing: a socket that sends no faster loses nothing to the bucket. The burst is its own before.
#[test]
fn a_socket_of_the_pod_is_told_the_pace_of_its_limit() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    if !tells(&agent)? {
        return Ok(());
    }
    let cgroup = agent.cgroup().context("a cgroup")?.display().to_string();
    let pod = sandbox.limited("pod", 0, 800_000)?;
    let other = sandbox.limited("other", 0, 0)?;
    for (number, world) in WORLD.into_iter().enumerate() {
        let listener = sandbox.world.run(|| TcpListener::bind(at(world)))?;
        let paces = |machine: &Machine, bytes: &str| -> Result<Vec<u64>> {
            let (address, port) = (world.to_string(), PORT.to_string());
            let words = ["python3", "-c", ASK_PACE, &cgroup, &address, &port, bytes];
            let printed = machine.call_words(&words)?;
            let numbers = printed.split_whitespace().map(str::parse);
            Ok(numbers.collect::<Result<_, _>>()?)
        };
        let none = u64::from(u32::MAX);
        // As much payload as the limit leaves with headers of this family; a little goes by the burst.
        let pace = [96_000, 95_000][number];
        ensure!(paces(&pod.machine, "60000")? == [none, pace]);
        ensure!(
            paces(&other.machine, "60000")? == [none, none],
            "nothing is limited"
        );
        drop(listener);
    }
    Ok(())
}

/// Packets of three seconds that the limit of a pod drops, of a sender far away that sends as fast as TCP lets it.
fn dropped(agent: &Agent, sandbox: &Sandbox, world: IpAddr) -> Result<u64> {
    let pod = sandbox.limited(&format!("pod-{}", world.is_ipv4()), 8_000_000, 0)?;
    let _server = Iperf::serve(&sandbox.world, PORT)?;
    let options = "-R -n 3M -C cubic";
    measure_in(agent.cgroup(), &pod.machine, world, PORT, options)?;
    let dropped = agent.limits(&pod)?["ingress"]["dropped_packets"].as_u64();
    dropped.context("no drops are shown")
}

/// Nobody on this node can pace them, but whom they send to can: by its window.
#[test]
fn a_sender_far_away_loses_nothing_to_the_limit_of_whom_it_sends_to() -> Result<()> {
    for shaper in ["pace", "police"] {
        let sandbox = Sandbox::distant(FAR)?;
        let agent = Agent::start(&sandbox.node, &["--shaper", shaper])?;
        let is_told = shaper == "pace";
        if is_told && !tells(&agent)? {
            return Ok(());
        }
        for world in WORLD {
            let dropped = dropped(&agent, &sandbox, world)?;
            ensure!(
                (dropped == 0) == is_told,
                "{shaper}: {dropped} of {world}'s packets were dropped"
            );
        }
    }
    Ok(())
}
