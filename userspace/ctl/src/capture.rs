//! `viaductctl capture`: packets of a pod in both directions, as its interface sees them, with what
//! the datapath did to them.
//!
//! A packet socket in the pod's network namespace sees every packet of the pod, whatever path it
//! takes on the node (decision 144).

mod frame;
mod sink;
mod verdicts;

use std::io::{self, ErrorKind, IoSliceMut};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use api::{AttachmentView, Client, DropEvent, DropQuery, FlowQuery, FlowView, FlowsView, path};
use kernel::Namespace;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{ControlMessageOwned, LinkAddr, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use socket2::{Domain, Protocol, Socket, Type};

use frame::{Filter, Frame, Summary};
use sink::Sink;
use verdicts::{WAIT, Waiting};

use crate::duration::seconds;
use crate::{decode, escaped, get, signals};

/// `ETH_P_ALL` in network byte order (packet(7)).
const ALL: i32 = 0x0003_u16.to_be() as i32;
/// `PACKET_OUTGOING` (packet(7)).
const OUTGOING: u8 = 4;
/// Longest captured frame in bytes.
const LONGEST: usize = 1 << 18;
/// Receive buffer of the packet socket in bytes.
const BUFFER: usize = 8 << 20;
/// Time after which what has waited is looked at.
const TICK: Duration = Duration::from_millis(100);
/// Flows of the pod that are read for their translation.
const FLOWS: usize = 10_000;

/// Options of `viaductctl capture`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Capture {
    /// Pod: name, namespace/name, or prefix of its container ID
    pod: String,
    /// Interface of the pod
    #[arg(long, value_name = "NAME", default_value = "eth0")]
    ifname: String,
    /// File to write in the pcapng format, `-` for standard output [default: a line per packet]
    #[arg(short, long = "write", value_name = "FILE")]
    write: Option<PathBuf>,
    /// Number of packets after which the capture ends [default: none]
    #[arg(short, long, value_name = "COUNT")]
    count: Option<u64>,
    /// Time after which the capture ends, for example 30s or 5m [default: none]
    #[arg(long = "for", value_name = "TIME", value_parser = seconds)]
    seconds: Option<u64>,
    #[command(flatten)]
    filter: Filter,
}

/// Number of frames of a capture.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    captured: u64,
    /// Frames that the socket's buffer had no space for.
    lost: u32,
}

impl Capture {
    /// Captures until a signal, the number of packets or the time ends it.
    #[expect(clippy::print_stderr, reason = "the summary is no part of the capture")]
    pub(crate) fn run(&self, client: &Client) -> Result<String> {
        let stop = signals::stop_flag()?;
        let views: Vec<AttachmentView> = decode(&get(client, path::ATTACHMENTS)?)?;
        let view = crate::limit::find(&views, &self.pod, &self.ifname)?;
        let mut tap = Tap::open(view)?;
        let mut sink = match &self.write {
            Some(path) => self.sink(path)?,
            None => Sink::Text,
        };
        let events = events(client, &view.container_id);
        // When events are received, the capture has begun: callers wait for this line.
        eprintln!("Capturing {} of pod {}", self.ifname, self.pod);
        let counts = self.copy(client, (&mut tap, &events), &mut sink, &stop)?;
        eprintln!(
            "{} packets captured, {} lost while the socket's buffer was full",
            counts.captured, counts.lost
        );
        Ok(String::new())
    }

    fn sink(&self, path: &Path) -> Result<Sink> {
        let longest = u32::try_from(LONGEST).unwrap_or(u32::MAX);
        Sink::file(path, &self.ifname, &self.pod, longest)
    }

    fn copy(
        &self,
        client: &Client,
        (tap, events): (&mut Tap, &Receiver<DropEvent>),
        sink: &mut Sink,
        stop: &AtomicBool,
    ) -> Result<Counts> {
        let end = self
            .seconds
            .map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let mut waiting = Waiting::default();
        let mut counts = Counts::default();
        loop {
            let is_full = self.count.is_some_and(|most| counts.captured >= most);
            let is_over = end.is_some_and(|end| Instant::now() >= end);
            if is_full || is_over || stop.load(Ordering::Relaxed) {
                break;
            }
            if let Some(frame) = tap.next()?
                && self.filter.matches(&frame.summary)
            {
                counts.captured += 1;
                waiting.frame(frame, Instant::now());
            }
            self.write(client, (&mut waiting, events), sink, Instant::now())?;
        }
        counts.lost = tap.lost;
        // The last frames wait for their events too.
        thread::sleep(WAIT);
        self.write(client, (&mut waiting, events), sink, Instant::now() + WAIT)?;
        Ok(counts)
    }

