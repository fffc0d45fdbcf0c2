//! Records that are damaged, cannot be written, or are of another boot: no address is given twice,
//! and pods that live keep their network.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use e2e::residue::assert_no_residue;
use e2e::{Agent, Config, Connection, Echo, Machine, Mapping, Pod, Residue, Sandbox, WORLD};
use redb::TableDefinition;

const STATE: &str = "/run/viaduct";
const RECORDS: &str = "/run/viaduct/records.redb";
const JOURNAL: &str = "/run/viaduct/records.journal";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

const PORTS: [Mapping; 1] = [Mapping::tcp(8080, 80)];

fn read(node: &Machine, path: &str) -> Result<Vec<u8>> {
    let read = node.mounts().run(|| std::fs::read(path));
    read.with_context(|| format!("cannot read {path}"))
}

fn write(node: &Machine, path: &str, bytes: &[u8]) -> Result<()> {
    let written = node.mounts().run(|| {
        std::fs::create_dir_all(Path::new(path).parent().unwrap_or(Path::new("/")))?;
        std::fs::write(path, bytes)
    });
    written.with_context(|| format!("cannot write {path}"))
}

fn listed(agent: &Agent, path: &str) -> Result<usize> {
    let list = agent.get(path)?;
    Ok(list.as_array().context("a list")?.len())
}

/// Gives the records of an agent that has ended the format of releases whose journal has no head.
fn write_as_format_2(node: &Machine) -> Result<()> {
    const NUMBERS: TableDefinition<'static, &str, u32> = TableDefinition::new("numbers");
    node.mounts().run(|| {
        let transaction = redb::Database::open(RECORDS)?.begin_write()?;
        {
            let mut numbers = transaction.open_table(NUMBERS)?;
            numbers.insert("format", 2)?;
            numbers.remove("compaction")?;
        }
        transaction.commit()?;
        anyhow::Ok(())
    })?;
    let journal = read(node, JOURNAL)?;
    let head = journal.iter().position(|byte| *byte == b'\n');
    let lines = &journal[head.context("the journal has a head")? + 1..];
    ensure!(!lines.is_empty(), "the journal has no lines");
    write(node, JOURNAL, lines)
}

#[test]
fn records_of_the_previous_format_are_converted_and_live_pods_lose_nothing() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    let mut pods = Vec::new();
    let mut open = Vec::new();
    for name in ["one", "two", "three"] {
        let mut pod = sandbox.pod(name)?;
        let is_first = pods.is_empty();
        let ports: &[Mapping] = if is_first { &PORTS } else { &[] };
        pod.add_with(Config::new("1.1.0").publish(ports))?;
        let server = SocketAddr::new(WORLD[0], 7000);
        open.push(Connection::tcp(&pod.machine, server)?);
        pods.push(pod);
    }
    for round in 0..2 {
        agent.kill()?;
        write_as_format_2(node)?;
        agent.restart()?;
        let after = listed(&agent, "/v1/attachments")?;
        ensure!(after == pods.len(), "round {round}: {after} attachments");
        for pod in &pods {
            pod.check()?.success()?;
        }
        open.iter().try_for_each(Connection::exchange)?;
    }
    for pod in &pods {
        pod.del()?;
    }
    ensure!(listed(&agent, "/v1/attachments")? == 0);
    Ok(())
}

/// What may become of a file of records, by name.
fn damages(whole: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let overwritten = |from: usize, byte: u8| {
        let mut bytes = whole.to_vec();
        bytes[from..].fill(byte);
        bytes
    };
    vec![
        ("empty", Vec::new()),
        ("cut short", whole[..whole.len() / 2].to_vec()),
        ("something else", b"text".repeat(1024)),
        ("only its first page", overwritten(4096, 0x55)),
        ("zeroes behind its first page", overwritten(4096, 0)),
    ]
}

/// behaviour U1.
#[test]
fn damaged_records_beside_a_live_pod_are_refused_and_the_pod_keeps_its_network() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add_with(Config::new("1.1.0").publish(&PORTS))?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    let open = Connection::tcp(&pod.machine, SocketAddr::new(WORLD[0], 7000))?;
    agent.terminate()?;
    let whole = read(&sandbox.node, RECORDS)?;
    for (name, bytes) in damages(&whole) {
        write(&sandbox.node, RECORDS, &bytes)?;
        let refusal = agent.restart().err().context(name)?;
        let text = format!("{refusal:#}");
        for word in ["damaged", pod.host_link(), "keep their network"] {
            ensure!(text.contains(word), "{name}: no {word:?} in {text}");
        }
        ensure!(read(&sandbox.node, RECORDS)? == bytes, "{name}: changed");
        open.exchange().context(name)?;
    }
    write(&sandbox.node, RECORDS, &whole)?;
    agent.restart()?;
    pod.check()?.success()
}

