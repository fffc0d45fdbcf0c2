//! A pod is whole when its steps are done: nothing of it becomes usable later.

mod support;

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use support::hostports::*;
use support::traffic::*;
use support::*;

/// IPv6 makes the route to a new address on a kernel thread, which may come late: among many pods one shows it.
#[test]
fn what_comes_for_a_new_address_is_taken_at_once() {
    const PODS: u8 = 40;
    on_a_node(|node| {
        let mut planned = Planned::new(node, None);
        for number in 2..2 + PODS {
            let pod = attachment(&node.add_netns(&format!("pod-{number}")), number);
            planned.add(&pod);
            for family in [0, 1] {
                let own = SocketAddr::new(address_of(&pod, family), 0);
                let heard = in_pod(&pod.netns, || {
                    let socket = UdpSocket::bind(own)?;
                    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
                    socket.send_to(b"mine", socket.local_addr()?)?;
                    socket.recv(&mut [0; 8])
                });
                assert_eq!(heard.ok(), Some(4), "pod {number}, {own}");
            }
        }
    });
}

#[test]
fn the_first_ipv6_packet_does_not_wait() {
    on_a_node(|node| {
        let mut host = node.host();
        let netns = node.add_netns("pod");
        execute(&mut host, &bridge_steps());
        execute(&mut host, &pod_steps(&attachment(&netns, 2)));
        let told = run_in(&netns, "ip -6 addr show dev eth0 scope link");
        assert!(!told.contains("tentative"), "{told}");
        run_in(&netns, "ping -6 -c 1 -W 1 fd88::1");
    });
}
