//! Time until a changed limit takes effect on a connection that uses the full rate.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use e2e::{Machine, WORLD};

use super::MBIT;
use super::site::Site;
use crate::plan::Plan;
use crate::row::{Row, Rows};
use crate::topology::Viaduct;

const PORT: u16 = 7003;
const SLOW: u64 = 10 * MBIT;
const FAST: u64 = 100 * MBIT;
/// Duration of each limit.
const SPAN: Duration = Duration::from_secs(3);
/// Span over which a rate is computed.
const WINDOW: Duration = Duration::from_millis(100);
const STEP: Duration = Duration::from_millis(5);
/// Relative deviation, in both directions, that still counts as the limit's rate.
const TOLERANCE: f64 = 0.15;
/// Share of payload in the limited bytes; the rest is headers.
const PAYLOAD: f64 = 0.96;

pub(super) fn measure(plan: &Plan, sites: &[Site], rows: &mut Rows) -> Result<()> {
    let ours: Vec<_> = sites.iter().filter(|it| it.viaduct().is_some()).collect();
    plan.interleave("changed limit", plan.pick(1, 5), &ours, |site| {
        let viaduct = site.viaduct().context("only Viaduct can change limits")?;
        for (name, took) in changes(site, viaduct)? {
            let row = Row::new(name, site.system(), "ms");
            rows.push(row.within(0.0, 100.0), took);
        }
        Ok(())
    })
}

/// Lowers the limit, and raises it again; returns the milliseconds from each call to its effect.
fn changes(site: &Site, viaduct: &Viaduct) -> Result<Vec<(&'static str, f64)>> {
    let pod = site.pod(FAST)?;
    let (from, to) = connect(site, pod)?;
    let stop = AtomicBool::new(false);
    let received = AtomicU64::new(0);
    thread::scope(|scope| {
        let sending = scope.spawn(|| send(&from, &stop));
        let receiving = scope.spawn(|| receive(&to, &received));
        let took = (|| {
            thread::sleep(SPAN);
            let path = format!("/v1/attachments/{}/eth0/bandwidth", pod.name());
            let change = |rate: u64| -> Result<f64> {
                let changed = Instant::now();
                let body = format!(r#"{{"egress": "{rate}"}}"#);
                viaduct.agent.put(&path, &body)?;
                in_effect(&record(&received, changed), rate)
                    .with_context(|| format!("the limit of {rate} bit/s did not take effect"))
            };
            Ok(vec![
                ("100 → 10 Mbit/s under load, in effect after", change(SLOW)?),
                ("10 → 100 Mbit/s under load, in effect after", change(FAST)?),
            ])
        })();
        stop.store(true, Ordering::Relaxed);
        let sent = sending
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        from.shutdown(std::net::Shutdown::Both)?;
        let arrived = receiving
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        sent.context("the connection was lost")?;
        arrived.context("the connection was lost")?;
        took
    })
}

fn connect(site: &Site, pod: &Machine) -> Result<(TcpStream, TcpStream)> {
    let at = SocketAddr::new(WORLD[0], PORT);
    let listener = site.world().run(|| TcpListener::bind(at))?;
    let patience = Duration::from_secs(5);
    let from = site.in_container(|| pod.run(|| TcpStream::connect_timeout(&at, patience)))??;
    let (to, _) = listener.accept()?;
    from.set_write_timeout(Some(patience))?;
    to.set_read_timeout(Some(patience))?;
    Ok((from, to))
}

fn send(mut stream: &TcpStream, stop: &AtomicBool) -> Result<()> {
    let block = vec![7; 16 << 10];
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(&block)?;
    }
    Ok(())
}

fn receive(mut stream: &TcpStream, received: &AtomicU64) -> Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => received.fetch_add(length as u64, Ordering::Relaxed),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error.into()),
        };
    }
}

/// Records the number of received bytes over time, from the change on.
fn record(received: &AtomicU64, changed: Instant) -> Vec<(Duration, u64)> {
    let mut seen = Vec::new();
    while changed.elapsed() < SPAN {
        seen.push((changed.elapsed(), received.load(Ordering::Relaxed)));
        thread::sleep(STEP);
    }
    seen
}

/// Returns the milliseconds until the start of the first window with the expected rate.
#[expect(
    clippy::cast_precision_loss,
    reason = "bytes of some seconds are exact in a float"
)]
fn in_effect(seen: &[(Duration, u64)], rate: u64) -> Result<f64> {
    let whole = rate as f64 * PAYLOAD;
    let meets = |(at, bytes): &&(Duration, u64)| {
        let after = seen.iter().find(|(later, _)| *later >= *at + WINDOW);
        after.is_some_and(|(later, more)| {
            let got = (more - bytes) as f64 * 8.0 / later.saturating_sub(*at).as_secs_f64();
            (got / whole - 1.0).abs() <= TOLERANCE
        })
    };
    let first = seen.iter().find(meets).context("at no time")?;
    Ok(first.0.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_takes_effect_at_the_first_window_with_its_rate() -> Result<()> {
        // 100 Mbit/s for 50 ms, and 10 after that.
        let bytes = |ms: u64| match ms {
            0..50 => ms * 12_000,
            _ => 600_000 + (ms - 50) * 1_200,
        };
        let seen: Vec<_> = (0..1_000)
            .step_by(5)
            .map(|ms| (Duration::from_millis(ms), bytes(ms)))
            .collect();
        let took = in_effect(&seen, SLOW)?;
        assert!((45.0..=50.0).contains(&took), "{took}");
        assert!(in_effect(&seen, 2 * FAST).is_err());
        Ok(())
    }
}