#[test]
fn damaged_records_without_live_pods_are_put_aside_and_replaced() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add_with(Config::new("1.1.0").publish(&PORTS))?;
    agent.terminate()?;
    let whole = read(&sandbox.node, RECORDS)?;
    sandbox
        .node
        .call(&format!("ip link delete {}", pod.host_link()))?;
    for (number, (name, bytes)) in damages(&whole).into_iter().enumerate() {
        write(&sandbox.node, RECORDS, &bytes)?;
        agent.restart().context(name)?;
        ensure!(listed(&agent, "/v1/leases")? == 0, "{name}: a lease");
        let aside = read(&sandbox.node, "/run/viaduct/records.damaged")?;
        ensure!(aside == bytes, "{name}: something else was put aside");
        let mut next = sandbox.pod(&format!("next-{number}"))?;
        next.add_with(Config::new("1.1.0").publish(&PORTS))
            .context(name)?;
        next.check()?.success()?;
        next.del()?;
        agent.terminate()?;
    }
    Ok(())
}

/// An agent whose records are on a small file system of their own.
fn on_little_room() -> Result<(Sandbox, Agent)> {
    let sandbox = Sandbox::new()?;
    sandbox.node.call(&format!("mkdir -p {STATE}"))?;
    sandbox
        .node
        .call(&format!("mount -t tmpfs -o size=8m tmpfs {STATE}"))?;
    let agent = Agent::start(&sandbox.node, &[])?;
    Ok((sandbox, agent))
}

#[test]
fn an_add_on_a_full_disk_fails_without_a_trace_and_works_when_there_is_room() -> Result<()> {
    let (sandbox, mut agent) = on_little_room()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    let before = Residue::of(&sandbox.node, &[])?;
    let fill = format!("{STATE}/fill");
    let written = write(&sandbox.node, &fill, &vec![0; 16 << 20]);
    ensure!(written.is_err(), "there was room for everything");
    let mut failed = 0;
    for number in 0..200 {
        let mut next = sandbox.pod(&format!("next-{number}"))?;
        if next.add().is_err() {
            failed += 1;
            assert_no_residue(&before, &Residue::of(&sandbox.node, &[])?)?;
            break;
        }
        ensure!(number < 199, "the records never needed room");
        next.del()?;
    }
    ensure!(failed == 1, "no ADD failed");
    pod.check()?.success()?;
    sandbox.node.call(&format!("rm {fill}"))?;
    agent.kill()?;
    agent.restart()?;
    pod.check()?.success()?;
    let mut next = sandbox.pod("next")?;
    next.add()?;
    next.del()?;
    pod.del().map(drop)
}

#[test]
fn records_that_cannot_be_written_are_refused_at_the_start() -> Result<()> {
    let (sandbox, mut agent) = on_little_room()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    agent.terminate()?;
    let node = &sandbox.node;
    node.call(&format!("mount -o remount,ro {STATE}"))?;
    let refusal = format!("{:#}", agent.restart().err().context("it started")?);
    ensure!(refusal.contains("records.redb"), "{refusal}");
    node.call(&format!("mount -o remount,rw {STATE}"))?;
    agent.restart()?;
    pod.check()?.success()
}

/// A node behind a reboot: another boot id, a kernel with nothing of ours, and `records`.
fn rebooted(records: &[u8]) -> Result<(Sandbox, Residue)> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    write(
        node,
        "/run/boot-id",
        b"00000000-0000-4000-8000-000000000000\n",
    )?;
    node.call(&format!("mount --bind /run/boot-id {BOOT_ID}"))?;
    let mut agent = Agent::start(node, &[])?;
    let fresh = Residue::of(node, &[])?;
    agent.terminate()?;
    agent.run(&["--uninstall"])?;
    write(node, RECORDS, records)?;
    Ok((sandbox, fresh))
}

/// behaviour U1: on a disk, records outlive what they describe.
#[test]
fn a_reboot_releases_old_attachments_and_no_new_ones() -> Result<()> {
    let records = {
        let (sandbox, mut agent) = Sandbox::with_agent()?;
        let mut pods: Vec<Pod> = Vec::new();
        for name in ["a", "b", "c"] {
            pods.push(sandbox.pod(name)?);
        }
        pods[0].add_with(Config::new("1.1.0").publish(&PORTS))?;
        pods[1].add()?;
        pods[2].add()?;
        agent.kill()?;
        read(&sandbox.node, RECORDS)?
    };
    let (sandbox, fresh) = rebooted(&records)?;
    let mut agent = Agent::start(&sandbox.node, &[])?;
    for list in ["/v1/attachments", "/v1/leases", "/v1/hostports"] {
        ensure!(listed(&agent, list)? == 0, "{list}: {}", agent.get(list)?);
    }
    assert_no_residue(&fresh, &Residue::of(&sandbox.node, &[])?)?;
    // The runtime makes the same containers again.
    let mut pod = sandbox.pod("a")?;
    pod.add_with(Config::new("1.1.0").publish(&PORTS))?;
    agent.kill()?;
    agent.restart()?;
    pod.check()?.success()?;
    ensure!(
        listed(&agent, "/v1/leases")? == pod.addresses.len(),
        "not its leases"
    );
    Ok(())
}
