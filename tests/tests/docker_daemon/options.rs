//! Options of networks and containers, by dockerd.

use anyhow::{Context as _, Result, ensure};
use e2e::company::Docker;
use e2e::docker_driver::Container;
use e2e::docker_driver::options::{Attached, CELLS, REFUSED};
use e2e::residue::await_no_residue;
use e2e::{Echo, NODE, connects, tcp_source};

use super::{MODES, PORT, PUBLISHED, SUBNET, at, with_each_dockerd};

#[test]
fn options_of_docker_networks_hold() -> Result<()> {
    with_each_dockerd(Docker::without_bridge, |scene| {
        let icc = "--opt com.docker.network.bridge.enable_icc=false";
        let mtu = "--opt com.docker.network.driver.mtu=1400";
        let ranges = "--ip-range 10.7.0.128/25 --gateway 10.7.0.9 --aux-address printer=10.7.0.128";
        scene.network("apart", &format!("--subnet {SUBNET} {ranges} {icc} {mtu}"))?;
        let first = scene.run("first", "--network apart")?;
        let second = scene.run("second", "--network apart --ip 10.7.0.77")?;
        assert_eq!(
            scene.docker.address("first", "apart")?.to_string(),
            "10.7.0.129"
        );
        assert_eq!(
            scene.docker.address("second", "apart")?.to_string(),
            "10.7.0.77"
        );
        let route = first.call("ip route show default")?;
        ensure!(route.contains("via 10.7.0.9 "), "{route}");
        let link = first.call("ip link show dev eth0")?;
        ensure!(link.contains("mtu 1400"), "{link}");
        let _serving = Echo::start(&second, PORT)?;
        ensure!(!connects(&first, at("10.7.0.77".parse()?, PORT))?);
        let refused = scene
            .network("colour", "--opt com.docker.network.colour=blue")
            .unwrap_err();
        let refused = format!("{refused:#}");
        ensure!(
            refused.contains("com.docker.network.colour=blue"),
            "{refused}"
        );
        scene.clean("first second", "apart")
    })
}

/// A container for each cell of the matrix, with each release of dockerd.
#[test]
fn each_option_has_its_effect_by_dockerd() -> Result<()> {
    with_each_dockerd(Docker::without_bridge, |scene| {
        let route = format!("ip route add {SUBNET} via {}", NODE[0]);
        scene.sandbox.world.call(&route)?;
        for (number, cell) in CELLS.iter().enumerate() {
            let name = format!("web{number}");
            let try_one = || {
                scene.network("apps", &format!("--subnet {SUBNET} --opt {cell}"))?;
                let options = format!("--network apps --publish {PUBLISHED}:{PORT}");
                let container = Container {
                    machine: scene.run(&name, &options)?,
                    address: scene.docker.address(&name, "apps")?,
                    mac: String::new(),
                };
                (cell.holds)(&Attached {
                    sandbox: &scene.sandbox,
                    agent: &scene.agent,
                    container: &container,
                })?;
                scene.docker.call(&format!("rm --force {name}"))?;
                scene.docker.call("network rm apps").map(drop)
            };
            try_one().with_context(|| cell.to_string())?;
        }
        await_no_residue(&scene.before, &scene.sandbox.node)
    })
}

#[test]
fn other_options_and_values_are_refused_by_name_by_dockerd() -> Result<()> {
    with_each_dockerd(Docker::without_bridge, |scene| {
        for (option, value) in REFUSED {
            let options = format!("--subnet {SUBNET} --opt {option}={value}");
            let refused = format!("{:#}", scene.network("apps", &options).unwrap_err());
            ensure!(refused.contains(&format!("{option}={value}")), "{refused}");
        }
        let listed = scene
            .docker
            .call("network ls --filter driver=viaduct --quiet")?;
        ensure!(listed.trim().is_empty(), "{listed}");
        await_no_residue(&scene.before, &scene.sandbox.node)
    })
}

#[test]
fn isolated_networks_and_given_addresses_hold_by_dockerd() -> Result<()> {
    with_each_dockerd(Docker::without_bridge, |scene| {
        let isolated = format!(
            "--internal --subnet 10.8.0.0/24 --opt {}=isolated",
            MODES[0]
        );
        let id = scene.network("closed", &isolated)?;
        let one = scene.run("one", "--network closed")?;
        let two = scene.run("two", "--network closed")?;
        let _serving = Echo::start(&two, PORT)?;
        tcp_source(&one, 0, at(scene.docker.address("two", "closed")?, PORT))?;
        assert_eq!(one.call("ip route show default")?, "");
        let bridge = format!("ip -4 -brief address show dev vd-{}", &id[..12]);
        let shown = scene.sandbox.node.call(&bridge)?;
        ensure!(!shown.contains("10.8.0."), "{shown}");

        let subnets = format!("--subnet {SUBNET} --ipv6 --subnet fd07::/64");
        scene.network("both", &subnets)?;
        let mut given = "--ip 10.7.0.77 --ip6 fd07::77".to_owned();
        let mut expected = vec!["10.7.0.77/24", "fd07::77/64"];
        // The client has no way to pass it to an older daemon.
        if !scene.docker.version()?.starts_with("20.") {
            given.push_str(" --mac-address 02:00:00:00:00:77");
            expected.push("02:00:00:00:00:77");
        }
        let web = scene.run("web", &format!("--network both {given}"))?;
        let shown = web.call("ip address show dev eth0")?;
        for words in expected {
            ensure!(shown.contains(words), "{words}: {shown}");
        }
        scene.clean("one two web", "closed both")
    })
}
