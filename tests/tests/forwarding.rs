//! Pods on a node whose packet filter drops forwarded packets by default: their packets pass, rules
//! of other software are obeyed and unchanged, and what drops is reported.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{ForwardingScene, Machine, NODE, PacketFilter, WORLD, patient, until, write_rules};

fn carried(filter: PacketFilter) -> Result<()> {
    let scene = ForwardingScene::new(&[], |node| filter.drop_by_default(node))?;
    let node = &scene.sandbox.node;
    scene.all_paths_work()?;
    scene.the_policy_still_holds()?;
    scene.await_degraded(&[])?;
    let states: Vec<String> = scene
        .defaults()?
        .into_iter()
        .map(|(_, state)| state)
        .collect();
    let expected = if filter == PacketFilter::Native { 1 } else { 2 };
    assert_eq!(states, vec!["carried"; expected]);
    let shown = scene.agent.ctl("status")?;
    assert!(
        shown.contains("packets of pods are carried past it"),
        "{shown}"
    );
    let with_rules = filter.all(node)?;
    assert!(with_rules.contains("VIADUCT-FORWARD"), "{with_rules}");
    // Other software's rules are as if we had none.
    let bare = scene.sandbox.machine("bare")?;
    filter.drop_by_default(&bare)?;
    assert_eq!(filter.foreign(node)?, filter.foreign(&bare)?);
    Ok(())
}

#[test]
fn pods_work_behind_a_forward_policy_of_iptables_nft() -> Result<()> {
    carried(PacketFilter::IptablesNft)
}

#[test]
fn pods_work_behind_a_forward_policy_of_iptables_legacy() -> Result<()> {
    carried(PacketFilter::Legacy)
}

#[test]
fn pods_work_behind_a_forward_policy_of_a_native_nft_table() -> Result<()> {
    carried(PacketFilter::Native)
}

/// The policy comes and goes while pods run.
fn appears(filter: PacketFilter) -> Result<()> {
    let scene = ForwardingScene::new(&[], |_| Ok(()))?;
    let node = &scene.sandbox.node;
    scene.all_paths_work()?;
    for _ in 0..2 {
        filter.drop_by_default(node)?;
        let took = scene.await_all_paths()?;
        // A dropped SYN is sent again after a second.
        let limit = patient(Duration::from_secs(8));
        ensure!(took < limit, "carried after {took:?}");
        until("the default is reported", || {
            let defaults = scene.defaults()?;
            Ok(defaults
                .iter()
                .any(|(_, state)| state == "carried")
                .then_some(()))
        })?;
        scene.the_policy_still_holds()?;
        filter.accept(node)?;
        until("no rule of ours is left", || {
            Ok((!filter.all(node)?.contains("VIADUCT")).then_some(()))
        })?;
        scene.all_paths_work()?;
    }
    Ok(())
}

#[test]
fn a_forward_policy_of_iptables_nft_is_carried_when_it_appears() -> Result<()> {
    appears(PacketFilter::IptablesNft)
}

#[test]
fn a_forward_policy_of_iptables_legacy_is_carried_when_it_appears() -> Result<()> {
    appears(PacketFilter::Legacy)
}

#[test]
fn a_forward_policy_of_a_native_nft_table_is_carried_when_it_appears() -> Result<()> {
    appears(PacketFilter::Native)
}

/// `iptables -F` removes our jump, and rules behind it would come too late.
fn recovers(filter: PacketFilter) -> Result<()> {
    let scene = ForwardingScene::new(&[], |node| filter.drop_by_default(node))?;
    let node = &scene.sandbox.node;
    for tool in filter.tools() {
        node.call(&format!("{tool} -F"))?;
    }
    scene.await_all_paths()?;
    for (tool, world) in filter.tools().into_iter().zip(WORLD) {
        ensure!(scene.reaches_world(world)?, "before the rule");
        // An explicit rule of the operator, behind ours at first.
        let rule = format!("FORWARD -d {world} -j DROP");
        node.call(&format!("{tool} -A {rule}"))?;
        until("the operator's rule is obeyed", || {
            Ok((!scene.reaches_world(world)?).then_some(()))
        })?;
        node.call(&format!("{tool} -D {rule}"))?;
        // By pod, in a chain that the policy's owner leaves to operators.
        let pod = scene.client.address(world)?;
        node.call(&format!("{tool} -I USER -s {pod} -j DROP"))?;
        node.call(&format!("{tool} -I FORWARD -j USER"))?;
        ensure!(!scene.reaches_world(world)?, "{tool}: USER is not obeyed");
        node.call(&format!("{tool} -D FORWARD -j USER"))?;
    }
    scene.await_all_paths().map(drop)
}

#[test]
fn explicit_rules_of_iptables_nft_are_obeyed_and_a_flush_is_repaired() -> Result<()> {
    recovers(PacketFilter::IptablesNft)
}

#[test]
fn explicit_rules_of_iptables_legacy_are_obeyed_and_a_flush_is_repaired() -> Result<()> {
    recovers(PacketFilter::Legacy)
}

