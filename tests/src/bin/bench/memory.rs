//! Resident memory of the agent: idle, with pods, and with flows. It excludes the BPF maps, which
//! `docs/benchmarks.md` lists.

use std::net::{SocketAddr, UdpSocket};

use anyhow::{Context as _, Result, ensure};
use e2e::{Pod, WORLD};

use crate::plan::Plan;
use crate::row::{Row, Rows, system};
use crate::topology::Viaduct;

/// Destination ports of one socket's flows.
const FLOWS_EACH: u16 = 2000;

pub(crate) fn measure(plan: &Plan) -> Result<Vec<Row>> {
    let mut rows = Rows::default();
    let (pods, flows) = plan.pick((50, 10_000_u32), (250, 100_000));
    plan.interleave("resident memory", plan.pick(1, 3), &[()], |()| {
        let viaduct = Viaduct::start(plan.company, 0)?;
        rows.push(
            Row::new("agent, idle", system::VIADUCT, "MiB"),
            resident(&viaduct)?,
        );
        let attached: Vec<_> = (0..pods)
            .map(|number| viaduct.attach(&format!("pod-{number}"), &[]))
            .collect::<Result<_>>()?;
        rows.push(
            Row::new(format!("agent, {pods} pods"), system::VIADUCT, "MiB"),
            resident(&viaduct)?,
        );
        open(&attached, flows)?;
        let name = format!("agent, {pods} pods, {flows} flows");
        rows.push(Row::new(name, system::VIADUCT, "MiB"), resident(&viaduct)?);
        // Queried after the measurement, because the response takes memory itself.
        let seen = viaduct.agent.get("/v1/flows?limit=1")?["matching"].as_u64();
        ensure!(
            seen >= Some(flows.into()),
            "the agent reports {seen:?} flows, expected {flows}"
        );
        Ok(())
    })?;
    Ok(rows.0)
}

/// Opens `flows` flows from the pods to the world, with one datagram each.
fn open(pods: &[Pod], flows: u32) -> Result<()> {
    let mut left = flows;
    for round in 0.. {
        for pod in pods {
            if left == 0 {
                return Ok(());
            }
            let socket = pod.machine.run(|| UdpSocket::bind("0.0.0.0:0"))?;
            let first = 1024 + round * FLOWS_EACH;
            for port in first..first + FLOWS_EACH.min(u16::try_from(left).unwrap_or(FLOWS_EACH)) {
                // No socket listens there: an ICMP error fails a later call.
                let _ = socket.send_to(b"flow", SocketAddr::new(WORLD[0], port));
                left -= 1;
            }
        }
    }
    Ok(())
}

fn resident(viaduct: &Viaduct) -> Result<f64> {
    let pid = viaduct.agent.pid().context("the agent runs")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kibibytes.context("no resident memory")? / 1024.0)
}
