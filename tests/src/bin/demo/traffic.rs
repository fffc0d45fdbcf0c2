//! The agent's counters.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::scenario::Scenario;
use crate::screen::Screen;

pub(crate) fn show(screen: &mut Screen, scenario: &Scenario) -> Result<()> {
    screen.section("Counters");
    let attachments = scenario.agent.get("/v1/attachments")?;
    for attachment in attachments.as_array().into_iter().flatten() {
        let name = attachment["containerID"].as_str().unwrap_or_default();
        screen.line(name, counted(&attachment["counters"]));
    }
    let node = scenario.agent.get("/v1/counters")?;
    screen.line("packets dropped, by reason", drops(&node));
    screen.line("viaductctl status", health(&scenario.agent.ctl("status")?));
    screen.note(scenario.agent.ctl("list")?);
    Ok(())
}

fn health(status: &str) -> Result<String> {
    let line = status.lines().find(|line| line.starts_with("Health"));
    let health = line
        .context("no line `Health`")?
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    ensure!(health == "Health good", "{status}");
    Ok(health)
}

fn counted(counters: &Value) -> Result<String> {
    let number = |key: &str| {
        counters[key]
            .as_u64()
            .with_context(|| format!("no {key} in {counters}"))
    };
    let (received, sent) = (number("rx_packets")?, number("tx_packets")?);
    ensure!(
        received > 0 && sent > 0,
        "{received} packets received, {sent} sent"
    );
    Ok(format!(
        "{received} packets received, {sent} sent, {} flows",
        number("new_flows")?
    ))
}

fn drops(counters: &Value) -> Result<String> {
    let reasons = counters["drops"].as_object().context("no list of drops")?;
    let counted = reasons
        .iter()
        .filter(|(_, count)| count.as_u64() != Some(0))
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect::<Vec<_>>();
    if counted.is_empty() {
        return Ok("none".to_owned());
    }
    Ok(counted.join(", "))
}
