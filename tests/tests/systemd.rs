//! Installation, unit, reload, crashes, journal and uninstall under a real systemd.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use e2e::{NODE, Sandbox, Systemd, WORLD, program, until};

const UNIT: &str = "viaductd.service";
const CONFIG: &str = "/etc/viaduct/viaductd.toml";
/// Where systemd looks for changes of the unit.
const DROP_IN: &str = "/etc/systemd/system/viaductd.service.d/test.conf";
const POD: &str = "/run/netns/pod";

/// Returns the shell commands of the document's section `heading`.
fn commands(heading: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let text = std::fs::read_to_string(path)?;
    let section = text
        .split("\n## ")
        .find(|section| section.lines().next() == Some(heading))
        .with_context(|| format!("no section {heading}"))?;
    let block = section
        .split("```sh\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    Ok(block
        .with_context(|| format!("no commands in {heading}"))?
        .to_owned())
}

fn install(systemd: &Systemd) -> Result<String> {
    let installed = systemd.script(&commands("Install")?);
    installed.with_context(|| systemd.console())
}

/// A node with systemd and an installed agent that serves.
fn installed() -> Result<Option<(Sandbox, Systemd)>> {
    let sandbox = Sandbox::new()?;
    let Some(systemd) = Systemd::boot(&sandbox.node)? else {
        return Ok(None);
    };
    install(&systemd)?;
    Ok(Some((sandbox, systemd)))
}

/// Runs a command that must fail, and returns its output of both streams.
fn fails(systemd: &Systemd, line: &str) -> Result<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = systemd.output(&words)?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    ensure!(!output.status.success(), "`{line}` succeeded: {text}");
    Ok(text)
}

fn answers(systemd: &Systemd) -> Result<()> {
    systemd.call("viaductctl status").map(drop)
}

#[test]
fn the_documented_installation_starts_an_agent_that_attaches_pods() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(systemd) = Systemd::boot(&sandbox.node)? else {
        return Ok(());
    };
    systemd.write("/opt/cni/bin/bridge", "the reference's")?;
    let output = install(&systemd)?;
    // The container has a cgroup namespace of its own.
    let is_well = output.contains("Health       good");
    let sees_part = output.contains("DEGRADED for 1 reason") && output.contains("cgroup-uncovered");
    ensure!(is_well || sees_part, "{output}");
    let listed = systemd.call("ls /opt/cni/bin")?;
    ensure!(listed == "bridge\nviaduct\n", "{listed}");
    let bridge = systemd.call("cat /opt/cni/bin/bridge")?;
    ensure!(bridge == "the reference's", "{bridge}");
    let verified = systemd.output(&["systemd-analyze", "verify", UNIT])?;
    ensure!(
        verified.status.success() && verified.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&verified.stderr)
    );

    systemd.call("ip netns add pod")?;
    systemd.call(&format!(
        "viaductctl cni add viaduct {POD} --egress-rate 50000000 --publish 8080:80"
    ))?;
    systemd.call(&format!(
        "ip netns exec pod ping -q -c 1 -W 60 {}",
        WORLD[0]
    ))?;
    let shown = systemd.call("viaductctl list --json")?;
    let shown: serde_json::Value = serde_json::from_str(&shown)?;
    assert_eq!(
        shown[0]["bandwidth"]["egress"]["rate"], 50_000_000,
        "{shown}"
    );
    systemd.call("viaductctl cni status viaduct")?;
    systemd.call(&format!("viaductctl cni check viaduct {POD}"))?;
    systemd.call(&format!("viaductctl cni del viaduct {POD}"))?;
    Ok(())
}

/// Capabilities of the unit, as `/proc/<pid>/status` shows them (docs/reference/privileges.md).
const CAPABILITIES: &str = "0000000000283401";

/// `systemd-analyze security` of the unit, in tenths: 0 is the best.
const MOST_EXPOSED: u32 = 30;

