//! What sockets are asked by, for which attachments.

use model::{Limit, State};

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
    let needed = needed_sockets(attachments, shaper);
    needed.into_iter().collect()
}

#[test]
fn sockets_are_asked_only_for_what_an_attachment_has() {
    let auto = ShaperMode::Auto;
    assert_eq!(needed(&[], auto), []);
    assert_eq!(needed(&[with_ports(&[])], auto), []);
    let tcp = needed(&[with_ports(&[TCP])], auto);
    assert_eq!(tcp, {
        let mut of_ports = OF_PORTS;
        of_ports.sort();
        of_ports
    });
    let both = needed(&[with_ports(&[TCP, UDP])], auto);
    assert_eq!(both, SocketHook::ALL[..10]);
    assert_eq!(needed(&[limited()], auto), [SocketHook::Pace]);
    assert_eq!(needed(&[limited()], ShaperMode::Police), []);
    let all = [with_ports(&[UDP]), limited()];
    assert_eq!(needed(&all, auto), SocketHook::ALL);
}

fn plan(attachments: &[Attachment], links: &[(SocketHook, SocketLink)]) -> Vec<String> {
    let mut world = World::empty();
    for attachment in attachments {
        world.remember(attachment, State::Attached);
    }
    let observed = Observed {
        socket_hooks: links.iter().copied().collect(),
        ..Observed::default()
    };
    let plan = plan_sockets(&world.records, ShaperMode::Auto, &observed);
    plan.steps().iter().map(ToString::to_string).collect()
}

#[test]
fn what_is_needed_is_attached_or_replaced_and_what_a_dead_agent_left_for_nobody_goes() {
    let links = [
        (SocketHook::Connect4, SocketLink::Absent),
        (SocketHook::Connect6, SocketLink::Outdated),
        (SocketHook::Bind4, SocketLink::Attached),
        (SocketHook::Sendmsg4, SocketLink::Outdated),
        (SocketHook::Recvmsg4, SocketLink::Attached),
        (SocketHook::Pace, SocketLink::Absent),
    ];
    let attach = "attach connect4, connect6 to the cgroup";
    let detach = "detach sendmsg4 from the cgroup";
    let tcp = [with_ports(&[TCP])];
    assert_eq!(plan(&tcp, &links), [attach, detach]);
    // Of ours nothing is taken away: who had a port will have another.
    let ours = [(SocketHook::Connect4, SocketLink::Attached)];
    assert_eq!(plan(&[], &ours), [""; 0]);
}
