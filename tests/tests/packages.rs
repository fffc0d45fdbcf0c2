//! The packages of `cargo xtask package`: install, upgrade, remove and purge under a real systemd.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use e2e::{Sandbox, Systemd, WORLD, program, skipped};

const UNIT: &str = "viaductd.service";
const CONFIG: &str = "/etc/viaduct/viaductd.toml";
const POD: &str = "/run/netns/pod";

/// Lists all files of the node that a package could leave behind. The state of dpkg, rpm and
/// systemd about other packages is none of them.
const FILES: &str = "find /etc /opt /run /sys/fs/bpf /usr /var/lib -xdev \
    \\( -path /var/lib/dpkg -o -path /var/lib/rpm -o -path /var/lib/systemd -o -path /run/systemd \
    -o -path /run/netns -o -path /var/lib/cni -o -path /run/cni -o -name xtables.lock \\) -prune -o -print | sort";

/// Sends pings from the pod until `/tmp/stop` exists. `/tmp/rounds` counts the rounds, and
/// `/tmp/lost` has the summary of each round that lost a packet.
const TRAFFIC: &str = "#!/bin/sh
until [ -e /tmp/stop ]; do
    summary=$(ip netns exec pod ping -q -c 25 -i 0.02 -W 60 $1)
    case $summary in
    *' 0% packet loss'*) ;;
    *) echo \"$summary\" >> /tmp/lost ;;
    esac
    echo >> /tmp/rounds
done
echo > /tmp/stopped
";

/// A node with systemd and no installation of Viaduct. `None`, and the test is reported as skipped,
/// where systemd or one of the `tools` is missing.
fn node(tools: &[&str]) -> Result<Option<(Sandbox, Systemd)>> {
    let sandbox = Sandbox::new()?;
    let Some(systemd) = Systemd::boot(&sandbox.node)? else {
        return Ok(None);
    };
    for tool in tools {
        if systemd.script(&format!("command -v {tool}")).is_err() {
            skipped(&format!("{tool} is not installed"));
            return Ok(None);
        }
    }
    // Images of containers forbid packages to start services.
    systemd.script("rm -f /usr/sbin/policy-rc.d")?;
    // What an agent on the machine itself has left would not be there after a purge.
    systemd.script("rm -rf /etc/viaduct /var/lib/viaduct")?;
    Ok(Some((sandbox, systemd)))
}

/// Runs a script that must succeed, and returns both of its outputs.
fn run(systemd: &Systemd, script: &str) -> Result<String> {
    systemd
        .script(&format!("exec 2>&1\n{script}"))
        .with_context(|| systemd.console())
}

fn attach(systemd: &Systemd) -> Result<()> {
    systemd.script(
        "mkdir -p /etc/cni/net.d; cp /usr/share/viaduct/05-viaduct.conflist /etc/cni/net.d",
    )?;
    systemd.call("ip netns add pod")?;
    systemd.call(&format!("viaductctl cni add viaduct {POD}"))?;
    ping(systemd)
}

fn ping(systemd: &Systemd) -> Result<()> {
    let ping = format!("ip netns exec pod ping -q -c 3 -i 0.02 -W 60 {}", WORLD[0]);
    systemd.call(&ping).map(drop)
}

/// Returns the lines that only one of two lists has, with a sign in front.
fn differences(before: &str, after: &str) -> Vec<String> {
    let [before, after] = [before, after].map(|text| text.lines().collect::<BTreeSet<_>>());
    let gone = before.difference(&after).map(|line| format!("-{line}"));
    let new = after.difference(&before).map(|line| format!("+{line}"));
    gone.chain(new).collect()
}

/// Returns the differences of two lists of files that the machine does not have itself. Its files
/// are below those of the container, and tests that run at the same time start software that makes
/// files of its own, such as the key of dockerd.
fn left_behind(before: &str, after: &str) -> Vec<String> {
    let mut differences = differences(before, after);
    differences.retain(|line| {
        let (sign, path) = line.split_at(1);
        let is_on_machine = Path::new(path).symlink_metadata().is_ok();
        is_on_machine != (sign == "+")
    });
    differences
}

