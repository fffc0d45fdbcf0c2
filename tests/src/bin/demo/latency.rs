//! Latency of ADD and DEL, from the start of the plugin to its exit.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Config, Mapping};

use crate::scenario::Scenario;
use crate::screen::Screen;

const PODS: u16 = 20;

pub(crate) fn show(screen: &mut Screen, scenario: &Scenario) -> Result<()> {
    screen.section("ADD and DEL of twenty pods with one hostport each, one after the other");
    let (mut adds, mut dels) = (Vec::new(), Vec::new());
    let mut pods = Vec::new();
    for number in 0..PODS {
        let mut pod = scenario.sandbox.pod(&format!("extra-{number}"))?;
        let port = Mapping::tcp(20_000 + number, 80);
        adds.push(pod.add_with(Config::new("1.1.0").publish(&[port]))?.took);
        pods.push(pod);
    }
    for pod in &pods {
        dels.push(pod.del()?.took);
        pod.machine.unbind()?;
    }
    screen.line("ADD", summary(adds));
    screen.line("DEL", summary(dels));
    Ok(())
}

/// Formats median and maximum.
pub(crate) fn summary(mut times: Vec<Duration>) -> Result<String> {
    times.sort_unstable();
    ensure!(!times.is_empty(), "there are no samples");
    let (half, last) = (times[times.len() / 2], times[times.len() - 1]);
    Ok(format!("p50 {half:.1?}, max {last:.1?}"))
}
