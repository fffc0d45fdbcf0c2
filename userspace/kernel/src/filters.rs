//! Our programs as clsact filters: on the host's end of every pod's veth, and on uplinks of kernels without TCX.
//!
//! A filter lives as long as its link and needs no file descriptor: it survives the agent. Attaching one costs
//! 0.03 ms, where a TCX link waits some 15 ms for the kernel's readers. Ours are told from others' by three marks at
//! once: priority, handle and name. Others' filters and the qdisc, whoever made it, are never touched.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "netlink's vocabulary is open: what we do not know is skipped"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::RawFd;

use nix::errno::Errno;
use planner::Hook;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::packet_route::RouteNetlinkMessage as Message;
use rtnetlink::packet_route::tc::{
    TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcHeader, TcMessage,
    TcOption,
};

use crate::error::is;
use crate::netlink::{Answer, Netlink, Request};

/// Behind the priorities that people and most tools choose, before those that the kernel gives away (49152 and up).
const PRIORITY: u16 = 49_000;

/// Never left to the kernel: that is how agents came to delete one another's filters.
const HANDLE: TcHandle = TcHandle { major: 0, minor: 1 };

/// Where our filters are.
pub(crate) const CLSACT: &str = "clsact";

/// The queue that heeds the departure times of packets.
pub(crate) const FQ: &str = "fq";

/// `ETH_P_ALL` in network byte order.
const ALL_PROTOCOLS: u32 = 0x0003_u16.to_be() as u32;

/// The name of a hook's filter.
fn name(hook: Hook) -> String {
    format!("viaduct/{}", crate::programs::name(hook))
}

/// `clsact`'s handle of the side that a hook is on.
fn parent(hook: Hook) -> TcHandle {
    let minor = match hook {
        Hook::FromPod | Hook::FromBusyPod | Hook::UplinkIn => TcHandle::MIN_INGRESS,
        Hook::ToPod | Hook::UplinkOut => TcHandle::MIN_EGRESS,
    };
    TcHandle {
        major: u16::MAX,
        minor,
    }
}

