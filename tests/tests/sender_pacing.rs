//! Pacing of TCP senders, so that limits have nothing to drop: `SO_MAX_PACING_RATE` on local
//! sockets of limited pods, and a clamped receive window that limited pods advertise to remote
//! senders.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{Agent, Iperf, Machine, Sandbox, WORLD, measure_in, skipped};

const PORT: u16 = 7000;
/// One-way delay to a remote world; half of a round trip.
const FAR: Duration = Duration::from_millis(10);

fn at(address: IpAddr) -> SocketAddr {
    SocketAddr::new(address, PORT)
}

/// Returns whether sockets can be paced on this machine; reports the test as skipped otherwise.
fn can_pace(agent: &Agent) -> Result<bool> {
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

/// Prints `SO_MAX_PACING_RATE` of a TCP socket of the pod, in a container's cgroup, in bytes per
/// second: right after connecting, and after as many bytes as the last argument says have arrived.
const PRINT_PACE: &str = "\
import fcntl, os, socket, sys
open(os.path.join(sys.argv[1], 'cgroup.procs'), 'w').write('0')
stream = socket.create_connection((sys.argv[2], int(sys.argv[3])), 3)
def pace(): return stream.getsockopt(socket.SOL_SOCKET, 47) & 0xffffffff
def waiting(): return int.from_bytes(fcntl.ioctl(stream, 0x5411, bytes(4)), sys.byteorder)
first = pace()
stream.sendall(bytes(int(sys.argv[4])))
while waiting(): pass
print(first, pace())";

/// A socket that is paced at the limit loses nothing to the bucket. Within the burst it is not
/// paced.
#[test]
fn a_pods_tcp_socket_has_the_pacing_rate_of_its_limit() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    if !can_pace(&agent)? {
        return Ok(());
    }
    let cgroup = agent.cgroup().context("a cgroup")?.display().to_string();
    let pod = sandbox.limited("pod", 0, 800_000)?;
    let other = sandbox.limited("other", 0, 0)?;
    for (number, world) in WORLD.into_iter().enumerate() {
        let listener = sandbox.world.run(|| TcpListener::bind(at(world)))?;
        let paces = |machine: &Machine, bytes: &str| -> Result<Vec<u64>> {
            let (address, port) = (world.to_string(), PORT.to_string());
            let words = ["python3", "-c", PRINT_PACE, &cgroup, &address, &port, bytes];
            let printed = machine.call_words(&words)?;
            let numbers = printed.split_whitespace().map(str::parse);
            Ok(numbers.collect::<Result<_, _>>()?)
        };
        let none = u64::from(u32::MAX);
        // The payload rate within the limit, without the headers of this family; the burst passes
        // first.
        let pace = [96_000, 95_000][number];
        ensure!(paces(&pod.machine, "60000")? == [none, pace]);
        ensure!(
            paces(&other.machine, "60000")? == [none, none],
            "an unlimited pod is paced"
        );
        drop(listener);
    }
    Ok(())
}

/// Returns how many packets of a 3 MB download from a remote sender the pod's limit drops.
fn dropped(agent: &Agent, sandbox: &Sandbox, world: IpAddr) -> Result<u64> {
    let pod = sandbox.limited(&format!("pod-{}", world.is_ipv4()), 8_000_000, 0)?;
    let _server = Iperf::serve(&sandbox.world, PORT)?;
    let options = "-R -n 3M -C cubic";
    measure_in(agent.cgroup(), &pod.machine, world, PORT, options)?;
    let dropped = agent.limits(&pod)?["ingress"]["dropped_packets"].as_u64();
    dropped.context("the limit has no drop counter")
}

/// This node cannot pace remote senders; the receiving pod limits them by its advertised window.
#[test]
fn a_remote_tcp_sender_loses_nothing_to_a_pods_ingress_limit() -> Result<()> {
    for shaper in ["pace", "police"] {
        let sandbox = Sandbox::with_delay(FAR)?;
        let agent = Agent::start(&sandbox.node, &["--shaper", shaper])?;
        let is_paced = shaper == "pace";
        if is_paced && !can_pace(&agent)? {
            return Ok(());
        }
        for world in WORLD {
            let dropped = dropped(&agent, &sandbox, world)?;
            ensure!(
                (dropped == 0) == is_paced,
                "{shaper}: {dropped} of {world}'s packets were dropped"
            );
        }
    }
    Ok(())
}