#[test]
fn the_unit_has_few_privileges_and_the_agent_works_with_them() -> Result<()> {
    let Some((sandbox, systemd)) = installed()? else {
        return Ok(());
    };
    systemd.call(&format!(
        "systemd-analyze security --no-pager --offline=true --threshold={MOST_EXPOSED} /etc/systemd/system/{UNIT}"
    ))?;
    let check = || -> Result<()> {
        let pid = systemd.property(UNIT, "MainPID")?;
        let threads = systemd.script(&format!(
            "grep -hE '^(Cap|NoNewPrivs|Seccomp:)' /proc/{pid}/task/*/status"
        ))?;
        ensure!(threads.lines().count() >= 2 * 7, "{threads}");
        for line in threads.lines() {
            let (name, value) = line.split_once(":\t").context("a field")?;
            let expected = match name {
                "CapInh" | "CapAmb" => "0000000000000000",
                "NoNewPrivs" => "1",
                // Filtered.
                "Seccomp" => "2",
                _ => CAPABILITIES,
            };
            assert_eq!(value, expected, "{name} in\n{threads}");
        }
        Ok(())
    };
    check()?;
    // A namespace that is made after the agent's start reaches the unit's mount namespace.
    systemd.call("ip netns add pod")?;
    systemd.call(&format!("viaductctl cni add viaduct {POD} --publish 80:80"))?;
    systemd.call(&format!(
        "ip netns exec pod ping -q -c 1 -W 60 {}",
        WORLD[0]
    ))?;
    let serve = "ip netns exec pod python3 -m http.server 80 >/dev/null 2>&1 &";
    systemd.script(serve)?;
    let request = format!("curl --silent --fail --max-time 60 http://{}/", NODE[0]);
    until("the hostport answers the world", || {
        Ok(sandbox.world.call(&request).ok())
    })?;
    systemd.write(
        CONFIG,
        "pod-cidr = [\"10.213.0.0/20\"]\nhairpin-mode = \"none\"\n",
    )?;
    systemd.call(&format!("systemctl reload {UNIT}"))?;
    systemd.call(&format!("systemctl restart {UNIT}"))?;
    check()?;
    sandbox.world.call(&request)?;
    systemd.call(&format!("viaductctl cni check viaduct {POD}"))?;
    systemd.call(&format!("viaductctl cni del viaduct {POD}"))?;
    let listed = systemd.call("viaductctl list --json")?;
    assert_eq!(listed.trim(), "[]");
    systemd.call("viaductctl uninstall")?;
    assert_eq!(systemd.call("ls -A /sys/fs/bpf/viaduct")?, "");
    Ok(())
}

/// With the agent's start delayed, `systemctl start` returns only when the API answers.
#[test]
fn systemctl_start_waits_until_the_agent_serves() -> Result<()> {
    let Some((_sandbox, systemd)) = installed()? else {
        return Ok(());
    };
    let slow = "#!/bin/sh\nsleep 3\nexec /usr/bin/viaductd \"$@\"\n";
    systemd.script(&format!(
        "printf %s '{slow}' > /usr/bin/slow\nchmod +x /usr/bin/slow"
    ))?;
    systemd.write(
        DROP_IN,
        &format!("[Service]\nExecStart=\nExecStart=/usr/bin/slow --config {CONFIG}\n"),
    )?;
    systemd.call("systemctl daemon-reload")?;
    for verb in ["stop", "start", "restart"] {
        systemd.call(&format!("systemctl {verb} {UNIT}"))?;
        if verb == "stop" {
            fails(&systemd, "viaductctl status")?;
        } else {
            answers(&systemd).with_context(|| format!("after systemctl {verb}"))?;
        }
    }
    Ok(())
}

#[test]
fn a_bad_configuration_fails_the_start_with_its_reason_and_a_mended_one_starts() -> Result<()> {
    let Some((_sandbox, systemd)) = installed()? else {
        return Ok(());
    };
    let good = systemd.call(&format!("cat {CONFIG}"))?;
    systemd.write(CONFIG, "pod-cdir = [\"10.1.0.0/16\"]\n")?;
    systemd.call(&format!("systemctl stop {UNIT}"))?;
    fails(&systemd, &format!("systemctl start {UNIT}"))?;
    let journal = systemd.journal(UNIT, "cat")?;
    let reason = "unknown key pod-cdir (did you mean pod-cidr?)";
    ensure!(journal.contains(reason), "{journal}");
    // systemd's default gives up after five starts within ten seconds.
    until("systemd has tried more than five times", || {
        let restarts: u32 = systemd.property(UNIT, "NRestarts")?.parse()?;
        Ok((restarts > 6).then_some(()))
    })?;
    assert_eq!(systemd.property(UNIT, "ActiveState")?, "activating");
    // Between two starts.
    until("doctor names the unit that has failed", || {
        let report = fails(&systemd, "viaductctl doctor")?;
        let failed = format!("does not run: it has failed: in {CONFIG}: {reason}");
        Ok(report.contains(&failed).then_some(()))
    })?;
    systemd.write(CONFIG, &good)?;
    until("the unit is active with the mended configuration", || {
        let state = systemd.property(UNIT, "ActiveState")?;
        Ok((state == "active").then_some(()))
    })?;
    let report = systemd.output(&["viaductctl", "doctor"])?;
    let report = String::from_utf8_lossy(&report.stdout);
    ensure!(report.contains("is enabled and runs"), "{report}");
    systemd.call("test ! -e /run/viaduct/last-failure")?;
    answers(&systemd)
}

