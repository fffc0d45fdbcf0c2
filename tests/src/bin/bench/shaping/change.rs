//! Another limit while a connection takes all that the old one allows: how soon it gets what the new one allows.

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
/// How long each limit holds.
const SPAN: Duration = Duration::from_secs(3);
/// A rate is what arrives in this time.
const WINDOW: Duration = Duration::from_millis(100);
const STEP: Duration = Duration::from_millis(5);
/// How far from the limit, in both directions, counts as at the limit.
const TOLERANCE: f64 = 0.15;
/// What a connection gets of a limit: the rest is headers.
const PAYLOAD: f64 = 0.96;

pub(super) fn measure(plan: &Plan, sites: &[Site], rows: &mut Rows) -> Result<()> {
    let ours: Vec<_> = sites.iter().filter(|it| it.viaduct().is_some()).collect();
    plan.interleave("another limit", plan.pick(1, 5), &ours, |site| {
        let viaduct = site.viaduct().context("only Viaduct changes limits")?;
        for (name, took) in changes(site, viaduct)? {
            let row = Row::new(name, site.system(), "ms");
            rows.push(row.within(0.0, 100.0), took);
        }
        Ok(())
    })
}

/// Slower, and fast again; how long after the call each was in effect.
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
                let asked = Instant::now();
                let body = format!(r#"{{"egress": "{rate}"}}"#);
                viaduct.agent.put(&path, &body)?;
                settled(&watch(&received, asked), rate)
                    .with_context(|| format!("{rate} bit/s never came into effect"))
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

/// When, after the change was asked for, how many bytes had arrived.
fn watch(received: &AtomicU64, asked: Instant) -> Vec<(Duration, u64)> {
    let mut seen = Vec::new();
    while asked.elapsed() < SPAN {
        seen.push((asked.elapsed(), received.load(Ordering::Relaxed)));
        thread::sleep(STEP);
    }
    seen
}

/// Milliseconds until a window begins in which the rate is met.
#[expect(
    clippy::cast_precision_loss,
    reason = "bytes of some seconds are exact in a float"
)]
fn settled(seen: &[(Duration, u64)], rate: u64) -> Result<f64> {
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
    fn a_limit_is_in_effect_when_a_window_meets_it() -> Result<()> {
        // 100 Mbit/s for 50 ms, and 10 after that.
        let bytes = |ms: u64| match ms {
            0..50 => ms * 12_000,
            _ => 600_000 + (ms - 50) * 1_200,
        };
        let seen: Vec<_> = (0..1_000)
            .step_by(5)
            .map(|ms| (Duration::from_millis(ms), bytes(ms)))
            .collect();
        let took = settled(&seen, SLOW)?;
        assert!((45.0..=50.0).contains(&took), "{took}");
        assert!(settled(&seen, 2 * FAST).is_err());
        Ok(())
    }
}
