//! Tests of the cgroup socket hooks that attachments require.

use model::{Limit, State};
use steps::{SocketHook, SocketHookState};

use super::*;
use crate::testing::{World, attachment, intent, port};

const TCP: &str = "8080->80/tcp";
const UDP: &str = "8080->80/udp";

fn with_ports(ports: &[&str]) -> Attachment {
    let mut attachment = attachment(&intent("one"));
    attachment.port_mappings = ports.iter().map(|text| port(text)).collect();
    attachment
}

fn limited() -> Attachment {
    let mut attachment = with_ports(&[]);
    attachment.bandwidth.egress = Some(Limit {
        rate: 1_000_000.try_into().unwrap(),
        burst: None,
    });
    attachment
}

fn needed(attachments: &[Attachment], shaper: ShaperMode) -> Vec<SocketHook> {
    let needed = required_socket_hooks(attachments, shaper);
    needed.into_iter().collect()
}

#[test]
fn only_required_socket_hooks_are_attached() {
    let auto = ShaperMode::Auto;
    assert_eq!(needed(&[], auto), []);
    assert_eq!(needed(&[with_ports(&[])], auto), []);
    let tcp = needed(&[with_ports(&[TCP])], auto);
    assert_eq!(tcp, {
        let mut hooks = HOSTPORT_HOOKS;
        hooks.sort();
        hooks
    });
    let both = needed(&[with_ports(&[TCP, UDP])], auto);
    assert_eq!(both, SocketHook::ALL[..10]);
    assert_eq!(needed(&[limited()], auto), [SocketHook::Pace]);
    assert_eq!(needed(&[limited()], ShaperMode::Police), []);
    let all = [with_ports(&[UDP]), limited()];
    assert_eq!(needed(&all, auto), SocketHook::ALL);
}

/// The datapath of the node's sockets is not needed for ports at a pod's own address.
#[test]
fn a_port_at_the_pods_own_address_requires_no_socket_hook() {
    let own = with_ports(&[]).address(true).unwrap();
    let direct = format!("{own}@80->80/udp");
    let auto = ShaperMode::Auto;
    assert_eq!(needed(&[with_ports(&[&direct])], auto), []);
    let both = needed(&[with_ports(&[TCP, &direct])], auto);
    assert_eq!(both.len(), HOSTPORT_HOOKS.len());
}

fn plan(attachments: &[Attachment], links: &[(SocketHook, SocketHookState)]) -> Vec<String> {
    let mut world = World::empty();
    for attachment in attachments {
        world.remember(attachment, State::Attached);
    }
    let observed = Observed {
        socket_hooks: links.iter().copied().collect(),
        ..Observed::default()
    };
    let plan = plan_socket_hooks(&world.records, ShaperMode::Auto, &observed);
    plan.steps().iter().map(ToString::to_string).collect()
}

#[test]
fn required_socket_hooks_are_attached_and_unneeded_ones_of_a_previous_agent_detached() {
    let links = [
        (SocketHook::Connect4, SocketHookState::Absent),
        (SocketHook::Connect6, SocketHookState::Outdated),
        (SocketHook::Bind4, SocketHookState::Attached),
        (SocketHook::Sendmsg4, SocketHookState::Outdated),
        (SocketHook::Recvmsg4, SocketHookState::Attached),
        (SocketHook::Pace, SocketHookState::Absent),
    ];
    let attach = "attach connect4, connect6 to the cgroup";
    let detach = "detach sendmsg4 from the cgroup";
    let tcp = [with_ports(&[TCP])];
    assert_eq!(plan(&tcp, &links), [attach, detach]);
    // Hooks of this agent stay attached: a node that had one hostport will have another.
    let ours = [(SocketHook::Connect4, SocketHookState::Attached)];
    assert_eq!(plan(&[], &ours), [""; 0]);
}