/// Installs with `install`, which then owns the node's agent, and returns what it printed.
fn install(systemd: &Systemd, install: &str) -> Result<String> {
    let output = run(systemd, install)?;
    let version = systemd.call("viaductd --version")?;
    ensure!(version.starts_with("viaductd "), "{version}");
    Ok(output)
}

/// Makes `/tmp/next.deb`: the package as version 9.9, with the agent and the programs of the next
/// release.
const NEXT_DEB: &str = "
dpkg-deb --raw-extract target/package/viaduct_*.deb /tmp/next
sed -i 's/^Version: .*/Version: 9.9/' /tmp/next/DEBIAN/control
cp target/dist-next/bin/viaductd /tmp/next/usr/bin/
cp target/dist-next/lib/viaduct/datapath.o /tmp/next/usr/lib/viaduct/
dpkg-deb --root-owner-group -Znone --build /tmp/next /tmp/next.deb
rm -r /tmp/next";

#[test]
fn static_programs_of_the_packages_run_in_a_root_that_has_nothing_else() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut builds = Vec::new();
    for path in [
        "bin/viaductd",
        "bin/viaductctl",
        "cni/viaduct",
        "bin/viaduct-kube",
    ] {
        let root = tempfile::tempdir()?;
        let copy = root.path().join("program");
        sandbox.node.install_program(&program(path), &copy)?;
        let root = root.path().display().to_string();
        let output = sandbox
            .node
            .call(&format!("chroot {root} /program --version"))?;
        let build = output
            .split_once(" (")
            .and_then(|(_, rest)| rest.split_once(')'));
        builds.push(build.with_context(|| output.clone())?.0.to_owned());
    }
    ensure!(builds[0].starts_with("commit "), "{builds:?}");
    // It has no part in the datapath.
    let kube = builds.pop().unwrap_or_default();
    ensure!(
        builds[0].starts_with(&format!("{kube}, datapath ABI ")),
        "{kube}"
    );
    ensure!(builds.iter().all(|build| *build == builds[0]), "{builds:?}");
    Ok(())
}

/// Returns the verbs that a program lists in its help.
fn verbs(help: &str) -> Vec<&str> {
    let commands = help.split("Commands:\n").nth(1).unwrap_or_default();
    let lines = commands.lines().take_while(|line| !line.is_empty());
    // A line with a deeper indentation continues a text.
    let starts = lines.filter_map(|line| line.strip_prefix("  "));
    let words = starts.filter(|line| !line.starts_with(' '));
    words.filter_map(|line| line.split(' ').next()).collect()
}

#[test]
fn the_deb_package_has_a_manual_page_of_each_verb_and_completions() -> Result<()> {
    let Some((_sandbox, systemd)) = node(&["dpkg-deb"])? else {
        return Ok(());
    };
    let listed = systemd.script("dpkg-deb --contents target/package/viaduct_*.deb")?;
    let has = |path: &str| {
        listed
            .lines()
            .any(|line| line.ends_with(&format!(" ./usr/share/{path}")))
    };
    let help = systemd.script("target/dist/bin/viaductctl --help")?;
    let found = verbs(&help);
    ensure!(found.contains(&"list") && found.contains(&"cni"), "{help}");
    let inner = systemd.script("target/dist/bin/viaductctl cni --help")?;
    let inner = verbs(&inner).into_iter().map(|verb| format!("cni-{verb}"));
    for verb in found.iter().map(|verb| (*verb).to_owned()).chain(inner) {
        if !verb.ends_with("help") {
            ensure!(
                has(&format!("man/man1/viaductctl-{verb}.1")),
                "{verb}: {listed}"
            );
        }
    }
    for path in [
        "man/man1/viaductctl.1",
        "man/man8/viaductd.8",
        "man/man8/viaduct-kube.8",
        "bash-completion/completions/viaduct-kube",
        "bash-completion/completions/viaductctl",
        "zsh/vendor-completions/_viaductctl",
        "fish/vendor_completions.d/viaductd.fish",
    ] {
        ensure!(has(path), "{path}: {listed}");
    }
    Ok(())
}