/// Attaches programs, or replaces ours in place, without a packet passing by. After a failure only those that were
/// there before are.
pub(crate) fn attach(
    netlink: &mut Netlink,
    index: u32,
    programs: &[(Hook, RawFd)],
) -> io::Result<()> {
    let mut requests = vec![Request::change(clsact(index), NLM_F_CREATE | NLM_F_EXCL)];
    requests.extend(programs.iter().map(|(hook, program)| {
        let filter = Message::NewTrafficFilter(filter(index, *hook, *program));
        Request::change(filter, NLM_F_CREATE | NLM_F_EXCL)
    }));
    let mut answers = netlink.ask_all(requests)?.into_iter();
    let qdisc = answers.next().unwrap_or(Ok(None));
    let mut failure = qdisc.err().filter(|error| !is(error, Errno::EEXIST));
    let mut made = Vec::new();
    for (answer, (hook, program)) in answers.zip(programs) {
        match answer {
            Ok(_) => made.push(*hook),
            Err(error) if is(&error, Errno::EEXIST) => {
                failure = failure.or(replace(netlink, index, *hook, *program).err());
            }
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    let Some(failure) = failure else {
        return Ok(());
    };
    for hook in made {
        if let Err(error) = detach(netlink, index, hook) {
            tracing::error!(link = index, ?hook, %error, "a filter stays behind");
        }
    }
    Err(failure)
}

fn replace(netlink: &mut Netlink, index: u32, hook: Hook, program: RawFd) -> io::Result<()> {
    if is_attached(netlink, index, hook)? {
        netlink.change(Message::NewTrafficFilter(filter(index, hook, program)), 0)
    } else {
        // Somebody else's filter has our priority and handle.
        Err(Errno::EEXIST.into())
    }
}

/// Detaches a program of ours; that it is not there is success.
pub(crate) fn detach(netlink: &mut Netlink, index: u32, hook: Hook) -> io::Result<()> {
    if !is_attached(netlink, index, hook)? {
        return Ok(());
    }
    netlink.change(Message::DelTrafficFilter(empty(index, hook)), 0)
}

/// Detaches what was attached to uplinks, from whatever link has it.
pub(crate) fn detach_from_uplinks(netlink: &mut Netlink) -> io::Result<()> {
    let links: Vec<u32> = links_with(netlink, CLSACT)?.into_iter().collect();
    let attached = attached(netlink, &links)?;
    for (index, hooks) in links.into_iter().zip(attached) {
        for hook in hooks {
            if !hook.is_of_pods() {
                detach(netlink, index, hook)?;
            }
        }
    }
    Ok(())
}

fn is_attached(netlink: &mut Netlink, index: u32, hook: Hook) -> io::Result<bool> {
    Ok(attached(netlink, &[index])?
        .first()
        .is_some_and(|hooks| hooks.contains(&hook)))
}

/// Which programs of ours are attached to each of the links.
pub(crate) fn attached(netlink: &mut Netlink, links: &[u32]) -> io::Result<Vec<BTreeSet<Hook>>> {
    let ids = attached_ids(netlink, links)?.into_iter();
    Ok(ids.map(|of_link| of_link.into_keys().collect()).collect())
}

/// As [`attached`], with the programs' ids.
pub(crate) fn attached_ids(
    netlink: &mut Netlink,
    links: &[u32],
) -> io::Result<Vec<BTreeMap<Hook, Option<u32>>>> {
    const SIDES: [Hook; 2] = [Hook::FromPod, Hook::ToPod];
    let of_link = |index: &u32| SIDES.map(|side| empty(*index, side));
    let requests = links
        .iter()
        .flat_map(of_link)
        .map(|query| Request::get(Message::GetTrafficFilter(query)));
    let answers = netlink.ask_all(requests.collect())?;
    answers
        .chunks(SIDES.len())
        .map(|sides| {
            sides
                .iter()
                .zip(SIDES)
                .map(|(answer, side)| ours(answer, side))
                .collect::<io::Result<Vec<_>>>()
        })
        .map(|sides| Ok(sides?.into_iter().flatten().collect()))
        .collect()
}

/// The kinds of filters of others that packets meet behind ours where they come in by the link: all, where ours is not a
/// filter but comes before them.
pub(crate) fn behind_ours(netlink: &mut Netlink, index: u32) -> io::Result<BTreeSet<String>> {
    let mut query = TcMessage::default();
    query.header.index = index.cast_signed();
    query.header.parent = parent(Hook::UplinkIn);
    let filters = match netlink.dump(&Message::GetTrafficFilter(query)) {
        Err(error) if is_absence(&error) => Vec::new(),
        other => other?,
    };
    let filters = filters.iter().filter_map(|message| match message {
        Message::NewTrafficFilter(filter) => Some(filter),
        _ => None,
    });
    // A group of filters is told as well, without what they do.
    let (ours, others): (Vec<_>, Vec<_>) = filters
        .filter(|filter| has_options(filter))
        .partition(|filter| filter_name(filter) == Some(name(Hook::UplinkIn).as_str()));
    let behind = ours.first().map_or(0, |ours| priority(ours));
    let behind = others
        .into_iter()
        .filter(|filter| priority(filter) >= behind);
    Ok(behind.map(kind).collect())
}

fn has_options(filter: &TcMessage) -> bool {
    let mut attributes = filter.attributes.iter();
    attributes.any(|attribute| matches!(attribute, TcAttribute::Options(_)))
}

/// Filters of small ones come first.
const fn priority(filter: &TcMessage) -> u32 {
    filter.header.info >> 16
}

fn kind(filter: &TcMessage) -> String {
    let kind = filter
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            TcAttribute::Kind(kind) => Some(kind.clone()),
            _ => None,
        });
    kind.unwrap_or_default()
}

