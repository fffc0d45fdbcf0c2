//! TCP connections opened and closed per second on one CPU, by the number of hostports.
//!
//! One thread connects, accepts and closes: the kernel completes the handshake within the connect
//! call. Clients connect to the hostport that was published last.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};

use crate::goals::Goal;
use crate::pinned;
use crate::plan::Plan;
use crate::row::{Row, Rows, system};
use crate::topology::{self, PORTS, Topology, Way};

/// Connections of one sample: few enough that no kernel table fills up over all rounds.
const CONNECTIONS: u32 = 100;

/// Name of these rows in families that compare Viaduct with itself.
pub(crate) const TITLE: &str = "connections, world → hostport";

/// Goals of the table of ratios in `docs/benchmarks.md`.
pub(crate) const GOALS: &[Goal] = &[
    Goal {
        subject: "world → hostport, 1000 hostports",
        other: system::LEGACY,
        bound: 2.5,
    },
    Goal {
        subject: "world → hostport, 1000 hostports",
        other: system::NFT,
        bound: 4.0,
    },
];

struct Server {
    system: &'static str,
    hostports: u16,
    listener: TcpListener,
    target: SocketAddr,
    client: e2e::Machine,
    /// Number of the next client address in the world.
    next: AtomicU16,
}

pub(crate) fn measure(plan: &Plan) -> Result<Vec<Row>> {
    let sizes = plan.pick(&[10, 1000][..], &[10, 100, 1000, 3000, 10_000][..]);
    let mut topologies: Vec<_> = topology::plain(plan.company)?
        .into_iter()
        .map(|it| (0, it))
        .collect();
    for hostports in sizes {
        let built = topology::translating(plan.company, *hostports)?;
        topologies.extend(built.into_iter().map(|it| (*hostports, it)));
    }
    measure_systems(plan, &topologies)
}

/// Measures these systems without other hostports, for a family that has other rows as well: `name`
/// is that of these.
pub(crate) fn measure_named(plan: &Plan, systems: Vec<Topology>, name: &str) -> Result<Vec<Row>> {
    let hostports = u16::try_from(PORTS.len())?;
    let systems: Vec<_> = systems.into_iter().map(|it| (hostports, it)).collect();
    let rows = measure_systems(plan, &systems)?.into_iter();
    let named = rows.map(|row| Row {
        name: name.to_owned(),
        ..row
    });
    Ok(named.collect())
}

/// Measures these systems, each with its number of hostports.
fn measure_systems(plan: &Plan, topologies: &[(u16, Topology)]) -> Result<Vec<Row>> {
    let servers: Vec<_> = topologies
        .iter()
        .map(|(hostports, it)| serve(it, *hostports))
        .collect::<Result<_>>()?;
    let mut rows = Rows::default();
    plan.interleave(
        "connect and close",
        plan.short_rounds(),
        &servers,
        |server| {
            let rate =
                pinned::run_realtime(pinned::last_cpu(), || server.rate()).with_context(|| {
                    format!("{} with {} hostports", server.system, server.hostports)
                })?;
            let row = Row::new(
                Way::WorldToHostport.name(),
                server.system,
                "connections per second",
            );
            rows.push(row.higher().at("hostports", server.hostports.into()), rate);
            Ok(())
        },
    )?;
    Ok(rows.0)
}

fn serve(topology: &Topology, hostports: u16) -> Result<Server> {
    let path = topology.path(Way::WorldToHostport);
    let listener = path.to.run(|| TcpListener::bind(path.serves(PORTS[1])))?;
    Ok(Server {
        system: topology.system,
        hostports,
        listener,
        target: path.target(PORTS[1]),
        client: path.from.clone(),
        next: AtomicU16::default(),
    })
}

impl Server {
    fn rate(&self) -> Result<f64> {
        let client = topology::client(self.next.fetch_add(1, Ordering::Relaxed));
        let client = SocketAddr::new(client, 0).into();
        // The sockets stay in the world's namespace, whichever thread uses them. Their creation is
        // not part of the measurement.
        let sockets = self.client.run(|| {
            let open = |_| {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
                // With the client's address bound, the port is still chosen at connect.
                setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
                socket.bind(&client)?;
                // On Linux the send timeout also applies to connect, without another system call.
                socket.set_write_timeout(Some(Duration::from_secs(3)))?;
                Ok(socket)
            };
            (0..CONNECTIONS)
                .map(open)
                .collect::<std::io::Result<Vec<_>>>()
        })?;
        let target = self.target.into();
        let start = Instant::now();
        for socket in sockets {
            socket.connect(&target)?;
            let (accepted, _) = self.listener.accept()?;
            drop::<TcpStream>(socket.into());
            drop(accepted);
        }
        Ok(f64::from(CONNECTIONS) / start.elapsed().as_secs_f64())
    }
}
