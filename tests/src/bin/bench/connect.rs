//! Connections opened and closed again, everything on one CPU, as a function of how many hostports there are.
//!
//! One thread connects, accepts and closes: the kernel finishes a handshake within the system call that begins it. The
//! port that is dialled is the one that was published last.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};

use crate::pinned;
use crate::plan::Plan;
use crate::promise::Promise;
use crate::row::{Row, Rows, system};
use crate::topology::{self, PORTS, Topology, Way};

/// Connections of one sample: few enough that no table of the kernel fills up over all rounds.
const CONNECTIONS: u32 = 100;

/// As the table of ratios in `docs/benchmarks.md`.
pub(crate) const PROMISES: &[Promise] = &[
    Promise {
        subject: "world → hostport, 1000 hostports",
        other: system::LEGACY,
        bound: 2.5,
    },
    Promise {
        subject: "world → hostport, 1000 hostports",
        other: system::NFT,
        bound: 4.0,
    },
];

struct Server {
    system: &'static str,
    hostports: u16,
    listener: TcpListener,
    dial: SocketAddr,
    client: e2e::Machine,
    /// Which of the world's clients dials next.
    next: AtomicU16,
}

pub(crate) fn measure(plan: &Plan) -> Result<Vec<Row>> {
    let sizes = plan.pick(&[10, 1000][..], &[10, 100, 1000, 3000, 10_000][..]);
    let mut topologies: Vec<_> = topology::plain()?.into_iter().map(|it| (0, it)).collect();
    for hostports in sizes {
        let built = topology::translating(*hostports)?;
        topologies.extend(built.into_iter().map(|it| (*hostports, it)));
    }
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
                pinned::alone_on(pinned::the_one(), || server.rate()).with_context(|| {
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
        dial: path.dials(PORTS[1]),
        client: path.from.clone(),
        next: AtomicU16::default(),
    })
}

impl Server {
    fn rate(&self) -> Result<f64> {
        let client = topology::client(self.next.fetch_add(1, Ordering::Relaxed));
        let client = SocketAddr::new(client, 0).into();
        // Sockets belong to the world, whatever thread uses them; making them is no part of the way.
        let sockets = self.client.run(|| {
            let open = |_| {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
                // As one that binds to nothing, it gets its port when it connects.
                setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
                socket.bind(&client)?;
                // One that bounds `connect` as well, without calls of its own for each.
                socket.set_write_timeout(Some(Duration::from_secs(3)))?;
                Ok(socket)
            };
            (0..CONNECTIONS)
                .map(open)
                .collect::<std::io::Result<Vec<_>>>()
        })?;
        let dial = self.dial.into();
        let start = Instant::now();
        for socket in sockets {
            socket.connect(&dial)?;
            let (accepted, _) = self.listener.accept()?;
            drop::<TcpStream>(socket.into());
            drop(accepted);
        }
        Ok(f64::from(CONNECTIONS) / start.elapsed().as_secs_f64())
    }
}
