//! Latency of TCP request and response, one byte each, while the pod's own bulk flow uses its whole
//! limit.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::WORLD;

use super::site::Site;
use super::{Way, bulk, ways};
use crate::plan::Plan;
use crate::row::{Row, Rows};
use crate::statistics::quantile;

const PORT: u16 = 7002;
/// Pause between a response and the next request: without it, the requests are a bulk flow at low
/// rates.
const PAUSE: Duration = Duration::from_millis(10);
/// Fewest responses of a valid sample: the reference's queue of a second allows no more.
const FEWEST: usize = 5;
/// Timeout of a response.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn measure(plan: &Plan, sites: &[Site], rows: &mut Rows) -> Result<()> {
    for way in ways(plan) {
        let name = format!("{way}, request/response under bulk load");
        plan.interleave(&name, plan.pick(1, 3), sites, |site| {
            let waits = measure_one(site, way, plan.pick(3, 8))
                .with_context(|| format!("{name} through {}", site.system()))?;
            for (quantile_name, part) in [("p50", 0.5), ("p99", 0.99)] {
                let row = Row::new(format!("{name}, {quantile_name}"), site.system(), "ms");
                rows.push(row, quantile(&waits, part).unwrap_or(f64::NAN));
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Measures for `seconds`; returns the sorted latencies in milliseconds.
fn measure_one(site: &Site, way: Way, seconds: u32) -> Result<Vec<f64>> {
    let at = SocketAddr::new(WORLD[0], PORT);
    let listener = site.world().run(|| TcpListener::bind(at))?;
    let pod = site.pod(way.rate)?;
    let client = site.in_container(|| pod.run(|| TcpStream::connect_timeout(&at, PATIENCE)))??;
    let (server, _) = listener.accept()?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
    }
    thread::scope(|scope| {
        let answers = scope.spawn(move || answer(&server));
        let waits = bulk::under_load(site, way, seconds, || request(&client, seconds));
        drop(client);
        let answered = answers
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let mut waits = waits?;
        answered?;
        ensure!(waits.len() >= FEWEST, "only {} responses", waits.len());
        waits.sort_by(f64::total_cmp);
        Ok(waits)
    })
}

fn request(mut stream: &TcpStream, seconds: u32) -> Result<Vec<f64>> {
    let end = Instant::now() + Duration::from_secs(seconds.into());
    let mut byte = [0];
    let mut waits = Vec::new();
    while Instant::now() < end {
        let start = Instant::now();
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        waits.push(start.elapsed().as_secs_f64() * 1e3);
        thread::sleep(PAUSE);
    }
    Ok(waits)
}

/// Answers requests until the client closes the connection.
fn answer(mut stream: &TcpStream) -> Result<()> {
    let mut byte = [0];
    loop {
        match stream.read_exact(&mut byte) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            // A timeout while the client waits for its bulk flow.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => {
                read?;
                stream.write_all(&byte)?;
            }
        }
    }
}
