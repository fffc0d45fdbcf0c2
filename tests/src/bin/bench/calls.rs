//! The least that an ADD takes: a process that starts and ends, and the calls by which the kernel makes a pod's link, with a
//! program on each side of it that was loaded before, until the bridge forwards what comes by it. Nobody is asked for that by
//! the process, and nothing is looked at, decided, written down or published.

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

use crate::start;
use crate::topology::Forwarding;

/// One queue each way, without which the kernel makes as many as there could be processors.
const QUEUES: [LinkAttribute; 2] = [LinkAttribute::NumTxQueues(1), LinkAttribute::NumRxQueues(1)];

/// A program that any agent has loaded. It passes what comes by links that its own agent does not know.
const PROGRAM: &str = "to_pod";

/// The sides of `clsact`.
const SIDES: [u16; 2] = [TcHandle::MIN_INGRESS, TcHandle::MIN_EGRESS];

/// `ETH_P_ALL` in network byte order.
const ALL_PROTOCOLS: u32 = 0x0003_u16.to_be() as u32;

/// The pods' network, but for its last number.
const NET: [u8; 3] = [10, 244, 2];

/// The interface index of a pod's end, inside: the kernel takes one only where it is given that of the other end as well.
const INSIDE: u32 = 7;
/// The interface index of the first pod's other end.
const OUTSIDE: u32 = 100;

/// A node on which nobody but the kernel makes pods' links.
pub(crate) struct Calls {
    /// The node and its world.
    pub(crate) node: Forwarding,
    bridge: u32,
    socket: Socket,
    program: ProgramFd,
}

impl Calls {
    /// A node with a bridge, beside one that has an agent.
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

    /// Makes the link of a pod, and says how long that took.
    pub(crate) fn add(&self, pod: &Machine, number: usize) -> Result<Duration> {
        let number = u8::try_from(number)?;
        let outside = outside(number);
        let (inside, netns) =
            pod.run(|| -> Result<_> { Ok((open()?, File::open("/proc/thread-self/ns/net")?)) })?;
        let news = self.node.sandbox.node.run(listen)?;
        let address = Ipv4Addr::from([NET[0], NET[1], NET[2], 2 + number]);
        let start = Instant::now();
        run_a_process()?;
        change(&self.socket, vec![pair(outside, &netns)])?;
        change(&self.socket, filters(outside, &self.program))?;
        change(&inside, configuration(address, self.node.address(1))?)?;
        let join = LinkUnspec::new_with_index(outside).controller(self.bridge);
        change(&self.socket, vec![Message::SetLink(join.up().build())])?;
        while !works(&news, outside)? {}
        Ok(start.elapsed())
    }

    /// Removes it.
    pub(crate) fn del(&self, number: usize) -> Result<()> {
        let gone = LinkUnspec::new_with_index(outside(u8::try_from(number)?)).build();
        change(&self.socket, vec![Message::DelLink(gone)])
    }
}

fn outside(number: u8) -> u32 {
    OUTSIDE + u32::from(number)
}

/// The plugin, asked for something that takes no agent.
fn run_a_process() -> Result<()> {
    let mut plugin = start::command(program("cni/viaduct"));
    plugin.env_clear().env("CNI_COMMAND", "VERSION");
    let ended = plugin
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    ensure!(ended.status()?.success(), "the plugin failed");
    Ok(())
}

/// Both ends, the pod's at once in its namespace.
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

/// The program on both sides.
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

/// The pod's address, its link up, and its way out.
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

/// A socket of the namespace that the calling thread is in. Nothing that it waits for takes long, if it comes at all.
fn open() -> Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(10))?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.set_cap_ack(true)?;
    Ok(socket)
}

/// A socket that hears what becomes of links.
fn listen() -> Result<Socket> {
    let socket = open()?;
    socket.add_membership(MulticastGroup::Link as u32)?;
    Ok(socket)
}

/// Whether the next of the news is that this link forwards.
fn works(news: &Socket, index: u32) -> Result<bool> {
    let (bytes, _) = news.recv_from_full()?;
    let news = NetlinkMessage::<Message>::deserialize(&bytes)?.payload;
    let NetlinkPayload::InnerMessage(Message::NewLink(link)) = news else {
        return Ok(false);
    };
    let up = LinkAttribute::OperState(State::Up);
    Ok(link.header.index == index && link.attributes.contains(&up))
}

/// All in one call to the kernel.
fn change(socket: &Socket, messages: Vec<Message>) -> Result<()> {
    let count = messages.len();
    let bytes: Vec<u8> = messages.into_iter().flat_map(encode).collect();
    socket.send(&bytes, 0)?;
    for _ in 0..count {
        let (bytes, _) = socket.recv_from_full()?;
        let answer = NetlinkMessage::<Message>::deserialize(&bytes)?.payload;
        let NetlinkPayload::Error(answer) = answer else {
            bail!("the kernel has not acknowledged a change");
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