#[test]
fn systemctl_reload_waits_for_the_result_and_fails_with_the_reason() -> Result<()> {
    let Some((_sandbox, systemd)) = installed()? else {
        return Ok(());
    };
    let pid = systemd.property(UNIT, "MainPID")?;
    let reload = format!("systemctl reload {UNIT}");
    let mode = || {
        systemd.call(
            "curl --silent --fail --unix-socket /run/viaduct/viaduct.sock http://v/v1/hairpin-mode",
        )
    };
    let with = |line: &str| format!("pod-cidr = [\"10.213.0.0/20\"]\n{line}\n");
    for wanted in ["none", "promiscuous-bridge", "hairpin-veth"] {
        systemd.write(CONFIG, &with(&format!("hairpin-mode = \"{wanted}\"")))?;
        systemd.call(&reload)?;
        ensure!(mode()?.contains(wanted), "reload is over: {}", mode()?);
    }
    for (line, reason) in [
        ("hairpin-mode = \"on\"", "hairpin-mode: \"on\""),
        ("log-level = \"warning\"", "unknown level \"warning\""),
        ("hairpin = \"none\"", "unknown key hairpin"),
    ] {
        systemd.write(CONFIG, &with(line))?;
        fails(&systemd, &reload)?;
        let journal = systemd.journal(UNIT, "cat")?;
        ensure!(
            journal.contains("reload failed, configuration unchanged") && journal.contains(reason),
            "{journal}"
        );
        ensure!(mode()?.contains("hairpin-veth"), "changed by {line}");
        assert_eq!(systemd.property(UNIT, "ActiveState")?, "active");
    }
    let status = systemd.property(UNIT, "StatusText")?;
    ensure!(status.contains("unknown key hairpin"), "{status}");
    systemd.write(CONFIG, &with("mtu = 1400"))?;
    systemd.call(&reload)?;
    let journal = systemd.journal(UNIT, "cat")?;
    ensure!(
        journal.contains("After a restart of the agent: mtu"),
        "{journal}"
    );

    // SIGHUP does the same.
    systemd.write(CONFIG, &with("hairpin-mode = \"none\""))?;
    systemd.call(&format!("systemctl kill --signal HUP {UNIT}"))?;
    until("SIGHUP reloads the configuration", || {
        Ok(mode()?.contains("none").then_some(()))
    })?;
    assert_eq!(systemd.property(UNIT, "MainPID")?, pid, "never restarted");
    Ok(())
}

#[test]
fn the_unit_comes_back_after_each_of_ten_crashes_and_pods_keep_their_network() -> Result<()> {
    let Some((_sandbox, systemd)) = installed()? else {
        return Ok(());
    };
    systemd.call("ip netns add pod")?;
    systemd.call(&format!("viaductctl cni add viaduct {POD}"))?;
    for crash in 1..=10 {
        let pid = systemd.property(UNIT, "MainPID")?;
        systemd.call(&format!("systemctl kill --signal KILL {UNIT}"))?;
        until("systemd has started another agent", || {
            let now = systemd.property(UNIT, "MainPID")?;
            let state = systemd.property(UNIT, "ActiveState")?;
            Ok((now != pid && state == "active").then_some(()))
        })
        .with_context(|| format!("crash {crash}"))?;
        answers(&systemd)?;
    }
    let restarts: u32 = systemd.property(UNIT, "NRestarts")?.parse()?;
    ensure!(restarts >= 10, "{restarts} restarts");
    systemd.call(&format!(
        "ip netns exec pod ping -q -c 1 -W 60 {}",
        WORLD[0]
    ))?;
    systemd.call(&format!("viaductctl cni del viaduct {POD}"))?;
    Ok(())
}

