//! Sends requests to rtnetlink and reads the answers, on a blocking socket.
//!
//! The kernel handles an rtnetlink request inside of `send`: the answer is there when the call
//! returns, so an event loop would add nothing but wake-ups. A socket stays in the namespace that
//! it was opened in, whatever its thread does later. Does not interpret messages, but decodes only
//! the link attributes that this crate reads.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "netlink's enums are open: unknown values are skipped"
)]

use std::io;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use rtnetlink::packet_core::{
    DecodeError, Emitable as _, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST,
    NetlinkBuffer, NetlinkMessage, NetlinkPayload, NlasIterator, ParseableParametrized as _,
};
use rtnetlink::packet_route::RouteNetlinkMessage as Message;
use rtnetlink::packet_route::link::{LinkAttribute, LinkHeader, LinkMessage};
use rtnetlink::sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use rtnetlink::sys::{AsyncSocket as _, Socket, SocketAddr, TokioSocket};

use crate::error::is;

/// Receive timeout. A working kernel answers at once; an error is better than a hanging agent.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Largest read of a dump (`netlink_dump` in `net/netlink/af_netlink.c`); other messages are
/// smaller.
pub(crate) const BUFFER: usize = 32 * 1024;

/// Requests sent in one call: their answers must fit the receive buffer of the socket.
const BATCH: usize = 32;

/// Link attributes that this crate reads. The kernel sends four times as many, and to decode them
/// all takes longer than to receive them.
const LINK_ATTRIBUTES: [u16; 11] = [
    libc::IFLA_ADDRESS,
    libc::IFLA_IFNAME,
    libc::IFLA_MTU,
    libc::IFLA_LINK,
    libc::IFLA_LINK_NETNSID,
    libc::IFLA_MASTER,
    libc::IFLA_TXQLEN,
    libc::IFLA_OPERSTATE,
    libc::IFLA_LINKINFO,
    libc::IFLA_IFALIAS,
    libc::IFLA_AF_SPEC,
];

/// Attempts of a dump that concurrent changes made inconsistent (`NLM_F_DUMP_INTR`).
const DUMP_TRIES: usize = 8;

/// An rtnetlink socket of one network namespace.
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

/// A message with the flags of its netlink header.
pub(crate) struct Request {
    message: Message,
    flags: u16,
}

impl Request {
    /// Makes a request for one object.
    pub(crate) fn get(message: Message) -> Self {
        Self {
            message,
            flags: NLM_F_REQUEST,
        }
    }

    /// Makes a request for a change; `flags` are `NLM_F_CREATE` and the like.
    pub(crate) fn change(message: Message, flags: u16) -> Self {
        Self {
            message,
            flags: NLM_F_REQUEST | NLM_F_ACK | flags,
        }
    }
}

/// Answer to one request: the requested object, or nothing for a change.
pub(crate) type Answer = io::Result<Option<Message>>;