    /// Writes what is due.
    fn write(
        &self,
        client: &Client,
        (waiting, events): (&mut Waiting, &Receiver<DropEvent>),
        sink: &mut Sink,
        now: Instant,
    ) -> Result<()> {
        for event in events.try_iter() {
            waiting.event(event, now);
        }
        let flows = if waiting.needs_flows(now) {
            flows(client, &self.pod)
        } else {
            Vec::new()
        };
        let due = waiting.due(now, &flows, &self.filter);
        for record in &due {
            sink.write(record)?;
        }
        if !due.is_empty() {
            sink.flush()?;
        }
        Ok(())
    }
}

/// Returns the flows of a pod; none if the agent does not answer, because a capture goes on.
fn flows(client: &Client, pod: &str) -> Vec<FlowView> {
    let query = FlowQuery {
        pod: Some(pod.to_owned()),
        limit: Some(FLOWS),
        ..FlowQuery::default()
    };
    let answer = get(client, &query.to_path()).and_then(|reply| Ok(decode::<FlowsView>(&reply)?));
    answer.map(|view| view.flows).unwrap_or_default()
}

/// Receives the drop events of a pod on a thread, which ends with the process.
fn events(client: &Client, container_id: &str) -> Receiver<DropEvent> {
    let (sender, receiver) = channel();
    let query = DropQuery {
        pod: Some(container_id.to_owned()),
        follow: true,
        ..DropQuery::default()
    };
    let client = client.clone();
    let started = crate::now() * 1000;
    thread::spawn(move || {
        // A capture without verdicts is better than none.
        let _ended = client.follow(&query.to_path(), |line| {
            let event: Result<DropEvent, _> =
                serde_json::from_str(line).and_then(|value| serde_json::from_value(escaped(value)));
            // The first events are those that the agent remembers.
            let is_new = |event: &DropEvent| event.at_ms >= started;
            event
                .ok()
                .filter(is_new)
                .is_none_or(|event| sender.send(event).is_ok())
        });
    });
    receiver
}

/// A packet socket in the namespace of a pod.
struct Tap {
    socket: Socket,
    /// Index of the pod's interface.
    index: usize,
    buffer: Vec<u8>,
    lost: u32,
}

impl Tap {
    fn open(view: &AttachmentView) -> Result<Self> {
        if view.netns.is_empty() {
            bail!(
                "the namespace of {} is known to its runtime only: capture at {} on the node",
                view.ifname,
                view.host_link
            );
        }
        let path = view.netns.parse().context("the namespace of the pod")?;
        let namespace = Namespace::find(&path)
            .context("cannot open the namespace of the pod: run viaductctl as root")?;
        let Some(namespace) = namespace else {
            bail!("the namespace of the pod is gone: {}", view.netns);
        };
        let opened = namespace.run(|| {
            let index = if_nametoindex(view.ifname.as_str())?;
            let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(ALL)))?;
            Ok((socket, usize::try_from(index).unwrap_or(0)))
        });
        let (socket, index) =
            opened.with_context(|| format!("cannot capture packets of {}", view.ifname))?;
        setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        setsockopt(&socket, sockopt::RxqOvfl, &1)?;
        socket.set_read_timeout(Some(TICK))?;
        Ok(Self {
            socket,
            index,
            buffer: vec![0; LONGEST],
            lost: 0,
        })
    }

    /// Returns the next frame; `None` if none arrives in a tick, or one of another interface.
    fn next(&mut self) -> io::Result<Option<Frame>> {
        let mut control = cmsg_space!(TimeSpec, u32);
        let mut parts = [IoSliceMut::new(&mut self.buffer)];
        let received = recvmsg::<LinkAddr>(
            self.socket.as_raw_fd(),
            &mut parts,
            Some(&mut control),
            MsgFlags::MSG_TRUNC,
        );
        let received = match received {
            Ok(received) => received,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            // The pod's interface is gone.
            Err(Errno::ENETDOWN) => return Err(ErrorKind::NetworkDown.into()),
            Err(error) => return Err(error.into()),
        };
        let mut at = Duration::ZERO;
        for message in received.cmsgs()? {
            if let ControlMessageOwned::ScmTimestampns(time) = message {
                at = time.into();
            } else if let ControlMessageOwned::RxqOvfl(lost) = message {
                self.lost = lost;
            }
        }
        let (length, from) = (received.bytes, received.address);
        let Some(from) = from.filter(|from| from.ifindex() == self.index) else {
            return Ok(None);
        };
        let bytes = self.buffer[..length.min(LONGEST)].to_vec();
        Ok(Some(Frame {
            at,
            is_sent: from.pkttype() == OUTGOING,
            length: u32::try_from(length).unwrap_or(u32::MAX),
            summary: Summary::of(&bytes),
            bytes,
        }))
    }
}