#[test]
fn journal_entries_have_their_priority_and_no_second_timestamp() -> Result<()> {
    let Some((sandbox, systemd)) = installed()? else {
        return Ok(());
    };
    sandbox.node.call("ip link delete up0")?;
    let warnings = || -> Result<Vec<serde_json::Value>> {
        let journal = systemd.journal(UNIT, "json")?;
        let entries = journal.lines().map(serde_json::from_str);
        Ok(entries.collect::<Result<_, _>>()?)
    };
    let of = |entries: &[serde_json::Value], words: &str| -> Vec<String> {
        let texts = |entry: &serde_json::Value| {
            let text = entry["MESSAGE"].as_str().unwrap_or_default();
            let priority = entry["PRIORITY"].as_str().unwrap_or_default();
            format!("{priority} {text}")
        };
        let texts = entries.iter().map(texts);
        texts.filter(|text| text.contains(words)).collect()
    };
    let degraded = until("the journal has the degradation", || {
        let found = of(&warnings()?, "the node has no uplink");
        Ok((!found.is_empty()).then_some(found))
    })?;
    ensure!(
        degraded.len() == 1 && degraded[0].starts_with("4 WARN agent degraded"),
        "{degraded:?}"
    );
    systemd.call(&format!("systemctl restart {UNIT}"))?;
    systemd.write(CONFIG, "log-level = \"warning\"\n")?;
    fails(&systemd, &format!("systemctl restart {UNIT}"))?;
    let entries = warnings()?;
    let started = of(&entries, "agent started");
    ensure!(
        started.len() == 2
            && started
                .iter()
                .all(|text| text.starts_with("6 INFO agent started")),
        "{started:?}"
    );
    let degraded = of(&entries, "the node has no uplink");
    ensure!(degraded.len() == 2, "once for each start: {degraded:?}");
    let fatal = of(&entries, "unknown level \"warning\"");
    ensure!(
        fatal.iter().all(|text| text.starts_with("3 ")) && !fatal.is_empty(),
        "{fatal:?}"
    );
    Ok(())
}

#[test]
fn an_uninstall_lists_what_is_still_installed_and_a_purge_removes_it() -> Result<()> {
    let Some((_sandbox, systemd)) = installed()? else {
        return Ok(());
    };
    let conflist = "/etc/cni/net.d/05-viaduct.conflist";
    let enabled = "/etc/systemd/system/multi-user.target.wants/viaductd.service";
    let left = [
        conflist,
        enabled,
        "/etc/systemd/system/viaductd.service",
        "/opt/cni/bin/viaduct",
    ];
    systemd.write("/opt/cni/bin/bridge", "the reference's")?;
    let output = systemd.call("viaductctl uninstall")?;
    for path in left {
        ensure!(
            output.contains(&format!("still installed: {path}: ")),
            "{path}: {output}"
        );
    }
    ensure!(
        output.contains("new pods fail until it is removed"),
        "{output}"
    );
    ensure!(output.contains("viaductd --uninstall --purge"), "{output}");
    until("the agent has stopped", || {
        let state = systemd.property(UNIT, "ActiveState")?;
        Ok((state == "inactive").then_some(()))
    })?;
    systemd.call("ip netns add pod")?;
    let refusal = fails(&systemd, &format!("viaductctl cni add viaduct {POD}"))?;
    ensure!(refusal.contains("code 11"), "{refusal}");
    assert_eq!(systemd.property(UNIT, "UnitFileState")?, "enabled");

    let output = systemd.call(&format!("viaductd --config {CONFIG} --uninstall --purge"))?;
    for path in left {
        ensure!(
            output.contains(&format!("removed {path}")),
            "{path}: {output}"
        );
        fails(&systemd, &format!("ls {path}"))?;
    }
    ensure!(!output.contains("still installed"), "{output}");
    systemd.call("ls /opt/cni/bin/bridge /usr/bin/viaductd")?;
    for path in ["/run/viaduct", "/sys/fs/bpf/viaduct"] {
        fails(&systemd, &format!("ls {path}"))?;
    }
    systemd.call("systemctl daemon-reload")?;
    fails(&systemd, &format!("systemctl is-enabled {UNIT}")).map(drop)
}

/// The reason is printed where the configuration or the log level would hide it, and by systemd or
/// not.
#[test]
fn a_fatal_error_is_printed_at_every_log_level() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let agent = program("bin/viaductd").display().to_string();
    for (flags, reason) in [
        (
            ["--log-level", "warning", "--mtu", "0"],
            "unknown level \"warning\"",
        ),
        (
            ["--log-level", "verbose", "--mtu", "0"],
            "must be error, warn, info, debug, trace or off",
        ),
        (
            ["--log-level", "off", "--state-dir", "/proc/none"],
            "/proc/none",
        ),
        (
            ["--log-level", "viaductd=off", "--state-dir", "/proc/none"],
            "/proc/none",
        ),
        (["--log-level", "error", "--mtu", "7"], "mtu: 7"),
    ] {
        let output = sandbox
            .node
            .output(&[&[agent.as_str()], &flags[..]].concat())?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success(), "{flags:?}");
        ensure!(text.contains(reason), "{flags:?}: {text:?}");
    }
    Ok(())
}