impl Netlink {
    /// Opens a socket in the namespace that the calling thread is in.
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        socket.set_cap_ack(true)?;
        socket.set_netlink_get_strict_chk(true)?;
        set_receive_timeout(&socket)?;
        Ok(Self {
            socket,
            sequence: 0,
            buffer: Vec::with_capacity(BUFFER),
        })
    }

    /// Sends one request and returns its answer.
    pub(crate) fn request(&mut self, request: Request) -> Answer {
        let mut answers = self.request_all(vec![request])?;
        answers.pop().unwrap_or_else(|| Err(no_answer()))
    }

    /// Sends one change and returns its result.
    pub(crate) fn change(&mut self, message: Message, flags: u16) -> io::Result<()> {
        self.request(Request::change(message, flags)).map(|_| ())
    }

    /// Sends changes in order and returns the first failure. The changes after it are executed as
    /// well.
    pub(crate) fn change_all(
        &mut self,
        messages: impl IntoIterator<Item = Message>,
    ) -> io::Result<()> {
        let changes = messages
            .into_iter()
            .map(|message| Request::change(message, 0));
        let answers = self.request_all(changes.collect())?;
        answers.into_iter().try_for_each(|answer| answer.map(drop))
    }

    /// Sends requests in order and returns their answers. A request that fails does not stop those
    /// after it.
    pub(crate) fn request_all(&mut self, requests: Vec<Request>) -> io::Result<Vec<Answer>> {
        let mut answers = Vec::with_capacity(requests.len());
        let changes = requests
            .iter()
            .any(|request| request.flags & NLM_F_ACK != 0);
        let mut requests = requests.into_iter().peekable();
        while requests.peek().is_some() {
            let first = self.sequence.wrapping_add(1);
            let mut bytes = Vec::new();
            for request in requests.by_ref().take(BATCH) {
                self.encode(request, &mut bytes);
            }
            self.socket.send(&bytes, 0)?;
            self.collect(first, &mut answers)?;
            if changes {
                crash::point();
            }
        }
        Ok(answers)
    }

    /// Returns all objects that `message` requests.
    pub(crate) fn dump(&mut self, message: &Message) -> io::Result<Vec<Message>> {
        self.dump_as(message, |object, objects| objects.push(object))
    }

    /// Returns what `convert` adds to the list for each object that `message` requests. A decoded
    /// message takes several times the memory of what most callers read of it.
    pub(crate) fn dump_as<T>(
        &mut self,
        message: &Message,
        mut convert: impl FnMut(Message, &mut Vec<T>),
    ) -> io::Result<Vec<T>> {
        for _ in 0..DUMP_TRIES {
            if let Some(objects) = self.dump_once(message.clone(), &mut convert)? {
                return Ok(objects);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "the kernel interrupted the dump 8 times: objects changed meanwhile",
        ))
    }

    fn dump_once<T>(
        &mut self,
        message: Message,
        convert: &mut impl FnMut(Message, &mut Vec<T>),
    ) -> io::Result<Option<Vec<T>>> {
        let flags = NLM_F_REQUEST | NLM_F_DUMP;
        let mut bytes = Vec::new();
        self.encode(Request { message, flags }, &mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut objects = Vec::new();
        let mut consistent = true;
        loop {
            self.receive()?;
            for part in messages(&self.buffer) {
                let header = NetlinkBuffer::new(part);
                if header.sequence_number() != self.sequence {
                    continue;
                }
                consistent &= header.flags() & NLM_F_DUMP_INTR == 0;
                match decode(part) {
                    Ok(NetlinkPayload::InnerMessage(object)) => convert(object, &mut objects),
                    Ok(NetlinkPayload::Done(done)) if done.code < 0 => {
                        return Err(io::Error::from_raw_os_error(-done.code));
                    }
                    Ok(NetlinkPayload::Done(_)) => return Ok(consistent.then_some(objects)),
                    Ok(NetlinkPayload::Error(error)) => return Err(error.to_io()),
                    Ok(_) => {}
                    // An object that the decoder does not understand is of no kind that this crate
                    // uses.
                    Err(error) => tracing::warn!(%error, "skipped an object of a netlink dump"),
                }
            }
        }
    }

    fn encode(&mut self, request: Request, bytes: &mut Vec<u8>) {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::from(request.message);
        message.header.flags = request.flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let start = bytes.len();
        bytes.resize((start + message.buffer_len()).next_multiple_of(4), 0);
        message.serialize(&mut bytes[start..]);
    }

    /// Reads the answers to the requests from `first` to the last one sent.
    fn collect(&mut self, first: u32, answers: &mut Vec<Answer>) -> io::Result<()> {
        let mut awaited = first;
        let end = self.sequence.wrapping_add(1);
        while awaited != end {
            self.receive()?;
            for part in messages(&self.buffer) {
                if NetlinkBuffer::new(part).sequence_number() != awaited {
                    continue;
                }
                awaited = awaited.wrapping_add(1);
                answers.push(answer(part));
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        receive(&self.socket, &mut self.buffer)
    }
}

/// Opens a blocking socket that receives the notifications of these multicast groups and can send
/// requests.
pub(crate) fn open_listener(groups: &[u32]) -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    join_groups(&mut socket, groups.iter().copied())?;
    socket.connect(&SocketAddr::new(0, 0))?;
    set_receive_timeout(&socket)?;
    Ok(socket)
}

/// Opens an asynchronous socket that receives the notifications of these groups, in the namespace
/// of the calling thread. Must be called inside of a tokio runtime.
pub(crate) fn subscribe(
    protocol: isize,
    groups: impl IntoIterator<Item = u32>,
) -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(protocol)?;
    join_groups(socket.socket_mut(), groups)?;
    Ok(socket)
}

