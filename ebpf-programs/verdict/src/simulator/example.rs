//! Example node of the tests: two pods, one uplink, some hostports, both address families.

use abi::{
    Address, Endpoint, EndpointFlags, Hostport, HostportKey, Interface, Mac, Network, Pod, Port,
    PrefixClass, PrefixKey, Source, Uplink, protocol,
};

use super::World;

/// Interface index of the uplink, and of the first pod's veth. It is 1, the index of the loopback
/// device, because `BPF_PROG_TEST_RUN` runs the real programs there.
pub const INTERFACE: u32 = 1;
/// Interface index of the second pod's veth.
pub const OTHER_INTERFACE: u32 = 12;

/// Interface index of the pods' bridge.
pub const BRIDGE: u32 = 20;

/// Slot of the first pod.
pub const POD: u32 = 1;
/// Slot of the second pod.
pub const OTHER_POD: u32 = 2;

/// Hostport of the first pod, for TCP and UDP, on every address.
pub const HOSTPORT: u16 = 8080;
/// Hostport of the second pod, for TCP, on [`node`] of IPv4 only.
pub const OWN_HOSTPORT: u16 = 9090;
/// Hostport of the first pod for SCTP; the pod's port is the same.
pub const SCTP_HOSTPORT: u16 = 3868;
/// The first pod's port behind [`HOSTPORT`].
pub const POD_PORT: u16 = 80;

/// One address of each family.
pub type Both = [Address; 2];

/// The families by index: IPv4 first.
pub const FAMILIES: [usize; 2] = [0, 1];

fn both(v4: [u8; 4], v6: [u16; 8]) -> Both {
    [
        Address::v4(v4),
        Address::v6(std::net::Ipv6Addr::from(v6).octets()),
    ]
}

/// The first pod's addresses.
pub fn pod() -> Both {
    both([10, 88, 0, 2], [0xfd00, 0x88, 0, 0, 0, 0, 0, 2])
}

/// The second pod's addresses.
pub fn other_pod() -> Both {
    both([10, 88, 0, 3], [0xfd00, 0x88, 0, 0, 0, 0, 0, 3])
}

/// Addresses of the pod subnets that no pod has.
pub fn no_pod() -> Both {
    both([10, 88, 0, 99], [0xfd00, 0x88, 0, 0, 0, 0, 0, 0x99])
}

/// The node's addresses on its uplink.
pub fn node() -> Both {
    both([192, 0, 2, 1], [0x2001, 0xdb8, 1, 0, 0, 0, 0, 1])
}

/// The node's addresses on the pods' bridge.
pub fn gateway() -> Both {
    both([10, 88, 0, 1], [0xfd00, 0x88, 0, 0, 0, 0, 0, 1])
}

/// Addresses of a remote machine.
pub fn remote() -> Both {
    both([198, 51, 100, 7], [0x2001, 0xdb8, 0xf, 0, 0, 0, 0, 7])
}

/// Addresses of a machine to which pods are not masqueraded.
pub fn friend() -> Both {
    both([10, 99, 0, 7], [0xfd00, 0x99, 0, 0, 0, 0, 0, 7])
}

/// MAC address of the first pod.
pub fn mac() -> Mac {
    Mac::new([2, 0, 0, 0, 0, 2])
}

/// MAC address of the second pod.
pub fn other_mac() -> Mac {
    Mac::new([2, 0, 0, 0, 0, 3])
}

/// MAC address of the pods' bridge.
pub fn bridge_mac() -> Mac {
    Mac::new([2, 0, 0, 0, 0, 1])
}

/// Returns the tables of the example node.
pub fn world() -> World {
    let mut world = World::default();
    add_pod(&mut world, POD, &pod(), mac(), INTERFACE);
    let other = other_mac();
    add_pod(&mut world, OTHER_POD, &other_pod(), other, OTHER_INTERFACE);
    let [v4, v6] = gateway();
    let network = Network {
        v4,
        v6,
        mac: bridge_mac(),
        ..Network::default()
    };
    world.networks.insert(BRIDGE, network);
    world.uplinks.insert(INTERFACE, uplink());
    world.locals.extend(node());
    world.locals.extend(gateway());
    world.prefixes.extend([
        prefix([10, 88, 0, 0], 24, PrefixClass::PODS),
        prefix([10, 99, 0, 0], 16, PrefixClass::NO_MASQUERADE),
        prefix_v6(0x88, PrefixClass::PODS),
        prefix_v6(0x99, PrefixClass::NO_MASQUERADE),
    ]);
    add_hostports(&mut world);
    world.settings.port_low = 50_000;
    world.settings.port_high = 60_000;
    world
}

/// Adds a masqueraded pod to the tables.
pub fn add_pod(world: &mut World, slot: u32, addresses: &Both, mac: Mac, interface: u32) {
    let flags =
        EndpointFlags::MASQUERADE_V4 | EndpointFlags::MASQUERADE_V6 | EndpointFlags::SPOOF_CHECK;
    let generation = 40 + slot;
    world.pods[slot as usize] = Pod {
        v4: addresses[0],
        v6: addresses[1],
        mac,
        interface,
        generation,
        flags,
        network: BRIDGE,
        ..Pod::default()
    };
    world.interfaces.insert(
        interface,
        Interface {
            pod: slot,
            flags: 0,
        },
    );
    for address in addresses {
        let endpoint = Endpoint {
            pod: slot,
            generation,
            interface,
            flags: flags | EndpointFlags::PUBLISHED,
            mac,
            reserved: 0,
        };
        world.endpoints.insert(*address, endpoint);
    }
}

fn uplink() -> Uplink {
    let mut uplink = Uplink {
        l2_len: 14,
        mtu: 1500,
        ..Uplink::default()
    };
    for (source, (address, prefix_len)) in uplink
        .sources
        .iter_mut()
        .zip(node().into_iter().zip([24, 64]))
    {
        *source = Source {
            address,
            prefix_len,
            reserved: 0,
        };
    }
    uplink
}

fn prefix(address: [u8; 4], length: u32, class: u32) -> (PrefixKey, u32) {
    let key = PrefixKey {
        prefix_len: 96 + length,
        address: Address::v4(address),
    };
    (key, class)
}

fn prefix_v6(second: u16, class: u32) -> (PrefixKey, u32) {
    let [_, address] = both([0; 4], [0xfd00, second, 0, 0, 0, 0, 0, 0]);
    let key = PrefixKey {
        prefix_len: 64,
        address,
    };
    (key, class)
}

fn add_hostports(world: &mut World) {
    for (address, other) in pod().into_iter().zip(other_pod()) {
        for number in [protocol::TCP, protocol::UDP] {
            let key = HostportKey::wildcard(address.family(), Port::new(HOSTPORT), number);
            world
                .hostports
                .insert(key, hostport(address, POD_PORT, POD));
        }
        let port = Port::new(SCTP_HOSTPORT);
        let key = HostportKey::wildcard(address.family(), port, protocol::SCTP);
        let target = hostport(address, SCTP_HOSTPORT, POD);
        world.hostports.insert(key, target);
        if other.is_v4() {
            let port = Port::new(OWN_HOSTPORT);
            let key = HostportKey::new(node()[0], port, protocol::TCP);
            world
                .hostports
                .insert(key, hostport(other, POD_PORT, OTHER_POD));
        }
    }
}

fn hostport(address: Address, port: u16, pod: u32) -> Hostport {
    Hostport {
        address,
        port: Port::new(port),
        reserved: 0,
        pod,
        generation: 40 + pod,
        binder: 0,
    }
}