#[test]
fn the_deb_package_upgrades_under_traffic_and_its_purge_leaves_nothing() -> Result<()> {
    let Some((_sandbox, systemd)) = node(&["dpkg-deb"])? else {
        return Ok(());
    };
    let before = systemd.script(FILES)?;
    install(&systemd, "dpkg --install target/package/viaduct_*.deb")?;
    assert_eq!(systemd.property(UNIT, "ActiveState")?, "active");
    assert_eq!(systemd.property(UNIT, "UnitFileState")?, "enabled");
    attach(&systemd)?;
    let changed = format!(
        "{}\n# The operator's.\n",
        systemd.call(&format!("cat {CONFIG}"))?
    );
    systemd.write(CONFIG, &changed)?;

    systemd.script(NEXT_DEB)?;
    let docker_state = "/var/lib/viaduct/docker.json";
    systemd.write(docker_state, "{}")?;
    systemd.write("/tmp/traffic", TRAFFIC)?;
    systemd.script(&format!("sh /tmp/traffic {} >/dev/null 2>&1 &", WORLD[0]))?;
    let rounds =
        || systemd.script("while [ ! -e /tmp/rounds ]; do sleep 0.1; done; wc -l < /tmp/rounds");
    let first: u32 = rounds()?.trim().parse()?;
    let pid = systemd.property(UNIT, "MainPID")?;
    run(&systemd, "dpkg --install /tmp/next.deb")?;
    ensure!(systemd.property(UNIT, "MainPID")? != pid, "no other agent");
    let version = systemd.call("viaductctl version")?;
    ensure!(version.contains("+next"), "{version}");
    let last: u32 = rounds()?.trim().parse()?;
    ensure!(last > first, "no traffic during the upgrade");
    systemd.script("touch /tmp/stop; while [ ! -e /tmp/stopped ]; do sleep 0.1; done")?;
    systemd.script("! cat /tmp/lost 2>/dev/null")?;
    assert_eq!(systemd.call(&format!("cat {CONFIG}"))?, changed);
    assert_eq!(systemd.call(&format!("cat {docker_state}"))?, "{}");
    systemd.call(&format!("viaductctl cni check viaduct {POD}"))?;

    // The agent that runs is not replaced by one that would not start.
    systemd.write(CONFIG, "pod-cdir = []\n")?;
    let pid = systemd.property(UNIT, "MainPID")?;
    let output = run(&systemd, "dpkg --install /tmp/next.deb")?;
    ensure!(output.contains("unknown key pod-cdir"), "{output}");
    ensure!(output.contains("no restart of the agent"), "{output}");
    assert_eq!(systemd.property(UNIT, "MainPID")?, pid);
    systemd.write(CONFIG, &changed)?;

    let output = run(&systemd, "dpkg --remove viaduct")?;
    ensure!(output.contains("pods keep their network"), "{output}");
    assert_eq!(systemd.property(UNIT, "ActiveState")?, "inactive");
    ping(&systemd).context("after the removal")?;
    assert_eq!(systemd.call(&format!("cat {CONFIG}"))?, changed);

    run(&systemd, "dpkg --purge viaduct")?;
    systemd.script("! ip netns exec pod ip link show eth0 2>/dev/null")?;
    systemd.script("! ip link show cbr0 2>/dev/null")?;
    let left = left_behind(&before, &systemd.script(FILES)?);
    ensure!(left.is_empty(), "left behind:\n{}", left.join("\n"));
    Ok(())
}

#[test]
fn the_deb_package_starts_no_agent_with_a_broken_configuration() -> Result<()> {
    let Some((_sandbox, systemd)) = node(&["dpkg-deb"])? else {
        return Ok(());
    };
    systemd.write(CONFIG, "pod-cdir = []\n")?;
    let output = install(
        &systemd,
        "dpkg --force-confold --install target/package/viaduct_*.deb",
    )?;
    ensure!(output.contains("unknown key pod-cdir"), "{output}");
    ensure!(output.contains("no start of the agent"), "{output}");
    assert_eq!(systemd.property(UNIT, "ActiveState")?, "inactive");
    // The broken configuration does not prevent the purge.
    run(&systemd, "dpkg --purge viaduct")?;
    systemd.script("! ls -d /etc/viaduct /run/viaduct /sys/fs/bpf/viaduct 2>/dev/null")?;
    Ok(())
}

