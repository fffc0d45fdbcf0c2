//! ADD and DEL of many pods at once.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Result, bail};
use e2e::residue::assert_no_residue;
use e2e::{Pod, Residue, Sandbox};

const PODS: usize = 100;
const AT_A_TIME: usize = 16;

/// Calls `work` for each pod, [`AT_A_TIME`] of them in parallel, and collects the failures.
fn each(pods: &[Mutex<Pod>], work: impl Fn(&mut Pod) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let worker = || {
        while let Some(pod) = pods.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut pod = pod.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = work(&mut pod) {
                let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
                failures.push(format!("{error:#}"));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(worker);
        }
    });
    let failures = failures
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    if !failures.is_empty() {
        bail!("{} failed:\n{}", failures.len(), failures.join("\n"));
    }
    Ok(())
}

#[test]
fn a_hundred_pods_come_and_go_sixteen_at_a_time() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let before = Residue::of(&sandbox.node, &[])?;
    let pods = (0..PODS)
        .map(|number| Ok(Mutex::new(sandbox.pod(&format!("pod-{number}"))?)))
        .collect::<Result<Vec<_>>>()?;

    each(&pods, |pod| pod.add().map(drop))?;
    let mut seen = BTreeSet::new();
    for pod in &pods {
        let pod = pod.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(pod.addresses.len(), 2, "{:?}", pod.addresses);
        for address in &pod.addresses {
            assert!(seen.insert(*address), "{address} is assigned twice");
        }
    }
    let listed = agent.get("/v1/attachments")?;
    assert_eq!(listed.as_array().map(Vec::len), Some(PODS));

    each(&pods, |pod| pod.del().map(drop))?;
    assert_no_residue(&before, &Residue::of(&sandbox.node, &[])?)
}