/// The links that have a qdisc of this kind.
pub(crate) fn links_with(netlink: &mut Netlink, kind: &str) -> io::Result<BTreeSet<u32>> {
    let qdiscs = netlink.dump(&Message::GetQueueDiscipline(TcMessage::default()))?;
    let kind = TcAttribute::Kind(kind.to_owned());
    let links = qdiscs.iter().filter_map(|message| match message {
        Message::NewQueueDiscipline(qdisc) if qdisc.attributes.contains(&kind) => {
            Some(qdisc.header.index.cast_unsigned())
        }
        _ => None,
    });
    Ok(links.collect())
}

/// The hook whose filter an answer is about, if the filter is ours, and its program's id.
fn ours(answer: &Answer, side: Hook) -> io::Result<Option<(Hook, Option<u32>)>> {
    match answer {
        Ok(Some(Message::NewTrafficFilter(filter))) => {
            let given = filter_name(filter);
            let same =
                |hook: &Hook| parent(*hook) == parent(side) && given == Some(name(*hook).as_str());
            let hook = Hook::ALL.into_iter().find(same);
            Ok(hook.map(|hook| (hook, program_id(filter))))
        }
        Ok(_) => Ok(None),
        // No such filter, no such chain or link, or (EINVAL, EOPNOTSUPP) no clsact.
        Err(error) if is_absence(error) => Ok(None),
        Err(error) => Err(io::Error::from_raw_os_error(
            error.raw_os_error().unwrap_or(Errno::EIO as i32),
        )),
    }
}

fn is_absence(error: &io::Error) -> bool {
    crate::error::is_gone(error) || is(error, Errno::EINVAL) || is(error, Errno::EOPNOTSUPP)
}

fn filter_name(filter: &TcMessage) -> Option<&str> {
    options(filter).find_map(|option| match option {
        TcOption::Bpf(TcFilterBpfOption::ProgName(name)) => Some(name.as_str()),
        _ => None,
    })
}

fn program_id(filter: &TcMessage) -> Option<u32> {
    options(filter).find_map(|option| match option {
        TcOption::Bpf(TcFilterBpfOption::ProgId(id)) => Some(*id),
        _ => None,
    })
}

fn options(filter: &TcMessage) -> impl Iterator<Item = &TcOption> {
    filter
        .attributes
        .iter()
        .filter_map(|attribute| match attribute {
            TcAttribute::Options(options) => Some(options),
            _ => None,
        })
        .flatten()
}

fn clsact(index: u32) -> Message {
    let mut message = TcMessage::default();
    message.header.index = index.cast_signed();
    message.header.handle = TcHandle {
        major: u16::MAX,
        minor: 0,
    };
    message.header.parent = TcHandle::CLSACT;
    message.attributes = vec![TcAttribute::Kind(CLSACT.to_owned())];
    Message::NewQueueDiscipline(message)
}

fn filter(index: u32, hook: Hook, program: RawFd) -> TcMessage {
    let mut message = empty(index, hook);
    let options = [
        TcFilterBpfOption::ProgFd(program.cast_unsigned()),
        TcFilterBpfOption::ProgName(name(hook)),
        TcFilterBpfOption::Flags(TcBpfFlags::DirectAction),
    ];
    message.attributes = vec![
        TcAttribute::Kind(TcFilterBpf::KIND.to_owned()),
        TcAttribute::Options(options.map(TcOption::Bpf).into()),
    ];
    message
}

fn empty(index: u32, hook: Hook) -> TcMessage {
    let mut message = TcMessage::default();
    message.header = TcHeader {
        index: index.cast_signed(),
        handle: HANDLE,
        parent: parent(hook),
        info: u32::from(PRIORITY) << 16 | ALL_PROTOCOLS,
        ..TcHeader::default()
    };
    message
}