/// The rules outlive the agent, and the next one finds them in place: no connection notices.
fn survives(filter: PacketFilter) -> Result<()> {
    let mut scene = ForwardingScene::new(&[], |node| filter.drop_by_default(node))?;
    scene.all_paths_work()?;
    let before = filter.all(&scene.sandbox.node)?;
    scene.agent.kill()?;
    scene.all_paths_work()?;
    scene.agent.restart()?;
    scene.all_paths_work()?;
    let strip = |text: String| -> String {
        // Counters and handles of nft.
        let words = text
            .split_whitespace()
            .filter(|word| word.parse::<u64>().is_err());
        words.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(strip(filter.all(&scene.sandbox.node)?), strip(before));
    scene.client.del()?.success()?;
    scene.server.del()?.success()?;
    let left = scene.agent.ctl("uninstall")?;
    assert!(left.contains("forwarding rules"), "{left}");
    let bare = scene.sandbox.machine("bare")?;
    filter.drop_by_default(&bare)?;
    let after = filter.all(&scene.sandbox.node)?;
    assert_eq!(strip(after), strip(filter.all(&bare)?));
    Ok(())
}

#[test]
fn rules_in_iptables_nft_survive_the_agent_and_go_with_the_uninstall() -> Result<()> {
    survives(PacketFilter::IptablesNft)
}

#[test]
fn rules_in_iptables_legacy_survive_the_agent_and_go_with_the_uninstall() -> Result<()> {
    survives(PacketFilter::Legacy)
}

#[test]
fn rules_in_a_native_nft_table_survive_the_agent_and_go_with_the_uninstall() -> Result<()> {
    survives(PacketFilter::Native)
}

/// Mode `leave`: no rules, a named reason, an event, and a STATUS that keeps kubelet from starting
/// pods. A reload changes the mode.
#[test]
fn leave_adds_no_rules_and_reports_the_policy() -> Result<()> {
    let config = "/run/viaductd.toml";
    let flag = format!("--config={config}");
    let set = |node: &Machine, mode: &str| {
        let text = format!("forwarding = \"{mode}\"\n");
        node.mounts().run(|| std::fs::write(config, text))
    };
    let scene = ForwardingScene::new(&[&flag], |node| Ok(set(node, "leave")?))?;
    let node = &scene.sandbox.node;
    scene.await_degraded(&[])?;
    PacketFilter::IptablesNft.drop_by_default(node)?;
    scene.await_degraded(&["forwarding-dropped", "forwarding-dropped"])?;
    ensure!(!scene.reaches_world(WORLD[0])?, "the policy drops");
    let all = PacketFilter::IptablesNft.all(node)?;
    assert!(!all.contains("VIADUCT"), "{all}");
    let doctor = scene.agent.ctl("doctor");
    assert!(doctor.is_err(), "doctor says that the node is well");
    let status = scene.agent.get("/v1/status")?;
    let message = status["degraded"][0]["message"]
        .as_str()
        .unwrap_or_default();
    assert!(
        message.contains("policy DROP of chain FORWARD of table ip filter"),
        "{message}"
    );
    let error = e2e::Call::new(e2e::Verb::Status, "", "", &e2e::Config::new("1.1.0"))
        .run(node)?
        .error()?;
    assert_eq!(error.code, 50, "{error:?}");
    let events = scene.agent.ctl("events")?;
    assert!(events.contains("forwarding-dropped"), "{events}");
    set(node, "auto")?;
    scene.agent.signal(nix::sys::signal::Signal::SIGHUP)?;
    scene.await_all_paths()?;
    scene.await_degraded(&[])?;
    set(node, "leave")?;
    scene.agent.signal(nix::sys::signal::Signal::SIGHUP)?;
    until("the rules are gone", || {
        Ok((!PacketFilter::IptablesNft.all(node)?.contains("VIADUCT")).then_some(()))
    })?;
    // A rule of the operator's own lets pods through: the agent does not call that broken.
    for tool in PacketFilter::IptablesNft.tools() {
        node.call(&format!("{tool} -A FORWARD -i cbr0 -j ACCEPT"))?;
    }
    scene.await_degraded(&[])
}

/// What no rule of the agent can pass by is reported, also in mode `auto`.
#[test]
fn a_default_that_cannot_be_carried_is_reported() -> Result<()> {
    let scene = ForwardingScene::new(&[], |_| Ok(()))?;
    let node = &scene.sandbox.node;
    write_rules(
        node,
        "table inet early {\n chain pre {\n type filter hook prerouting priority raw; policy drop;\n}\n}\n",
    )?;
    scene.await_degraded(&["forwarding-dropped"])?;
    node.call("nft delete table inet early")?;
    scene.await_degraded(&[])?;
    scene.all_paths_work()
}

/// A hostport that is published later is open at once, and closed with its pod.
#[test]
fn hostports_are_carried_with_the_add_and_no_longer_after_the_del() -> Result<()> {
    let scene = ForwardingScene::new(&[], |node| PacketFilter::IptablesNft.drop_by_default(node))?;
    let node = &scene.sandbox.node;
    let mut late = scene.sandbox.pod("late")?;
    let config = e2e::Config::new("1.1.0").publish(&e2e::Mapping::both(9090, 90));
    late.add_with(config)?;
    let _echo = e2e::Echo::start(&late.machine, 90)?;
    for address in NODE {
        let server = std::net::SocketAddr::new(address, 9090);
        e2e::tcp_source(&scene.sandbox.world, 0, server).context("at once after the ADD")?;
    }
    let rules = PacketFilter::IptablesNft.all(node)?;
    assert_eq!(rules.matches("port 90/tcp").count(), 2, "{rules}");
    late.del()?.success()?;
    let rules = PacketFilter::IptablesNft.all(node)?;
    assert!(!rules.contains("port 90/"), "{rules}");
    scene.all_paths_work()
}
