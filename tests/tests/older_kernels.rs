//! Kernels that lack what others have: the agent names it, and what it does instead, or does not
//! start.

use anyhow::{Context as _, Result, ensure};
use e2e::{Agent, Sandbox, chooses_bind_errors, keeps_departure_times, skipped, walks_over_maps};

#[test]
fn the_status_names_what_this_kernel_lacks_and_what_replaces_it() -> Result<()> {
    if !walks_over_maps() {
        skipped("bpf_for_each_map_elem");
        return Ok(());
    }
    let (_sandbox, agent) = Sandbox::with_agent()?;
    let status = agent.get("/v1/status")?;
    let features = status["features"].as_array().context("features")?;
    for (name, available, fallback) in [
        ("departure-times", keeps_departure_times(), "policing"),
        ("bind-errors", chooses_bind_errors(), "EPERM"),
    ] {
        let listed = (features.iter())
            .find(|it| it["name"] == name)
            .with_context(|| format!("{name}: {status}"))?;
        assert_eq!(listed["available"], available, "{listed}");
        let chosen = listed["chosen"].as_str().context("a sentence")?;
        ensure!(chosen.contains(fallback) != available, "{listed}");
        let reason = listed["reason"].as_str().unwrap_or_default();
        assert_eq!(reason.is_empty(), available, "{listed}");
    }
    Ok(())
}

/// `cargo xtask vm 5.10 --only older_kernels` boots a kernel that is refused.
#[test]
fn a_kernel_without_what_the_programs_need_is_refused_and_nothing_is_left() -> Result<()> {
    if walks_over_maps() {
        skipped("a kernel before 5.13");
        return Ok(());
    }
    let sandbox = Sandbox::new()?;
    let error = match Agent::start(&sandbox.node, &[]) {
        Ok(_) => anyhow::bail!("the agent serves"),
        Err(error) => format!("{error:#}"),
    };
    ensure!(
        error.contains("this kernel has no bpf_for_each_map_elem: Viaduct needs Linux 5.15"),
        "{error}"
    );
    let pins = sandbox.node.call("find /sys/fs/bpf -mindepth 1")?;
    assert_eq!(pins, "");
    ensure!(sandbox.node.call("ip link show cbr0").is_err(), "a bridge");
    Ok(())
}
