//! How long ADD and DEL take, from the start of the plugin to its end.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Config, Mapping};

use crate::cast::Cast;
use crate::screen::Screen;

const PODS: u16 = 20;

pub(crate) fn show(screen: &mut Screen, cast: &Cast) -> Result<()> {
    screen.section("ADD and DEL of twenty pods with a published port each, one after the other");
    let (mut adds, mut dels) = (Vec::new(), Vec::new());
    let mut pods = Vec::new();
    for number in 0..PODS {
        let mut pod = cast.sandbox.pod(&format!("extra-{number}"))?;
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

/// The middle and the worst of some times.
pub(crate) fn summary(mut times: Vec<Duration>) -> Result<String> {
    times.sort_unstable();
    ensure!(!times.is_empty(), "nothing was measured");
    let (half, last) = (times[times.len() / 2], times[times.len() - 1]);
    Ok(format!("p50 {half:.1?}, worst {last:.1?}"))
}
