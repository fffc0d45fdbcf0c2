//! The least that an ADD can take: one process start, and the netlink requests that create a pod's
//! link.
//!
//! The link has a BPF program on both clsact hooks, which was loaded before, and the measurement
//! ends when the bridge port forwards. The process sends no request to an agent. There is no IPAM,
//! no validation, no record and no map entry.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use aya::programs::{ProgramFd, loaded_programs};
use e2e::{Machine, Sandbox, program};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike as _};
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use rtnetlink::packet_route::RouteNetlinkMessage as Message;
use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkAttribute, State};
use rtnetlink::packet_route::tc::{
    TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcHeader, TcMessage,
    TcOption,
};
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{Socket, SocketAddr};
use rtnetlink::{
    AddressMessageBuilder, LinkMessageBuilder, LinkUnspec, LinkVeth, MulticastGroup,
    RouteMessageBuilder,
};

use crate::plugin_start;
use crate::topology::Forwarding;

/// One queue in each direction. Without it, the kernel creates one per possible CPU.
const QUEUES: [LinkAttribute; 2] = [LinkAttribute::NumTxQueues(1), LinkAttribute::NumRxQueues(1)];

/// Name of a program that a running agent has loaded. It passes packets of links without an entry
/// in its agent's maps.
const PROGRAM: &str = "to_pod";

/// The hooks of `clsact`.
const SIDES: [u16; 2] = [TcHandle::MIN_INGRESS, TcHandle::MIN_EGRESS];

/// `ETH_P_ALL` in network byte order.
const ALL_PROTOCOLS: u32 = 0x0003_u16.to_be() as u32;

/// The first three bytes of the pods' /24.
const NET: [u8; 3] = [10, 244, 2];

/// The interface index of the veth's pod end. The kernel accepts it only with an index of the other
/// end.
const INSIDE: u32 = 7;
/// The interface index of the veth's node end, of the first pod.
const OUTSIDE: u32 = 100;

/// A node on which the benchmark itself creates the pods' links.
pub(crate) struct NetlinkBaseline {
    /// The node and its world.
    pub(crate) node: Forwarding,
    bridge: u32,
    socket: Socket,
    program: ProgramFd,
}

impl NetlinkBaseline {
    /// Creates a node with a bridge. An agent must be running on another node, for its program.
    pub(crate) fn start() -> Result<Self> {
        let node = Forwarding::on(Sandbox::new()?, NET)?;
        let machine = &node.sandbox.node;
        let bridge = machine.run(|| if_nametoindex("br0"))?;
        let socket = machine.run(open)?;
        let mut loaded = loaded_programs().filter_map(Result::ok);
        let program = loaded.find(|program| program.name_as_str() == Some(PROGRAM));
        Ok(Self {
            node,
            bridge,
            socket,
            program: program.context("no agent is running")?.fd()?,
        })
    }

    /// Creates the link of a pod; returns the time it took.
    pub(crate) fn add(&self, pod: &Machine, number: usize) -> Result<Duration> {
        let number = u8::try_from(number)?;
        let outside = outside(number);
        let (inside, netns) =
            pod.run(|| -> Result<_> { Ok((open()?, File::open("/proc/thread-self/ns/net")?)) })?;
        let events = self.node.sandbox.node.run(listen)?;
        let address = Ipv4Addr::from([NET[0], NET[1], NET[2], 2 + number]);
        let start = Instant::now();
        run_a_process()?;
        request(&self.socket, vec![pair(outside, &netns)])?;
        request(&self.socket, filters(outside, &self.program))?;
        request(&inside, configuration(address, self.node.address(1))?)?;
        let join = LinkUnspec::new_with_index(outside).controller(self.bridge);
        request(&self.socket, vec![Message::SetLink(join.up().build())])?;
        while !is_up(&events, outside)? {}
        Ok(start.elapsed())
    }

    /// Deletes the link of a pod.
    pub(crate) fn del(&self, number: usize) -> Result<()> {
        let gone = LinkUnspec::new_with_index(outside(u8::try_from(number)?)).build();
        request(&self.socket, vec![Message::DelLink(gone)])
    }
}

fn outside(number: u8) -> u32 {
    OUTSIDE + u32::from(number)
}

/// Runs the plugin with VERSION, which it answers without the agent.
fn run_a_process() -> Result<()> {
    let mut plugin = plugin_start::command(program("cni/viaduct"));
    plugin.env_clear().env("CNI_COMMAND", "VERSION");
    let ended = plugin
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    ensure!(ended.status()?.success(), "the plugin failed");
    Ok(())
}

