//! Names of containers in networks of netavark's own drivers.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Echo, Machine, NODE, WORLD, skipped, tcp_source, until};
use serde_json::json;

use super::{AARDVARK, ADDRESSES, Container, ID, SERVER, Scene, subnets};

/// Returns `None` where there is no netavark or no aardvark-dns.
fn scene() -> Result<Option<Scene>> {
    if !Path::new(AARDVARK).exists() {
        skipped("aardvark-dns");
        return Ok(None);
    }
    Scene::new()
}

/// A container in a network of netavark's own driver `bridge`, which has names, and in one of ours.
#[test]
fn names_by_aardvark_dns_go_on_beside_a_network_of_ours() -> Result<()> {
    const SERVICE: &str = "10.91.0.1";
    let Some(scene) = scene()? else {
        return Ok(());
    };
    let named = json!({
        "name": "named", "id": ID.replace("2f25", "2f99"), "driver": "bridge",
        "network_interface": "podman9", "dns_enabled": true, "internal": false,
        "ipv6_enabled": false, "subnets": [{ "subnet": "10.91.0.0/24", "gateway": SERVICE }],
        "options": { "no_default_route": "true" }, "ipam_options": { "driver": "host-local" },
    });
    let network = scene.create("apps", &json!({ "subnets": subnets() }))?;
    let own = json!({ "static_ips": ["10.91.0.7"] });
    let db = Container::new(&scene, "db", &named, &own)?;
    let mut web = Container::new(
        &scene,
        "web",
        &named,
        &json!({ "static_ips": ["10.91.0.8"] }),
    )?;
    web.input["networks"]["apps"] = json!({ "interface_name": "eth1", "static_ips": ADDRESSES });
    web.input["network_info"]["apps"] = network.clone();

    scene.setup(&db)?;
    let both = scene.netavark(&format!("setup {}", web.machine.path()), &web.input)?;
    ensure!(both["apps"]["interfaces"]["eth1"].is_object(), "{both}");
    let service = SocketAddr::new(SERVICE.parse()?, 53);
    let resolves = |name: &str| resolve(&web.machine, service, name);
    assert_eq!(resolves("db")?, Some([10, 91, 0, 7]));
    assert_eq!(resolves("web")?, Some([10, 91, 0, 8]));
    let _world = Echo::start(&scene.sandbox.world, SERVER)?;
    let (seen, _) = tcp_source(&web.machine, 0, (WORLD[0], SERVER).into())?;
    assert_eq!(seen.ip(), NODE[0], "by the default route of our network");

    scene.teardown(&web)?;
    assert_eq!(resolve(&db.machine, service, "web")?, None);
    assert_eq!(
        resolve(&db.machine, service, "db")?,
        Some([10, 91, 0, 7]),
        "names outlive a network of ours"
    );
    // The last container with names ends aardvark-dns.
    scene.teardown(&db)?;
    scene.clean(&[&network])
}

/// Asks a name service for the IPv4 address of a name (RFC 1035). Returns `None` if it says that
/// there is none.
fn resolve(machine: &Machine, service: SocketAddr, name: &str) -> Result<Option<[u8; 4]>> {
    let length = u8::try_from(name.len())?;
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, length];
    query.extend_from_slice(name.as_bytes());
    query.extend_from_slice(&[0, 0, 1, 0, 1]);
    let socket = machine.run(|| UdpSocket::bind("0.0.0.0:0"))?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    let answer = until("the name service answers", || {
        let mut answer = [0; 512];
        socket.send_to(&query, service)?;
        let length = socket.recv(&mut answer).ok();
        Ok(length.map(|length| answer[..length].to_vec()))
    })?;
    let answers = u16::from_be_bytes([answer[6], answer[7]]);
    Ok(if answers == 0 {
        None
    } else {
        // The answer's data is last where no other record follows.
        answer.last_chunk::<4>().copied()
    })
}
