//! Hostile amounts: many requests for large responses, and an engine that does not go on. The
//! agent's memory is bounded, and other requests are answered meanwhile.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, Result, ensure};
use e2e::{Agent, Machine, Pod, Process, SOCKET, Sandbox, Verb, WORLD, deadline, until};

/// Flows of each pod, below its quota.
const FLOWS_PER_POD: usize = 3_500;
/// Ports of the servers in the world, one for each pod.
const SERVERS: [u16; 3] = [7001, 7002, 7003];

/// Starts servers whose queues hold all connections of a pod each. They accept none: the kernel
/// completes the handshakes.
fn start_servers(world: &Machine) -> Result<Process> {
    world.sysctl("core/somaxconn", &(2 * FLOWS_PER_POD).to_string())?;
    let script = format!(
        "import socket, time
held = []
for port in {SERVERS:?}:
    held.append(socket.create_server(('{}', port), backlog={}))
print('ready')
time.sleep(3600)",
        WORLD[0],
        2 * FLOWS_PER_POD
    );
    start(world, &script)
}

/// Opens connections from each pod to its server, and holds them: their flows live for days, so a
/// slow machine still has them when the last response is rendered. Flows of unanswered datagrams
/// end after 30 seconds, and the table of a response is then empty.
fn open_flows(pods: &[Pod]) -> Result<Vec<Process>> {
    let open = |pod: &Pod, server: u16| {
        let script = format!(
            "import resource, socket, time
resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
held = [socket.create_connection(('{}', {server})) for _ in range({FLOWS_PER_POD})]
print('ready')
time.sleep(3600)",
            WORLD[0]
        );
        start(&pod.machine, &script)
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (pods.iter().zip(SERVERS))
            .map(|(pod, server)| scope.spawn(move || open(pod, server)))
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().expect("no panic"))
            .collect()
    })
}

/// Runs a script until it prints `ready`.
fn start(machine: &Machine, script: &str) -> Result<Process> {
    let process = Process::start(machine, &["python3", "-u", "-c", script])?;
    until(
        &format!("the script of {} is ready", machine.name()),
        || {
            let ended = process.ended()?;
            ensure!(ended.is_none(), "it has ended: {}", process.output());
            Ok(process.output().contains("ready").then_some(()))
        },
    )?;
    Ok(process)
}

/// Returns a number of `/proc/<pid>/status`; memory is in KiB.
fn memory(pid: u32, field: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let words = line.and_then(|line| line.split_whitespace().nth(1));
    words
        .and_then(|kib| kib.parse().ok())
        .context("a number, of memory in KiB")
}

/// Sends a request, and returns the connection.
fn request(node: &Machine, path: &str) -> Result<UnixStream> {
    let mut stream = node.mounts().run(|| UnixStream::connect(SOCKET))?;
    stream.set_read_timeout(Some(deadline()))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: viaduct\r\nconnection: close\r\n\r\n"
    )?;
    Ok(stream)
}

/// The first line of a response, its length in bytes, and its last bytes.
type Response = (String, usize, Vec<u8>);

/// Reads a response to its end.
fn read_response(mut stream: UnixStream) -> Result<Response> {
    let mut buffer = vec![0; 64 << 10];
    let (mut length, mut first, mut last) = (0, None, Vec::new());
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Ok((first.unwrap_or_default(), length, last));
        }
        length += read;
        first.get_or_insert_with(|| {
            let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
            text.lines().next().unwrap_or_default().to_owned()
        });
        last = buffer[read.saturating_sub(64)..read].to_vec();
    }
}

/// Reads the response of a connection. Where other responses use all memory, requests `path` again,
/// as the agent's error says.
fn read_or_repeat(node: &Machine, path: &str, stream: UnixStream) -> Result<Response> {
    let first = read_response(stream)?;
    if !is_refused(&first) {
        return Ok(first);
    }
    until("the agent has memory for the response", || {
        let response = read_response(request(node, path)?)?;
        Ok((!is_refused(&response)).then_some(response))
    })
}

fn is_refused((status, ..): &Response) -> bool {
    status.contains("503")
}

#[test]
fn sixty_requests_for_a_large_flow_table_use_the_memory_of_a_few() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let mut pods = Vec::new();
    for name in ["one", "two", "three"] {
        let mut pod = sandbox.pod(name)?;
        pod.add()?;
        pods.push(pod);
    }
    let pid = agent.pid().context("the agent runs")?;
    let before = memory(pid, "VmRSS")?;
    let _servers = start_servers(&sandbox.world)?;
    let _clients = open_flows(&pods)?;
    let path = "/v1/flows?limit=100000";
    let view = agent.get(path)?;
    let listed = view["flows"].as_array().map_or(0, Vec::len);
    ensure!(
        view["matching"] == listed,
        "{} of {listed}",
        view["matching"]
    );
    ensure!(listed >= pods.len() * FLOWS_PER_POD, "{listed} flows");
    ensure!(view["room"]["usedEntries"].is_u64() || view["room"]["used_entries"].is_u64());

    fs::write(format!("/proc/{pid}/clear_refs"), "5")?;
    // One client never reads.
    let stalled = request(&sandbox.node, path)?;
    let streams: Vec<UnixStream> = (0..60)
        .map(|_| request(&sandbox.node, path))
        .collect::<Result<_>>()?;
    let responses = std::thread::scope(|scope| {
        let readers: Vec<_> = streams
            .into_iter()
            .map(|stream| scope.spawn(|| read_or_repeat(&sandbox.node, path, stream)))
            .collect();
        agent.get("/v1/status")?;
        readers
            .into_iter()
            .map(|reader| reader.join().expect("no panic"))
            .collect::<Result<Vec<_>>>()
    })?;
    for (status, length, last) in responses {
        ensure!(status.contains("200"), "{status}");
        ensure!(length > 1_000_000, "{length} bytes");
        ensure!(
            last.ends_with(b"}\r\n0\r\n\r\n"),
            "{:?}",
            String::from_utf8_lossy(&last)
        );
    }
    let grown = memory(pid, "VmHWM")?.saturating_sub(before) >> 10;
    ensure!(grown < 40, "the agent grew by {grown} MiB");
    drop(stalled);
    until("the memory is given back", || {
        let grown = memory(pid, "VmRSS")?.saturating_sub(before) >> 10;
        Ok((grown < 16).then_some(()))
    })
}