/// Builds the request for both ends of the veth; the pod's end is created in its namespace.
fn pair(outside: u32, netns: &File) -> Message {
    let mut peer = LinkUnspec::new_with_name("eth0")
        .setns_by_fd(netns.as_raw_fd())
        .build();
    peer.header.index = INSIDE;
    peer.attributes.extend(QUEUES);
    let info = InfoData::Veth(InfoVeth::Peer(peer));
    let mut pair = LinkMessageBuilder::<LinkVeth>::new(&format!("guest{outside}"), "eth0")
        .set_info_data(info)
        .build();
    pair.header.index = outside;
    pair.attributes.extend(QUEUES);
    Message::NewLink(pair)
}

/// Builds the requests for clsact and the program on both hooks.
fn filters(outside: u32, program: &ProgramFd) -> Vec<Message> {
    let index = outside.cast_signed();
    let program = program.as_fd().as_raw_fd().cast_unsigned();
    let mut clsact = TcMessage::default();
    clsact.header.index = index;
    clsact.header.handle = side(0);
    clsact.header.parent = TcHandle::CLSACT;
    clsact.attributes = vec![TcAttribute::Kind("clsact".to_owned())];
    let filters = SIDES.map(|minor| {
        let mut filter = TcMessage::default();
        filter.header = TcHeader {
            index,
            parent: side(minor),
            info: 1 << 16 | ALL_PROTOCOLS,
            ..TcHeader::default()
        };
        filter.attributes = vec![
            TcAttribute::Kind(TcFilterBpf::KIND.to_owned()),
            TcAttribute::Options(vec![
                TcOption::Bpf(TcFilterBpfOption::ProgFd(program)),
                TcOption::Bpf(TcFilterBpfOption::ProgName(PROGRAM.to_owned())),
                TcOption::Bpf(TcFilterBpfOption::Flags(TcBpfFlags::DirectAction)),
            ]),
        ];
        Message::NewTrafficFilter(filter)
    });
    let mut messages = vec![Message::NewQueueDiscipline(clsact)];
    messages.extend(filters);
    messages
}

const fn side(minor: u16) -> TcHandle {
    TcHandle {
        major: u16::MAX,
        minor,
    }
}

/// Builds the requests for the pod's address, its link state and its default route.
fn configuration(address: Ipv4Addr, gateway: IpAddr) -> Result<Vec<Message>> {
    let own = AddressMessageBuilder::<Ipv4Addr>::new().index(INSIDE);
    let out = RouteMessageBuilder::<IpAddr>::new()
        .output_interface(INSIDE)
        .destination_prefix(Ipv4Addr::UNSPECIFIED.into(), 0)?
        .gateway(gateway)?;
    Ok(vec![
        Message::NewAddress(own.address(address, 24).build()),
        Message::SetLink(LinkUnspec::new_with_index(INSIDE).up().build()),
        Message::NewRoute(out.build()),
    ])
}

/// Opens a netlink socket in the calling thread's namespace, with a receive timeout that no answer
/// reaches.
fn open() -> Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(10))?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.set_cap_ack(true)?;
    Ok(socket)
}

/// Opens a netlink socket that receives link events.
fn listen() -> Result<Socket> {
    let socket = open()?;
    socket.add_membership(MulticastGroup::Link as u32)?;
    Ok(socket)
}

/// Returns whether the next event reports that this link is operational, so the bridge forwards.
fn is_up(events: &Socket, index: u32) -> Result<bool> {
    let (bytes, _) = events.recv_from_full()?;
    let event = NetlinkMessage::<Message>::deserialize(&bytes)?.payload;
    let NetlinkPayload::InnerMessage(Message::NewLink(link)) = event else {
        return Ok(false);
    };
    let up = LinkAttribute::OperState(State::Up);
    Ok(link.header.index == index && link.attributes.contains(&up))
}

/// Sends all messages in one system call, and waits for their acknowledgements.
fn request(socket: &Socket, messages: Vec<Message>) -> Result<()> {
    let count = messages.len();
    let bytes: Vec<u8> = messages.into_iter().flat_map(encode).collect();
    socket.send(&bytes, 0)?;
    for _ in 0..count {
        let (bytes, _) = socket.recv_from_full()?;
        let answer = NetlinkMessage::<Message>::deserialize(&bytes)?.payload;
        let NetlinkPayload::Error(answer) = answer else {
            bail!("the kernel did not acknowledge a netlink request");
        };
        if answer.code.is_some() {
            return Err(answer.to_io().into());
        }
    }
    Ok(())
}

fn encode(message: Message) -> Vec<u8> {
    let makes = !matches!(message, Message::SetLink(_) | Message::DelLink(_));
    let mut message = NetlinkMessage::from(message);
    message.header.flags = NLM_F_REQUEST | NLM_F_ACK;
    if makes {
        message.header.flags |= NLM_F_CREATE | NLM_F_EXCL;
    }
    message.finalize();
    let mut bytes = vec![0; message.buffer_len().next_multiple_of(4)];
    message.serialize(&mut bytes);
    bytes
}
