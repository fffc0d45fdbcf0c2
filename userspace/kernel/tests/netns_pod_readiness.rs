//! A pod can send and receive as soon as its steps are executed.

mod support;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use support::hostports::*;
use support::skip::patient;
use support::traffic::*;
use support::*;

/// The kernel adds the local route of a new IPv6 address on a kernel thread, which may run late:
/// among many pods one shows it.
#[test]
fn packets_to_a_new_address_are_received_at_once() {
    const PODS: u8 = 40;
    on_a_node(|node| {
        let mut planned = Planned::new(node, None);
        for number in 2..2 + PODS {
            let pod = attachment(&node.add_netns(&format!("pod-{number}")), number);
            planned.add(&pod);
            for family in [0, 1] {
                let own = SocketAddr::new(address_of(&pod, family), 0);
                let received = in_pod(&pod.netns, || {
                    let socket = UdpSocket::bind(own)?;
                    socket.set_read_timeout(Some(patient(Duration::from_secs(1))))?;
                    socket.send_to(b"mine", socket.local_addr()?)?;
                    socket.recv(&mut [0; 8])
                });
                assert_eq!(received.ok(), Some(4), "pod {number}, {own}");
            }
        }
    });
}

/// behaviour R5. The kernel activates the queue and the bridge port from the linkwatch thread, and
/// drops packets before that. The socket exists before the veth, so that it can send at once.
#[test]
fn the_first_packet_of_a_pod_is_received() {
    const PODS: u8 = 40;
    on_a_node(|node| {
        let mut planned = Planned::new(node, None);
        let node_side = UdpSocket::bind("0.0.0.0:0").unwrap();
        let timeout = patient(Duration::from_secs(1));
        node_side.set_read_timeout(Some(timeout)).unwrap();
        let broadcast = (Ipv4Addr::BROADCAST, node_side.local_addr().unwrap().port());
        for number in 2..2 + PODS {
            let netns = node.add_netns(&format!("pod-{number}"));
            let pod_side = in_pod(&netns, || UdpSocket::bind("0.0.0.0:0")).unwrap();
            pod_side.set_broadcast(true).unwrap();
            let pod = attachment(&netns, number);
            let [make, attach, join, set_up] = pod_steps(&pod).try_into().unwrap();
            execute(&mut planned.host, &[make, attach]);
            planned.write(&pod);
            execute(&mut planned.host, &[set_up, join]);
            pod_side.send_to(&[number], broadcast).unwrap();
            let mut received = [0; 8];
            let length = node_side.recv(&mut received);
            assert_eq!(length.ok(), Some(1), "pod {number}");
            assert_eq!(received[0], number);
        }
    });
}

#[test]
fn the_first_ipv6_packet_does_not_wait_for_duplicate_detection() {
    on_a_node(|node| {
        let mut host = node.host();
        let netns = node.add_netns("pod");
        execute(&mut host, &bridge_steps());
        let attachment = attachment(&netns, 2);
        execute(&mut host, &pod_steps(&attachment));
        execute(&mut host, &entry_steps(&attachment));
        let output = run_in(&netns, "ip -6 addr show dev eth0 scope link");
        assert_eq!(output.matches("fe80::").count(), 1, "{output}");
        assert!(!output.contains("tentative"), "{output}");
        run_in(&netns, "ping -6 -c 1 -W 10 fd88::1");
        // The kernel generates the same link-local address from the same MAC.
        let shown = run_in(&netns, "ip -o link show dev eth0");
        let mut words = shown
            .split_whitespace()
            .skip_while(|word| *word != "link/ether");
        let mac = words.nth(1).expect("Ethernet has a MAC");
        run_in(
            &netns,
            &format!("ip link add twin address {mac} type veth peer name other"),
        );
        run_in(&netns, "ip link set other up");
        run_in(&netns, "ip link set twin up");
        let twin = run_in(&netns, "ip -6 addr show dev twin scope link");
        let own = |text: &str| {
            let mut words = text.split_whitespace();
            words
                .find(|word| word.starts_with("fe80::"))
                .map(str::to_owned)
        };
        assert_eq!(own(&output), own(&twin));
    });
}

/// The spoof check knows the link-local address by the MAC address.
#[test]
fn a_namespace_with_random_link_local_addresses_gets_that_of_the_mac_address() {
    on_a_node(|node| {
        let mut host = node.host();
        let netns = node.add_netns("pod");
        run_in(&netns, "sysctl -qw net.ipv6.conf.default.addr_gen_mode=3");
        execute(&mut host, &bridge_steps());
        let attachment = attachment(&netns, 2);
        execute(&mut host, &pod_steps(&attachment));
        execute(&mut host, &entry_steps(&attachment));
        let output = run_in(&netns, "ip -6 addr show dev eth0 scope link");
        let [_, _, _, a, b, c] = attachment.mac.0;
        let end = format!("ff:fe{a:02x}:{:x}/64", u16::from_be_bytes([b, c]));
        assert_eq!(output.matches("fe80::").count(), 1, "{output}");
        assert!(output.contains(&end), "{output} without {end}");
        run_in(&netns, "ping -6 -c 1 -W 10 fd88::1");
    });
}

#[test]
fn a_namespace_with_addr_gen_mode_none_gets_no_link_local_address() {
    on_a_node(|node| {
        let mut host = node.host();
        let netns = node.add_netns("pod");
        run_in(&netns, "sysctl -qw net.ipv6.conf.default.addr_gen_mode=1");
        execute(&mut host, &bridge_steps());
        let attachment = attachment(&netns, 2);
        execute(&mut host, &pod_steps(&attachment));
        execute(&mut host, &entry_steps(&attachment));
        let output = run_in(&netns, "ip -6 addr show dev eth0 scope link");
        assert!(!output.contains("fe80::"), "{output}");
        run_in(&netns, "ping -6 -c 1 -W 10 fd88::1");
    });
}