/// With `always`, memory that was used once would stay resident in pieces of 2 MiB.
#[test]
fn the_agent_uses_no_transparent_huge_pages() -> Result<()> {
    let (_sandbox, agent) = Sandbox::with_agent()?;
    let pid = agent.pid().context("the agent runs")?;
    let own = memory(std::process::id(), "THP_enabled")?;
    let kernel_has_none = !fs::exists("/sys/kernel/mm/transparent_hugepage")?;
    ensure!(own == 1 || kernel_has_none, "the test has them off itself");
    assert_eq!(memory(pid, "THP_enabled")?, 0);
    Ok(())
}

/// Stops one thread of a process until the program ends.
const STOP_THREAD: &str = "import ctypes, sys, time
PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
thread = int(sys.argv[1])
assert libc.ptrace(PTRACE_SEIZE, thread, 0, 0) == 0, ctypes.get_errno()
assert libc.ptrace(PTRACE_INTERRUPT, thread, 0, 0) == 0, ctypes.get_errno()
libc.waitpid(thread, None, 0x40000000)
print('ready')
time.sleep(600)";

fn thread_of(pid: u32, name: &str) -> Result<String> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        if fs::read_to_string(task.join("comm"))?.trim() == name {
            let id = task.file_name().context("a task has a name")?;
            return Ok(id.to_string_lossy().into_owned());
        }
    }
    anyhow::bail!("no thread {name}")
}

/// Returns the messages of the degradations `engine-stuck`.
fn stuck(agent: &Agent) -> Result<Vec<String>> {
    let status = agent.get("/v1/status")?;
    let degraded = status["degraded"].as_array().into_iter().flatten();
    Ok(degraded
        .map(ToString::to_string)
        .filter(|text| text.contains("engine-stuck"))
        .collect())
}

#[test]
fn an_engine_that_does_not_go_on_is_reported_and_its_requests_are_executed_afterwards() -> Result<()>
{
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let pid = agent.pid().context("the agent runs")?;
    let engine = thread_of(pid, "engine")?;
    let words = ["python3", "-u", "-c", STOP_THREAD, &engine];
    let stop = Process::start(node, &words)?;
    until("the engine's thread is stopped", || {
        let ended = stop.ended()?;
        ensure!(ended.is_none(), "it has ended: {}", stop.output());
        Ok(stop.output().contains("ready").then_some(()))
    })?;
    ensure!(stuck(&agent)?.is_empty());
    let mut pod = sandbox.pod("pod")?;
    let status = pod.prepare(Verb::Status, pod.config());
    let id = pod.id().to_owned();
    let events = || -> Result<usize> {
        let all = agent.ctl("events")?;
        let of_engine = all.lines().filter(|line| line.contains("engine-stuck"));
        Ok(of_engine.count())
    };
    std::thread::scope(|scope| {
        let add = scope.spawn(|| pod.add());
        let found = until("the engine is reported", || {
            Ok(stuck(&agent)?.into_iter().next())
        })?;
        // The agent's own reconcile may have been interrupted, or wait in front of the ADD.
        let is_oldest = |text: &str| text.contains("reconcile has") || text.contains("ADD");
        ensure!(is_oldest(&found), "{found}");
        ensure!(!found.contains("ADD") || found.contains(&id), "{found}");
        let error = status.run(node)?.error()?;
        ensure!(error.code == 50 && is_oldest(&error.msg), "{error:?}");
        let doctor = node.output(&[
            "sh",
            "-c",
            &format!("{} doctor", e2e::program("bin/viaductctl").display()),
        ])?;
        ensure!(
            String::from_utf8_lossy(&doctor.stdout).contains("has not ended"),
            "{doctor:?}"
        );
        until("its event", || Ok((events()? == 1).then_some(())))?;
        drop(stop);
        add.join().expect("no panic")
    })?;
    until("the engine goes on", || {
        Ok(stuck(&agent)?.is_empty().then_some(()))
    })?;
    until(
        "the event of its end",
        || Ok((events()? == 2).then_some(())),
    )?;
    pod.check()?.success()?;
    pod.del().map(drop)
}