/// Binds a new socket and joins these multicast groups.
pub(crate) fn join_groups(
    socket: &mut Socket,
    groups: impl IntoIterator<Item = u32>,
) -> io::Result<()> {
    socket.bind(&SocketAddr::new(0, 0))?;
    groups
        .into_iter()
        .try_for_each(|group| socket.add_membership(group))
}

/// Returns the opened socket, or `None` where the kernel does not have the protocol.
pub(crate) fn if_supported<T>(opened: io::Result<T>) -> io::Result<Option<T>> {
    match opened {
        Err(error) if is(&error, Errno::EPROTONOSUPPORT) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Opens a socket for requests to netfilter in the namespace of the calling thread, with the
/// receive timeout; `None` where the kernel has no netfilter netlink.
pub(crate) fn open_netfilter() -> io::Result<Option<Socket>> {
    let Some(mut socket) = if_supported(Socket::new(NETLINK_NETFILTER))? else {
        return Ok(None);
    };
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    set_receive_timeout(&socket)?;
    Ok(Some(socket))
}

/// Encodes one change that requests an acknowledgement, for a socket of [`open_listener`].
pub(crate) fn encode_change(message: Message) -> Vec<u8> {
    let mut message = NetlinkMessage::from(message);
    message.header.flags = NLM_F_REQUEST | NLM_F_ACK;
    message.header.sequence_number = 1;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// Receives the next datagram. A timeout is an error.
pub(crate) fn receive(socket: &Socket, buffer: &mut Vec<u8>) -> io::Result<()> {
    loop {
        buffer.clear();
        buffer.reserve(BUFFER);
        match socket.recv(buffer, 0) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Splits one datagram into its messages.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let header = NetlinkBuffer::new_checked(bytes).ok()?;
        let length = usize::try_from(header.length()).ok()?;
        let (message, _) = bytes.split_at_checked(length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// Decodes one message. Of links, only the attributes of [`LINK_ATTRIBUTES`] are decoded.
pub(crate) fn decode(bytes: &[u8]) -> io::Result<NetlinkPayload<Message>> {
    let decoded = NetlinkBuffer::new_checked(bytes).and_then(|message| {
        if message.message_type() == libc::RTM_NEWLINK {
            decode_link(message.payload()).map(|link| Message::NewLink(link).into())
        } else {
            NetlinkMessage::deserialize(bytes).map(|message| message.payload)
        }
    });
    decoded.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn decode_link(payload: &[u8]) -> Result<LinkMessage, DecodeError> {
    let header = LinkHeader::parse(payload)?;
    let family = header.interface_family;
    let mut attributes = Vec::new();
    for attribute in NlasIterator::new(&payload[header.buffer_len()..]) {
        let attribute = attribute?;
        if LINK_ATTRIBUTES.contains(&attribute.kind()) {
            attributes.push(LinkAttribute::parse_with_param(&attribute, family)?);
        }
    }
    let mut link = LinkMessage::default();
    (link.header, link.attributes) = (header, attributes);
    Ok(link)
}

pub(crate) fn answer(bytes: &[u8]) -> Answer {
    match decode(bytes)? {
        NetlinkPayload::InnerMessage(object) => Ok(Some(object)),
        NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
        _ => Ok(None),
    }
}

pub(crate) fn set_receive_timeout(socket: &Socket) -> io::Result<()> {
    let timeout = TimeVal::seconds(i64::try_from(TIMEOUT.as_secs()).unwrap_or(i64::MAX));
    setsockopt(socket, sockopt::ReceiveTimeout, &timeout)?;
    Ok(())
}

pub(crate) fn no_answer() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the kernel sent no answer to a netlink request",
    )
}

#[cfg(test)]
mod tests;