#[test]
fn the_deb_package_of_plugins_diverts_the_reference_plugins_and_gives_them_back() -> Result<()> {
    let Some((_sandbox, systemd)) = node(&["dpkg-deb", "dpkg-divert"])? else {
        return Ok(());
    };
    // A plugin of no package, and those of Debian's package if it is installed.
    systemd.write("/opt/cni/bin/bridge", "the reference's")?;
    let plugins = "find /opt/cni/bin/bridge /usr/lib/cni ! -type d -printf '%p %M %s %l\\n'; dpkg-divert --list '*cni*'";
    let before = systemd.script(plugins)?;
    run(
        &systemd,
        "dpkg --install target/package/viaduct_*.deb target/package/viaduct-plugins_*.deb",
    )?;
    for folder in ["/usr/lib/cni", "/opt/cni/bin"] {
        let about = run(&systemd, &format!("{folder}/bridge"))?;
        ensure!(about.contains("(viaduct v"), "{folder}: {about}");
    }
    let info = run(&systemd, "/usr/libexec/netavark/viaduct info")?;
    ensure!(info.contains("api_version"), "{info}");
    assert_eq!(
        systemd.call("cat /opt/cni/bin/bridge.distrib")?,
        "the reference's"
    );
    // The package manager removes what it has installed; an uninstall does not.
    let output = systemd.call("viaductctl uninstall --purge")?;
    let listed = "still installed: /opt/cni/bin/bridge: plugin of an installed package";
    ensure!(output.contains(listed), "{output}");
    run(&systemd, "dpkg --purge viaduct-plugins viaduct")?;
    assert_eq!(systemd.call("cat /opt/cni/bin/bridge")?, "the reference's");
    let left = differences(&before, &systemd.script(plugins)?);
    ensure!(left.is_empty(), "left behind:\n{}", left.join("\n"));
    Ok(())
}

#[test]
fn the_rpm_package_installs_restarts_on_an_upgrade_and_leaves_nothing() -> Result<()> {
    let Some((_sandbox, systemd)) = node(&["rpm"])? else {
        return Ok(());
    };
    systemd.script("rpm --initdb")?;
    let before = systemd.script(FILES)?;
    // Debian's shell is in no RPM package.
    let package = "--nodeps target/package/viaduct-0*.rpm";
    install(&systemd, &format!("rpm --install {package}"))?;
    assert_eq!(systemd.property(UNIT, "UnitFileState")?, "enabled");
    assert_eq!(systemd.property(UNIT, "ActiveState")?, "inactive");
    systemd.call(&format!("systemctl start {UNIT}"))?;
    attach(&systemd)?;
    run(
        &systemd,
        "rpm --install --nodeps target/package/viaduct-plugins-0*.rpm",
    )?;
    let about = run(&systemd, "/usr/libexec/viaduct/cni/bridge")?;
    ensure!(about.contains("(viaduct v"), "{about}");
    run(&systemd, "rpm --erase --nodeps viaduct-plugins")?;

    let pid = systemd.property(UNIT, "MainPID")?;
    run(&systemd, &format!("rpm --upgrade --replacepkgs {package}"))?;
    ensure!(systemd.property(UNIT, "MainPID")? != pid, "no other agent");
    ping(&systemd).context("after the upgrade")?;

    systemd.call(&format!("viaductctl cni del viaduct {POD}"))?;
    systemd.call("rm /etc/cni/net.d/05-viaduct.conflist")?;
    run(&systemd, "rpm --erase viaduct")?;
    systemd.script("! ip link show cbr0 2>/dev/null")?;
    let left = left_behind(&before, &systemd.script(FILES)?);
    ensure!(left.is_empty(), "left behind:\n{}", left.join("\n"));
    Ok(())
}
